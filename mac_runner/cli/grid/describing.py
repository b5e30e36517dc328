"""`mac-run FILE --dry-run` of a grid: the tree of its combinations, and how much of each is left; touches nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from mac_runner.cli.exits import Exit
from mac_runner.cli.grid.engines import EnginePlan, plan_engines
from mac_runner.cli.grid.parts import GridSetup, Part, set_up_grid
from mac_runner.cli.printing import report, say
from mac_runner.cli.setup import Invocation
from mac_runner.clock import SystemClock
from mac_runner.config import Grid, in_words
from mac_runner.printable import printable
from mac_runner.store import Survey


def describe_grid(invocation: Invocation, grid: Grid) -> Exit:
    """Print what would run."""
    setup = set_up_grid(invocation, grid)
    surveys = {part.slug: part.survey() for part in setup.parts}
    engines = plan_engines(
        setup.parts,
        setup.parts,
        SystemClock(),
        lambda line: None if invocation.is_quiet else say(line),
        is_pulling=False,
    )
    with report() as stream:
        stream.write("\n".join(printable(line) for line in _lines(setup, surveys, engines)) + "\n")
    return Exit.OK


def _lines(setup: GridSetup, surveys: Mapping[str, Survey], engines: EnginePlan) -> Iterator[str]:
    counts = Counter[str]()
    for found in surveys.values():
        counts += Counter(
            planned=found.planned,
            finished=found.finished,
            failed=found.failed,
            half_done=found.half_done,
            replies=found.recorded_replies,
            untouched=found.untouched,
        )
    complete = sum(found.is_complete for found in surveys.values())
    yield f"grid           {setup.grid.name}, profile {setup.grid.profile}"
    yield f"run directory  {setup.directory}"
    yield f"combinations   {len(setup.parts)} asked for: {complete} complete, {len(setup.parts) - complete} to run"
    yield (
        f"conversations  {counts['planned']} asked for: {counts['finished']} finished, {counts['failed']} failed, "
        f"{counts['half_done']} half done ({counts['replies']} replies recorded), {counts['untouched']} not begun"
    )
    for number, phase in enumerate(phases := engines.phases(setup.parts), start=1):
        names = ", ".join(f"{engine.name} ({engine.definition.backend})" for engine in phase.engines)
        which = "engines" if len(phases) == 1 else f"phase {number}"
        yield f"{which:<15}{names}, shared by {len(phase.parts)} combinations"
    if setup.left_out:
        yield f"left out       {len(setup.left_out)} of earlier, not asked for any more: {', '.join(setup.left_out)}"
    yield ""
    yield from _tree(setup.parts, surveys)


def _tree(parts: Sequence[Part], surveys: Mapping[str, Survey]) -> Iterator[str]:
    """Every combination with its values, what stands before it alike said once."""
    before: list[tuple[str, str]] = []
    for part in parts:
        values = [(name, in_words({name: value})) for name, value in part.combination.values.items()]
        alike = 0
        while alike < min(len(before), len(values) - 1) and before[alike] == values[alike]:
            alike += 1
        for depth in range(alike, len(values) - 1):
            yield f"{'  ' * depth}{values[depth][1]}"
        found = surveys[part.slug]
        left = "complete" if found.is_complete else f"{found.finished + found.failed} of {found.planned} ended"
        yield f"{'  ' * (len(values) - 1)}{values[-1][1]}  [{part.slug}: {left}]"
        yield from (f"{'  ' * len(values)}changed: {change}" for change in found.changed_settings)
        before = values
