"""`mac-run merge OUT RUN…`: the parts of an experiment made into one run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import say
from mac_runner.cli.recorded import recorded_plan
from mac_runner.cli.results import print_summary, summary_of
from mac_runner.clock import SystemClock
from mac_runner.store import merge_runs


def merge(target: Path, sources: Sequence[Path], *, is_quiet: bool) -> Exit:
    """Merge, print the summary of the whole, and say what is still missing, which is said in any case."""
    merged = merge_runs(target, sources, summarise=summary_of, plan=recorded_plan, clock=SystemClock())
    exit_code = print_summary(merged.summary, is_quiet=is_quiet)
    counts = merged.contents.counts
    ended = f"{counts.done} of {counts.planned} conversations have ended"
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
