"""`mac-run verify RUN`: check a run directory, and play every transcript again."""

from __future__ import annotations

import sys
from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.grid.tables import check_tables
from mac_runner.cli.printing import report
from mac_runner.cli.recorded import recorded_experiment
from mac_runner.cli.results import summary_of
from mac_runner.environments.base import Environment
from mac_runner.environments.building import build_environment
from mac_runner.environments.replay import replay
from mac_runner.printable import printable
from mac_runner.status import progress_bar
from mac_runner.store import (
    GridRecord,
    VerifyReport,
    build_transcript,
    has_run,
    is_grid,
    read_grid,
    read_run,
    replies_of,
    task_of,
    verify_run,
)
from mac_runner.store.identity import repair_advice
from mac_runner.store.records import entry
from mac_runner.types import JsonObject

_FINDINGS_SHOWN_MAX = 50


def verify(directory: Path) -> Exit:
    """Print what was checked and what was found; FAILURES when anything is wrong. Of a grid all combinations."""
    if (grid := read_grid(directory) if is_grid(directory) else None) is not None:
        return _verify_all(directory, grid)
    contents = read_run(directory)
    environment = build_environment(recorded_experiment(contents).experiment)
    with progress_bar(sys.stderr, f"verify {directory.name}", total=contents.counts.done) as advance:

        def rebuilt(transcript: JsonObject) -> JsonObject:
            advance()
            return rebuild(transcript, environment)

        found = verify_run(directory, rebuild=rebuilt, summarise=summary_of)
    with report() as stream:
        stream.write(_told(found) + "\n")
        if found.lost or found.damaged:
            stream.write(f"{repair_advice(directory)}, as far as that is whole\n")
    return Exit.OK if found.ok else Exit.FAILURES


def _verify_all(directory: Path, grid: GridRecord) -> Exit:
    """Every combination that has begun, one after the other, and then the tables over them."""
    slugs = [entry.slug for entry in grid.entries]
    begun = [slug for slug in slugs if has_run(directory / slug)]
    with report() as stream:
        stream.write(f"{len(slugs)} combinations, {len(slugs) - len(begun)} of them not begun\n")
    worst = Exit.OK
    for slug in begun:
        with report() as stream:
            stream.write(f"\n{slug}\n")
        worst = max(worst, verify(directory / slug))
    checked = check_tables(directory, grid)
    with report() as stream:
        stream.write(f"\n{_tables_told(checked)}\n")
    return worst if checked.ok else max(worst, Exit.FAILURES)


def rebuild(transcript: JsonObject, environment: Environment) -> JsonObject:
    """The transcript that `transcript`'s task and replies make when they are played again, every prompt rendered anew.

    A prompt that comes out different shows as another digest in its turn. Raises ConversationError when a reply
    answers no open turn.
    """
    task = task_of(transcript)
    conversation = environment.open(task)
    played = replay(conversation, replies_of(transcript), check_prompts=True)
    failure = transcript["failure"]
    return build_transcript(
        experiment_name=entry(transcript, "experiment_name", str),
        environment=entry(transcript, "environment", str),
        task=task,
        outcome=None if failure is not None else conversation.outcome,
        record=conversation.record(),
        fingerprint=conversation.fingerprint(),
        turns=played.records,
        failure=str(failure) if failure is not None else None,
        timing={},
    )


def _told(report: VerifyReport) -> str:
    counts = (
        f"attempted {report.attempted}, acknowledged {report.acknowledged}; lost {report.lost}, "
        f"duplicated {report.duplicated}, unexpected {report.unexpected}, damaged {report.damaged}, "
        f"mismatched {report.mismatched}"
    )
    verdict = "every transcript is there once and plays again to the same end" if report.ok else "NOT as promised:"
    return "\n".join([counts, verdict, *_listed(report)])


def _tables_told(report: VerifyReport) -> str:
    verdict = "the tables are what the combinations make of them" if report.ok else "the tables are NOT as promised:"
    return "\n".join([verdict, *_listed(report)])


def _listed(report: VerifyReport) -> list[str]:
    """The findings, as far as there is room, and the notes."""
    shown = [f"- {finding.kind}: {printable(finding.text)}" for finding in report.findings[:_FINDINGS_SHOWN_MAX]]
    hidden = len(report.findings) - len(shown)
    more = [f"… and {hidden} more"] if hidden > 0 else []
    return [*shown, *more, *(f"note: {printable(note)}" for note in report.notes)]
