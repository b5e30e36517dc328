"""Right answers with failed discussions counted as wrong."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.environments.discussion.results.outcome import DiscussionResult, Share
from mac_runner.environments.discussion.results.rates import Rate
from mac_runner.figures.data import RunData
from mac_runner.figures.discussion.accuracy import KINDS
from mac_runner.figures.failures import Counted, failures_figure
from mac_runner.figures.model import Figure
from mac_runner.results import parsed


def failed_figure(runs: Sequence[RunData]) -> Figure | None:
    """How often answers are right with and without failed discussions; None where none failed or has a key."""
    counted, failed, finished = list[Counted](), 0, 0
    for data in runs:
        missing, found = _rates(data)
        failed += missing
        finished += found["group"].discussions if found else 0
        for kind, rate in found.items():
            label = KINDS[kind] if len(runs) == 1 else f"{KINDS[kind]}, {data.name}"
            counted.append(Counted(label, rate.clustered(), round(rate.n / max(1, rate.discussions)), missing))
    return failures_figure(
        counted,
        name="accuracy-with-failed",
        title="How often are answers right if failed discussions count as wrong?",
        lost="wrong answers of all its participants and of the group",
        failed=failed,
        finished=finished,
        units="discussions",
    )


def _rates(data: RunData) -> tuple[int, dict[str, Rate]]:
    """How many discussions failed, and by kind of answer the right ones of those that finished."""
    failed = sum(ended.outcome is None for ended in data.ended())
    rates = {kind: Rate() for kind in KINDS} if failed else {}
    for ended in data.ended() if failed else ():
        if ended.outcome is None:
            continue
        result = parsed(DiscussionResult, ended.outcome, f"the index row of {ended.task_id!r}, outcome")
        if result.correct_answer_id is not None:
            for kind, rate in rates.items():
                answers = [*result.of_kind(kind)]
                rate.add(Share(answers.count(result.correct_answer_id), len(answers)), result.question_id)
    return failed, rates
