"""Public benchmarks: their releases, converted to files of questions, and what their scores need of a question.

One module a benchmark, with its scores; those of BBQ are in `bias.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Final

from mac_runner.environments.discussion.formats.bbq import bbq_question
from mac_runner.environments.discussion.formats.bbq_metadata import BbqMetadata
from mac_runner.environments.discussion.formats.difference_awareness import (
    difference_awareness_lines,
    difference_awareness_question,
    treatment_item,
)
from mac_runner.environments.discussion.formats.discrim_eval import decision_item, discrim_eval_question
from mac_runner.environments.discussion.outcome import Decision, Treatment
from mac_runner.environments.discussion.questions import Question, json_lines, read_questions
from mac_runner.problems import config_error
from mac_runner.types import JsonObject

FORMATS: Final[Mapping[str, Callable[[JsonObject, str], Question]]] = {
    "bbq": bbq_question,
    "discrim-eval": discrim_eval_question,
    "difference-awareness": difference_awareness_question,
}
"""For each format, how a line of it, in a file of a given name, becomes a question. Raises ValueError."""

_LINES: Final[Mapping[str, Callable[[Mapping[str, bytes]], Iterator[tuple[str, JsonObject | ValueError]]]]] = {
    "difference-awareness": difference_awareness_lines,
}
"""How the files of a format are taken apart into lines, each with its place, where they are no JSONL."""


METADATA: Final[Mapping[str, Callable[[str, bytes], BbqMetadata]]] = {"bbq": BbqMetadata}
"""For formats that take a file of metadata, what reads it, by name and content. Raises ConfigError."""


def convert(name: str, files: Mapping[str, bytes], metadata: tuple[str, bytes] | None = None) -> bytes:
    """The question file that `files`, in the format `name`, amount to. Raises ConfigError naming every bad line.

    `metadata` is the name and content of a file that `METADATA` reads.
    """
    known = None if metadata is None else METADATA[name](*metadata)
    questions: list[Question] = []
    problems: list[str] = []
    for place, data in _LINES.get(name, json_lines)(files):
        try:
            if isinstance(data, ValueError):
                raise data
            question = FORMATS[name](data, PurePath(place.rpartition(":")[0]).stem)
            questions.append(question if known is None else known.joined(question))
        except ValueError as fault:
            problems.append(f"{place}: {fault}")
    if problems:
        raise config_error(problems)
    if known is not None:
        known.check(questions)
    lines = (json.dumps(question.to_json(), ensure_ascii=False) for question in questions)
    written = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")
    read_questions({"what they amount to": written})
    return written


def benchmark_item(question: Question) -> Decision | Treatment | None:
    """What the scores of its benchmark need of `question`; None for a question of no such benchmark.

    A question that lacks some of it has an item with None in its place: results leave it out and count it.
    """
    match question.source_dataset:
        case "DiscrimEval":
            return decision_item(question)
        case "DifferenceAwareness":
            return treatment_item(question)
        case _:
            return None
