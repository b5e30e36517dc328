"""All that is recorded of one turn, and what it was sent."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.reports.turns import json_object, objects, prompt_text
from mac_runner.results import integer, number
from mac_runner.store.traces import Traces
from mac_runner.types import JsonObject, Prompt, TokenTrace
from mac_runner.view_model import ConversationView, Piece, PieceKind, PromptMessage, TokenView, TurnHead, TurnView
from mac_runner.views.conversation import parted

PromptOf: TypeAlias = Callable[[str], Prompt]
"""From the key of a turn, what its engine was sent. Raises MacRunnerError saying why that is not known."""

_PAIRS_MAX: Final = 250_000
"""How many pairs of lines, or of words of changed lines, are compared; more are shown as gone and new."""
_WORDS: Final = re.compile(r"\s+|\S+\s*")


def turn_views(
    transcript: JsonObject,
    view: ConversationView,
    prompt_of: PromptOf | None,
    *,
    only: str | None = None,
    prompt_missing: str = "",
    traces: Traces = MappingProxyType({}),
) -> Iterator[TurnView]:
    """The turns of a transcript that `view` has: all, or those of a seat as it knows them; or `only` one of them.

    `traces` are the token traces of the conversation. Without `prompt_of` there is no prompt, and `prompt_missing` says
    why. Raises ConfigError where the one turn is not there.
    """
    heads = {head.key: head for head in view.turns}
    # A seat may not learn which turns others had: one of theirs is refused like one that never was.
    if only is not None and only not in heads:
        raise ConfigError(f"there is no turn {only!r}{f' of {view.seat}' if view.seat else ''}")
    siblings: defaultdict[tuple[str, int], list[TurnHead]] = defaultdict(list)
    for head in view.turns:
        siblings[head.agent, head.round].append(head)
    before: dict[str, str] = {}
    for turn in objects(transcript["turns"]):
        if (own := heads.get(str(turn["turn"]))) is None:
            continue
        if only in (None, own.key):
            sent = _sent(prompt_of, own.key, before.get(own.agent), prompt_missing)
            yield _turn_view(transcript, turn, own, tuple(siblings[own.agent, own.round]), sent, view.seat, traces)
        before[own.agent] = own.key


def _turn_view(
    transcript: JsonObject,
    turn: JsonObject,
    head: TurnHead,
    siblings: tuple[TurnHead, ...],
    sent: _Sent,
    seat: str,
    traces: Traces,
) -> TurnView:
    reply, receipt = json_object(turn["reply"]), json_object(turn["receipt"])
    tokens, timing = json_object(reply["tokens"]), json_object(turn.get("timing", {}))
    parts, faults = parted(turn), timing.get("faults")
    return TurnView(
        key=head.key,
        agent=head.agent,
        model="" if seat else str(turn["model"]),
        result=head.result,
        detail=head.detail,
        reply=str(reply["text"]),
        said=parts.said,
        thought=parts.thought,
        finish_reason=str(reply["finish_reason"]),
        prompt_tokens=integer(tokens.get("prompt")) or 0,
        completion_tokens=integer(tokens.get("completion")) or 0,
        cached_tokens=integer(json_object(tokens.get("timing", {})).get("cached")) or 0,
        queue_s=number(timing.get("queue_s")),
        generate_s=number(timing.get("generate_s")),
        # Faults may name the engine, which an agent does not know.
        faults=tuple(map(str, faults)) if isinstance(faults, list) and not seat else (),
        cause=str(receipt.get("cause") or ""),
        siblings=siblings,
        sampling={} if seat else _sampling(transcript, head.agent),
        prompt=sent.prompt,
        prompt_missing=sent.missing,
        previous=sent.previous,
        difference=sent.difference,
        tokens=tuple(_tokens(traces.get(head.key))),
    )


def _sampling(transcript: JsonObject, agent: str) -> dict[str, str]:
    agents = objects(json_object(transcript["task"])["agents"])
    sampling = next((each["sampling"] for each in agents if each["agent_id"] == agent), {})
    return {name: str(value) for name, value in json_object(sampling).items() if value is not None}


def _tokens(trace: TokenTrace | None) -> Iterator[TokenView]:
    """The tokens that were drawn. A trace has their ids and not their texts."""
    if trace is not None:
        drawn = zip(trace.completion_ids, trace.logprobs, strict=False)
        yield from (TokenView(f"#{token}", logprob) for token, logprob in drawn)


class _Sent(NamedTuple):
    """What a turn was sent, and how that differs from what the agent was sent before."""

    prompt: tuple[PromptMessage, ...] = ()
    missing: str = ""
    previous: str = ""
    difference: tuple[Piece, ...] = ()


def _sent(prompt_of: PromptOf | None, key: str, previous: str | None, missing: str) -> _Sent:
    if prompt_of is None:
        return _Sent(missing=missing)
    try:
        prompt = prompt_of(key)
    except MacRunnerError as fault:
        return _Sent(missing=str(fault))
    messages = tuple(PromptMessage(message.role, message.content) for message in prompt.messages)
    if previous is None:
        return _Sent(messages)
    try:
        earlier = prompt_of(previous)
    except MacRunnerError:
        return _Sent(messages)
    return _Sent(messages, "", previous, difference(prompt_text(earlier), prompt_text(prompt)))


def difference(before: str, after: str) -> tuple[Piece, ...]:
    """What of a text is the same, gone or new: by lines, and by words in lines that changed."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    # Prompts mostly begin alike, which costs nothing to find.
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    changed = _compared(old[start : len(old) - end], new[start : len(new) - end], _words)
    return tuple(_joined((("same", "".join(new[:start])), *changed, ("same", "".join(new[len(new) - end :])))))


def _shared(old: Sequence[str], new: Sequence[str]) -> int:
    """How many texts two sequences have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


_Part: TypeAlias = tuple[PieceKind, str]


def _compared(
    old: Sequence[str], new: Sequence[str], changed: Callable[[str, str], Iterable[_Part]]
) -> Iterator[_Part]:
    """The parts of two sequences of texts; what differs is given to `changed`."""
    if len(old) * len(new) > _PAIRS_MAX:
        yield from _replaced("".join(old), "".join(new))
        return
    for kind, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = "".join(old[i:j]), "".join(new[k:m])
        yield from (("same", come),) if kind == "equal" else changed(gone, come)


def _words(old: str, new: str) -> Iterator[_Part]:
    return _compared(_WORDS.findall(old), _WORDS.findall(new), _replaced)


def _replaced(old: str, new: str) -> Iterator[_Part]:
    yield "gone", old
    yield "new", new


def _joined(parts: Iterable[_Part]) -> Iterator[Piece]:
    """Neighbours of one kind as one piece; empty ones left out."""
    for kind, group in groupby((part for part in parts if part[1]), key=itemgetter(0)):
        yield Piece(kind, "".join(text for _, text in group))
