"""A model's thought, separated from its answer: `<think>` thought `</think>` answer.

Text comes in pieces of any size. What could still become a tag is held back. White space beside a tag is dropped.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

OPEN = "<think>"
CLOSE = "</think>"


class Said(NamedTuple):
    """What a piece of text adds to the thought and to the answer."""

    thinking: str = ""
    content: str = ""

    def then(self, more: Said) -> Said:
        """This, and what follows."""
        return Said(self.thinking + more.thinking, self.content + more.content)


class Stage(Enum):
    """Where a completion is."""

    BEFORE = auto()  # If it begins with the tag, a thought comes first.
    THOUGHT = auto()
    ANSWER = auto()


class ThoughtParser:
    """Splits the text of one completion. A text that begins in `Stage.ANSWER` is passed on as it is.

    White space that is held back is looked at once, however many pieces it comes in.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._blank: list[str] = []
        self._held = ""
        self._is_after_tag = stage is Stage.THOUGHT

    def push(self, text: str) -> Said:
        """What the next piece adds."""
        self._held += text
        if self._stage is Stage.BEFORE:
            self._look_for_thought()
        thinking = self._thought() if self._stage is Stage.THOUGHT else ""
        return Said(thinking, self._answer() if self._stage is Stage.ANSWER else "")

    def parse(self, text: str) -> Said:
        """The thought and the answer of a whole text."""
        return self.push(text).then(self.finish())

    def finish(self) -> Said:
        """The text that was held back, at the end."""
        text, self._blank, self._held = "".join((*self._blank, self._held)), [], ""
        return Said(thinking=text) if self._stage is Stage.THOUGHT else Said(content=text)

    def _look_for_thought(self) -> None:
        start = self._held.lstrip()
        self._blank.append(self._held[: len(self._held) - len(start)])
        self._held = start
        if start.startswith(OPEN):
            self._enter(Stage.THOUGHT, start.removeprefix(OPEN))
        elif not OPEN.startswith(start):
            self._stage = Stage.ANSWER

    def _thought(self) -> str:
        thought, tag, rest = self._held.partition(CLOSE)
        if tag:
            said = self._shown(thought.rstrip())
            self._enter(Stage.ANSWER, rest)
            return said
        sure = _without_start_of(CLOSE, thought)
        said = sure.rstrip()
        self._held = thought[len(sure) :]
        text = self._shown(said)
        self._blank.append(sure[len(said) :])
        return text

    def _answer(self) -> str:
        text, self._held = self._held, ""
        return self._shown(text)

    def _enter(self, stage: Stage, rest: str) -> None:
        self._stage, self._blank, self._held, self._is_after_tag = stage, [], rest, True

    def _shown(self, text: str) -> str:
        """A text with the white space held back before it; nothing until there is a text."""
        if self._is_after_tag:
            text = text.lstrip()
        if not text:
            return ""
        if self._is_after_tag:
            self._is_after_tag, self._blank = False, []
        text, self._blank = "".join((*self._blank, text)), []
        return text


def _without_start_of(tag: str, text: str) -> str:
    """The text without an end that could become the tag."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    size = next((size for size in sizes if tag.startswith(text[-size:])), 0)
    return text[: len(text) - size]
