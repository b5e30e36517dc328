"""Public benchmarks: their releases, converted to files of questions, and their scores. One module a benchmark.

Those of BBQ, which are of stances, are in `bias.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from mac_runner.environments.discussion.formats.bbq import BBQ
from mac_runner.environments.discussion.formats.difference_awareness import DIFFERENCE_AWARENESS
from mac_runner.environments.discussion.formats.discrim_eval import DISCRIM_EVAL
from mac_runner.environments.discussion.formats.format import Format
from mac_runner.environments.discussion.outcome import Decision, Treatment
from mac_runner.environments.discussion.questions import Question, read_questions
from mac_runner.problems import config_error

FORMATS: Final[Mapping[str, Format]] = {
    "bbq": BBQ,
    "discrim-eval": DISCRIM_EVAL,
    "difference-awareness": DIFFERENCE_AWARENESS,
}
_BY_DATASET: Final = {each.dataset: each for each in FORMATS.values()}


def convert(name: str, files: Mapping[str, bytes], metadata: tuple[str, bytes] | None = None) -> bytes:
    """The question file that `files`, in the format `name`, amount to. Raises ConfigError naming every bad line.

    `metadata` is the name and content of a file of metadata, where the format has one.
    """
    of = FORMATS[name]
    known = None if metadata is None or of.metadata is None else of.metadata(*metadata)
    questions: list[Question] = []
    problems: list[str] = []
    for place, data in of.lines(files):
        try:
            if isinstance(data, ValueError):
                raise data
            question = of.question(data, PurePath(place.rpartition(":")[0]).stem)
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
    """What the scores of its benchmark need of `question`; None for a question of no benchmark that needs any."""
    of = _BY_DATASET.get(question.source_dataset)
    return None if of is None or of.item is None else of.item(question)
