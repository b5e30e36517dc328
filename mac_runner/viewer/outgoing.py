"""What goes out of a run when it is published: views without what was to be left out, and without what is private.

Addresses of engines, paths, keys and names of machines never go out. Thoughts and prompts stay behind where the user
says so. Everything here is pure: views in, views out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from mac_runner.environments.markup import THOUGHT_TAGS, defuse
from mac_runner.environments.reading import holds_thought, thoughts
from mac_runner.reports.turns import messages_text
from mac_runner.types import JsonValue
from mac_runner.view_model import (
    ConversationView,
    Fact,
    IndexColumns,
    PromptMessage,
    RunPage,
    TurnView,
)
from mac_runner.viewer.packing import strings_in
from mac_runner.views.inspector import difference

ADDRESS: Final = "[address]"
PATH: Final = "[path]"
MACHINE: Final = "[machine]"
KEY: Final = "[key]"
NO_PROMPTS: Final = "this publication leaves prompts out"

_URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>)\]]+", re.IGNORECASE)
_HOST_AND_PORT: Final = re.compile(
    r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?|localhost:\d{1,5}|[\w-]+(?:\.[\w-]+)+:\d{2,5})(?![\w.])"
    r"|(?<=\bhost )[\w.-]+:\d{1,5}"
)
_IPV6: Final = re.compile(
    r"(?<![\w:.])\[?(?:(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?"
    r"|(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4})(?:%\w+)?(?:\](?::\d{1,5})?)?(?![\w:])",
    re.IGNORECASE,
)
_KEY: Final = re.compile(r"(?<![\w-])(?:(?:sk|pk|hf|gsk|xai)[-_][\w*.-]{6,}|(?<=Bearer )\S+)")
_PATH: Final = re.compile(
    r"(?<![\w/.:])(?:~[/\\][\w.@+-]+|(?:[A-Za-z]:)?(?:[/\\][\w.@+-]+){2})(?:[/\\][\w.@+-]+)*[/\\]?"
)
_TAGS: Final = "|".join(sorted(THOUGHT_TAGS))
# What others read of a reply has other brackets.
_THOUGHT: Final = re.compile(rf"[<‹]\s*({_TAGS})\s*[>›].*?[<‹]\s*/\s*\1\s*[>›]", re.IGNORECASE | re.DOTALL)
_TAG: Final = re.compile(rf"[<‹]\s*/?\s*(?:{_TAGS})\s*/?[>›]", re.IGNORECASE)
_REMOVED_CHARS_MIN: Final = 12
"""A shorter thought is a common phrase: it is removed with its tags alone."""


class Private:
    """What may be in no text that goes out: addresses, paths, and the names of the machines.

    The `known` addresses and paths of a run go wherever they appear, the names of `machines` only from what programs
    said, not from what models said.
    """

    def __init__(self, known: Iterable[str] = (), machines: Iterable[str] = ()) -> None:
        self._known = _any_of(known, chars_min=4)
        self._machines = _any_of(machines, chars_min=2)

    def clean(self, text: str) -> str:
        """Any text without the addresses and paths of this run."""
        if self._known is None:
            return text
        return self._known.sub(lambda found: PATH if found[0].startswith(("/", "~", "\\")) else ADDRESS, text)

    def said(self, text: str) -> str:
        """What a program said, such as why a request failed, without any address, path, key or name of a machine."""
        found = _KEY.sub(KEY, _URL.sub(ADDRESS, self.clean(text)))
        found = _PATH.sub(PATH, _HOST_AND_PORT.sub(ADDRESS, _IPV6.sub(ADDRESS, found)))
        return found if self._machines is None else self._machines.sub(MACHINE, found)


def addresses_in(value: JsonValue) -> Iterator[str]:
    """The addresses and absolute paths in the settings of an experiment; of an address also its host and port."""
    for text in strings_in(value):
        if "://" in text:
            yield text
            found = (urlsplit(text).netloc.rpartition("@")[2], *hosts_in(text))
            yield from (host for host in found if ":" in host or "." in host)
        elif text.startswith(("/", "~/")) and text.count("/") > 1:
            yield text


def hosts_in(value: JsonValue) -> Iterator[str]:
    """The hosts of the addresses in the settings of an experiment."""
    for text in strings_in(value):
        if "://" in text:
            yield urlsplit(text).netloc.rpartition("@")[2].partition(":")[0]


def _any_of(words: Iterable[str], *, chars_min: int) -> re.Pattern[str] | None:
    chosen = sorted({word.rstrip("/") for word in words if len(word) >= chars_min}, key=lambda word: (-len(word), word))
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, chosen))})(?![\w-])") if chosen else None


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """What a publication holds of each view."""

    private: Private
    has_thoughts: bool = True
    has_prompts: bool = True

    @property
    def left_out(self) -> tuple[str, ...]:
        """In words, what a reader does not find."""
        return (*(() if self.has_thoughts else ("thoughts",)), *(() if self.has_prompts else ("prompts",)))

    def run(self, page: RunPage, *, is_sample: bool) -> RunPage:
        """The head of a run: nothing of where it was played, and not live."""
        return replace(
            page,
            directory="",
            is_live=False,
            is_sample=is_sample,
            left_out=self.left_out,
            description=self.private.said(page.description),
            state=self.private.said(page.state),
            engines=tuple(replace(engine, address="") for engine in page.engines),
            facts=self._facts(page.facts),
        )

    def index(self, columns: IndexColumns) -> IndexColumns:
        """The list of conversations; why one failed may name an engine."""
        words = {
            name: replace(column, words=tuple(map(self._reason, column.words)))
            for name, column in columns.words.items()
        }
        return replace(columns, words=words)

    def conversation(self, view: ConversationView) -> ConversationView:
        return replace(
            view,
            command="",
            failure=self._reason(view.failure),
            note=self.private.said(view.note),
            facts=self._facts(view.facts),
            events=view.events
            if self.has_thoughts
            else tuple(replace(event, thought="") if event.thought else event for event in view.events),
            turns=tuple(replace(turn, detail=self._reason(turn.detail)) for turn in view.turns),
        )

    def turns(self, views: Sequence[TurnView], spoken: Sequence[str]) -> Iterator[TurnView]:
        """The turns of a conversation. `spoken` are all of its thoughts, which prompts may repeat."""
        prompts: dict[str, tuple[PromptMessage, ...]] = {}
        repeated = _any_of_texts(spoken)
        for view in views:
            if not self.has_prompts:
                view = replace(view, prompt=(), difference=(), previous="", prompt_missing=NO_PROMPTS)
            elif not self.has_thoughts:
                prompts[view.key] = tuple(_thoughtless(message, repeated) for message in view.prompt)
                view = replace(view, prompt=prompts[view.key], difference=())
                if view.previous in prompts and view.prompt:
                    before, after = _text(prompts[view.previous]), _text(view.prompt)
                    view = replace(view, difference=difference(before, after))
            if not self.has_thoughts:
                view = replace(view, reply=view.said, thought="", tokens=())
            yield replace(
                view,
                detail=self._reason(view.detail),
                cause=self._reason(view.cause),
                faults=tuple(map(self._reason, view.faults)),
                prompt_missing=self.private.said(view.prompt_missing),
                siblings=tuple(replace(turn, detail=self._reason(turn.detail)) for turn in view.siblings),
            )

    def _facts(self, facts: Sequence[Fact]) -> tuple[Fact, ...]:
        return tuple(replace(fact, text=self.private.said(fact.text)) for fact in facts)

    def _reason(self, text: str) -> str:
        """Why something failed: a program's words, which may quote a reply."""
        found = self.private.said(text)
        return found if self.has_thoughts else _untagged(thoughts(found).said)

    def cleaner(self, spoken: Iterable[str]) -> Callable[[str], str]:
        """What each text of a conversation passes through at the end. `spoken` are all of its thoughts."""
        if self.has_thoughts:
            return self.private.clean
        repeated = _any_of_texts(form for text in spoken for form in (text, json.dumps(text)[1:-1], defuse(text)))

        def clean(text: str) -> str:
            found = text if repeated is None else repeated.sub("", text)
            return self.private.clean(_untagged(thoughts(found).said if holds_thought(found) else found))

        return clean


def _any_of_texts(texts: Iterable[str]) -> re.Pattern[str] | None:
    long = sorted({text for text in texts if len(text) >= _REMOVED_CHARS_MIN}, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, long))) if long else None


def _thoughtless(message: PromptMessage, repeated: re.Pattern[str] | None) -> PromptMessage:
    """A message without thoughts: a reply that is sent back, and what the words of others repeat."""
    content = thoughts(message.content).said if message.role == "assistant" else message.content
    return PromptMessage(message.role, _untagged(content if repeated is None else repeated.sub("", content)))


def _untagged(text: str) -> str:
    return _TAG.sub("", _THOUGHT.sub("", text))


def _text(messages: Iterable[PromptMessage]) -> str:
    return messages_text((message.role, message.content) for message in messages)
