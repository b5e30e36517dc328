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
    """Parts the text of one completion. One that begins in `Stage.ANSWER` is passed on as it is.

    White space that is kept back is looked at once, however many pieces it comes in.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._blank: list[str] = []
        self._kept = ""
        self._is_behind_tag = stage is Stage.THOUGHT

    def push(self, text: str) -> Said:
        """What the next piece adds."""
        self._kept += text
        if self._stage is Stage.BEFORE:
            self._look_for_thought()
        thinking = self._thought() if self._stage is Stage.THOUGHT else ""
        return Said(thinking, self._answer() if self._stage is Stage.ANSWER else "")

    def parse(self, text: str) -> Said:
        """What a whole text says."""
        return self.push(text).then(self.finish())

    def finish(self) -> Said:
        """What was kept back, when nothing more comes."""
        text, self._blank, self._kept = "".join((*self._blank, self._kept)), [], ""
        return Said(thinking=text) if self._stage is Stage.THOUGHT else Said(content=text)

    def _look_for_thought(self) -> None:
        start = self._kept.lstrip()
        self._blank.append(self._kept[: len(self._kept) - len(start)])
        self._kept = start
        if start.startswith(OPEN):
            self._enter(Stage.THOUGHT, start.removeprefix(OPEN))
        elif not OPEN.startswith(start):
            self._stage = Stage.ANSWER

    def _thought(self) -> str:
        thought, tag, rest = self._kept.partition(CLOSE)
        if tag:
            said = self._shown(thought.rstrip())
            self._enter(Stage.ANSWER, rest)
            return said
        sure = _without_start_of(CLOSE, thought)
        said = sure.rstrip()
        self._kept = thought[len(sure) :]
        text = self._shown(said)
        self._blank.append(sure[len(said) :])
        return text

    def _answer(self) -> str:
        text, self._kept = self._kept, ""
        return self._shown(text)

    def _enter(self, stage: Stage, rest: str) -> None:
        self._stage, self._blank, self._kept, self._is_behind_tag = stage, [], rest, True

    def _shown(self, text: str) -> str:
        """A text with the white space kept back before it; nothing as long as there is no text."""
        if self._is_behind_tag:
            text = text.lstrip()
        if not text:
            return ""
        if self._is_behind_tag:
            self._is_behind_tag, self._blank = False, []
        text, self._blank = "".join((*self._blank, text)), []
        return text


def _without_start_of(tag: str, text: str) -> str:
    """The text without an end that could become the tag."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    size = next((size for size in sizes if tag.startswith(text[-size:])), 0)
    return text[: len(text) - size]
