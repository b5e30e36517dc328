"""`mac-run verify`, `retry` and `merge`: work on a run directory after the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mac_runner.cli.process import Exit, report, say
from mac_runner.cli.run import ending, player_of, print_results
from mac_runner.clock import SystemClock
from mac_runner.data.training import WITH_TOKENS
from mac_runner.printable import printable
from mac_runner.runs.maintenance import Repaired, Verified, begun_in, repair_all, retry_failed, verify_all
from mac_runner.runs.play import Results
from mac_runner.runs.recorded import recorded_plan
from mac_runner.runs.summary import summary_of
from mac_runner.status import progress_bar
from mac_runner.store import Disk, VerifyReport, merge_runs, read_run
from mac_runner.store.identity import run_command
from mac_runner.store.layout import Layout, repair_advice

_FINDINGS_SHOWN_MAX = 50


def verify(directory: Path) -> Exit:
    """Print what was checked and found; FAILURES when anything is wrong."""
    begun = begun_in(directory)
    for line in begun.not_begun:
        _print(line)
    exit_code = Exit.OK
    for found in verify_all(directory, lambda what, total: progress_bar(sys.stderr, what, total=total)):
        if begun.not_begun:
            _print("" if found.is_grid else f"\n{found.directory.relative_to(directory)}")
        _print("\n".join(_verdict(found)))
        exit_code = exit_code if found.report.ok else Exit.FAILURES
    return exit_code


def _verdict(found: Verified) -> list[str]:
    checked = found.report
    if found.is_grid:
        right = "the journal of the grid is whole"
        return [right if checked.ok else "the journal of the grid is NOT as promised:", *_findings(checked)]
    counts = (
        f"attempted {checked.attempted}, acknowledged {checked.acknowledged}; lost {checked.lost}, "
        f"unexpected {checked.unexpected}, damaged {checked.damaged}, mismatched {checked.mismatched}"
    )
    if checked.without_tokens:
        counts += f", without tokens {checked.without_tokens}"
    right = "every transcript is there once"
    right += " and plays again to the same end" if checked.is_played else ", and no digest or row is wrong"
    lines = [counts, right if checked.ok else "NOT as promised:", *_findings(checked)]
    if checked.is_repairable:
        lines.append(f"{repair_advice(found.directory)}, as far as that is whole")
    if checked.has_damaged_journal:
        first = "then " if checked.is_repairable else ""
        lines.append(
            f"{first}`mac-run merge NEW {found.directory}` writes the run to NEW without the damaged lines "
            "of its journal, which no command writes again: what has ended needs its transcripts alone"
        )
    if checked.without_tokens:
        lines.append(
            f"`mac-run verify {found.directory} --repair` writes token traces again from the journal, where that has "
            f"them all. Without them the run cannot be exported as {', '.join(WITH_TOKENS)} or by the table traces, "
            "and these conversations cannot be forked. Everything else needs only their transcripts."
        )
    return lines


def _findings(checked: VerifyReport) -> list[str]:
    """The first findings, and all notes."""
    shown = [f"- {finding.kind}: {printable(finding.text)}" for finding in checked.findings[:_FINDINGS_SHOWN_MAX]]
    hidden = len(checked.findings) - len(shown)
    more = [f"… and {hidden} more"] if hidden > 0 else []
    return [*shown, *more, *(f"note: {printable(note)}" for note in checked.notes)]


def repair(directory: Path, *, is_quiet: bool) -> Exit:
    """Write damaged transcripts again; FAILURES when the journal lacks something and conversations are open again."""
    results = []
    for repaired in repair_all(directory, SystemClock()):
        _say_repaired(repaired, is_quiet=is_quiet)
        results.append(repaired)
    if not results and not is_quiet:
        say(f"{directory}: every transcript is what was acknowledged; nothing to repair")
    return Exit.OK if all(repaired.is_whole for repaired in results) else Exit.FAILURES


def _say_repaired(repaired: Repaired, *, is_quiet: bool) -> None:
    directory, repairs = repaired.directory, repaired.repairs
    if not is_quiet:
        for line in repairs.in_words():
            say(f"{directory}: {line}")
    again = run_command(Disk(), directory)
    if repairs.reopened:
        say(f"{directory}: conversations open again: {len(repairs.reopened)}; go on with: {again}")
    elif not is_quiet:
        _say_tables(directory)


def retry(directory: Path, *, concurrency: int | None, is_quiet: bool, is_live: bool | None) -> Exit:
    """Play the failed conversations again; a retry that was interrupted goes on."""
    run = read_run(directory)
    player = player_of(concurrency=concurrency, is_quiet=is_quiet, is_live=is_live)
    results = retry_failed(run, player)
    if results is None:
        if not is_quiet:
            say(f"{directory}: no conversation has failed; nothing to retry")
        return print_results(Results(summary_of(run), ""), directory, is_quiet=is_quiet)
    exit_code = ending(results, print_results(results, directory, is_quiet=is_quiet), is_quiet=is_quiet)
    if not is_quiet:
        _say_tables(directory)
    return exit_code


def _say_tables(directory: Path) -> None:
    """Say which command updates the tables of the grid that a run belongs to."""
    if (grid := Layout.at(Disk(), directory).grid) is not None:
        say(f"{grid}: its tables are brought up to date by: {run_command(Disk(), directory)}")


def merge(target: Path, sources: Sequence[Path], *, is_quiet: bool) -> Exit:
    """Merge, and print the summary of the whole; what is still missing is said even if quiet."""
    merged = merge_runs(target, sources, summarise=summary_of, plan=recorded_plan, clock=SystemClock())
    counts = merged.contents.counts
    ended = f"{counts.done} of {counts.planned} conversations have ended"
    exit_code = print_results(Results(merged.summary, ended), target, is_quiet=is_quiet)
    is_whole = not merged.missing and counts.done == counts.planned
    if not is_quiet:
        for note in merged.notes:
            say(note)
        say(f"merged {len(sources)} runs into {target}: {ended}")
    elif not is_whole:
        say(f"{target}: {ended}")
    for warning in merged.warnings:
        say(warning)
    if merged.missing:
        say(f"not among them: {', '.join(f'shard {shard}' for shard in merged.missing)}")
    if not is_whole:
        say(f"what is missing can be run with: mac-run FILE --out {target}")
    return exit_code


def _print(text: str) -> None:
    with report() as stream:
        stream.write(f"{text}\n")
