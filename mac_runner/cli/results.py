"""The summary of a run directory: made, printed, and turned into an exit code."""

from __future__ import annotations

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import report
from mac_runner.reports import summarise, write_summary
from mac_runner.store import RunContents
from mac_runner.types import JsonObject


def summary_of(contents: RunContents) -> JsonObject:
    """What `summary.json` says of a run directory."""
    return summarise(
        experiment_name=contents.experiment_name,
        rows=contents.rows(),
        planned=contents.counts.planned,
        accounting=contents.accounting,
    )


def print_summary(summary: JsonObject, *, is_quiet: bool) -> Exit:
    """Print the summary; whether conversations failed decides the exit code."""
    if not is_quiet:
        with report() as stream:
            write_summary(summary, stream)
    return Exit.FAILURES if summary["failures"] else Exit.OK
