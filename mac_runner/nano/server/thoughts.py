"""A model's thought told apart from its answer: `<think>` thought `</think>` answer. Pure.

Text comes in pieces of any size. What could still become a tag is kept back, and white space beside a tag belongs to
nobody.
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
        """This, and what followed."""
        return Said(self.thinking + more.thinking, self.content + more.content)


class Stage(Enum):
    """Where a completion is."""

    BEFORE = auto()  # If it begins with the tag, a thought comes first.
    THOUGHT = auto()
    ANSWER = auto()


class ThoughtParser:
    """Parts the text of one completion. One that begins in `Stage.ANSWER` is passed on as it is."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._kept = ""
        self._is_behind_tag = stage is Stage.THOUGHT

    def push(self, text: str) -> Said:
        """What the next piece adds."""
        self._kept += text
        if self._stage is Stage.BEFORE:
            self._look_for_thought()
        thinking = self._thought() if self._stage is Stage.THOUGHT else ""
        return Said(thinking, self._taken(len(self._kept)) if self._stage is Stage.ANSWER else "")

    def parse(self, text: str) -> Said:
        """What a whole text says."""
        return self.push(text).then(self.finish())

    def finish(self) -> Said:
        """What was kept back, when nothing more comes."""
        text, self._kept = self._kept, ""
        return Said(thinking=text) if self._stage is Stage.THOUGHT else Said(content=text)

    def _look_for_thought(self) -> None:
        start = self._kept.lstrip()
        if start.startswith(OPEN):
            self._enter(Stage.THOUGHT, start.removeprefix(OPEN))
        elif not OPEN.startswith(start):
            self._stage = Stage.ANSWER

    def _thought(self) -> str:
        thought, tag, rest = self._kept.partition(CLOSE)
        if not tag:
            return self._taken(len(_without_start_of(CLOSE, self._kept).rstrip()))
        said = self._taken(len(thought.rstrip()))
        self._enter(Stage.ANSWER, rest)
        return said

    def _enter(self, stage: Stage, rest: str) -> None:
        self._stage, self._kept, self._is_behind_tag = stage, rest, True

    def _taken(self, num_chars: int) -> str:
        """So much of what was kept back, without the white space behind a tag."""
        text, self._kept = self._kept[:num_chars], self._kept[num_chars:]
        if self._is_behind_tag:
            text = text.lstrip()
            self._is_behind_tag = not text
        return text


def _without_start_of(tag: str, text: str) -> str:
    """The text without an end that could become the tag."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    size = next((size for size in sizes if tag.startswith(text[-size:])), 0)
    return text[: len(text) - size]
