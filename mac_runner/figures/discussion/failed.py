"""Right answers with failed discussions counted as wrong."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.environments.discussion.measures import ACCURACY
from mac_runner.figures import failures
from mac_runner.figures.data import RunData
from mac_runner.figures.failures import failures_figure
from mac_runner.figures.model import Figure
from mac_runner.measures import Counted


def failed_figure(runs: Sequence[tuple[RunData, Counted]]) -> Figure | None:
    """How often answers are right with and without failed discussions; None where none failed or has a key."""
    rates, failed, finished = list[failures.Counted](), 0, 0
    for data, counted in runs:
        missing = sum(ended.outcome is None for ended in data.ended())
        failed += missing
        for (kind, *_), right in counted.kept[ACCURACY.place].items() if missing else ():
            words, rate = ACCURACY.told("answers").said(str(kind)), right.asked
            finished += rate.conversations if kind == "group" else 0
            label = words if len(runs) == 1 else f"{words}, {data.name}"
            rates.append(failures.Counted(label, rate.clustered(), round(rate.n / max(1, rate.conversations)), missing))
    return failures_figure(
        rates,
        name="accuracy-with-failed",
        title="How often are answers right if failed discussions count as wrong?",
        lost="wrong answers of all its participants and of the group",
        failed=failed,
        finished=finished,
        units="discussions",
    )
