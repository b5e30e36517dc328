"""What a format says of itself, and how it reads the fields of a line of its release."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from mac_runner.environments.discussion.outcome import Decision, Treatment
from mac_runner.environments.discussion.questions import Question, json_lines
from mac_runner.measures import Measure
from mac_runner.types import JsonObject, JsonValue

WORD_CHARS_MAX: Final = 200
"""What an outcome keeps of a word of the metadata."""


class Metadata(Protocol):
    """A file of metadata beside the release."""

    def joined(self, question: Question) -> Question:
        """The question with what the file says of it. Raises ValueError."""
        ...

    def check(self, questions: Sequence[Question]) -> None:
        """Refuse a file that does not fit all of the questions. Raises ConfigError."""
        ...


class Format(NamedTuple):
    """A benchmark: how its release becomes questions, and its scores."""

    dataset: str
    """The `source_dataset` of its questions."""
    question: Callable[[JsonObject, str], Question]
    """From a line of it, in a file of a given name. Raises ValueError."""
    lines: Callable[[Mapping[str, bytes]], Iterator[tuple[str, JsonObject | ValueError]]] = json_lines
    """How its files are taken apart into lines, each with its place."""
    metadata: Callable[[str, bytes], Metadata] | None = None
    """What reads a file of metadata, by name and content. Raises ConfigError."""
    item: Callable[[Question], Decision | Treatment] | None = None
    """What its scores need of a question. Where the question lacks some of it, None is in its place."""
    measures: tuple[Measure, ...] = ()


def word_field(line: JsonObject, key: str) -> str:
    """A number or a word. Raises ValueError for anything else."""
    if (word := word_of(value := line.get(key))) is None:
        raise ValueError(f"{key}: found {value!r}; allowed: a number or a word")
    return word


def word_of(value: JsonValue) -> str | None:
    """A word or a number as one word; an age of 20.0 is 20."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return str(value).strip()[:WORD_CHARS_MAX] or None
    except ValueError:  # A number of too many digits.
        return None
