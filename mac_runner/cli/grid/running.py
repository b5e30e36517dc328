"""`mac-run FILE` of a grid: all combinations in one run, over the engines that they share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from mac_runner.cli.collecting import seldom_collecting
from mac_runner.cli.connections import concurrency_within_descriptors, connections_of
from mac_runner.cli.exits import Exit
from mac_runner.cli.grid.engines import EnginePlan, Phase, plan_engines
from mac_runner.cli.grid.parts import GridSetup, set_up_grid
from mac_runner.cli.grid.pool import Pool
from mac_runner.cli.grid.results import GridResults, gather
from mac_runner.cli.looping import run as run_loop
from mac_runner.cli.printing import report, say
from mac_runner.cli.setup import Invocation
from mac_runner.cli.stopping import stop_on_signals
from mac_runner.clock import Clock, SystemClock
from mac_runner.config import Grid
from mac_runner.descriptors import limit, runs_within
from mac_runner.reports import PARQUET_HINT, has_parquet, write_grid
from mac_runner.scheduler import Progress, run_pooled
from mac_runner.status import Display, Meter, choose_display, read_progress, tick
from mac_runner.store import Need, Survey, grid_accounting, open_grid, write_tables
from mac_runner.store.space import TRANSCRIPT_BYTES_MIN


def run_grid(invocation: Invocation, grid: Grid) -> Exit:
    """Run what is left of every combination, print the table, and say how it ended."""
    clock = SystemClock()
    setup = set_up_grid(invocation, grid)
    surveys = {part.slug: part.survey() for part in setup.parts}
    pending = [part for part in setup.parts if not surveys[part.slug].is_complete]
    if not pending and setup.is_known:
        return _told_again(invocation, setup, clock)
    display = choose_display(sys.stderr, live=invocation.is_live, quiet=invocation.is_quiet)
    engines = plan_engines(pending, setup.parts, clock, display.say, is_pulling=invocation.is_pulling)
    phases = engines.phases(pending)
    concurrency = concurrency_within_descriptors(
        display.say,
        wanted=max((connections_of(engine.definition for engine in phase.engines) for phase in phases), default=0),
        concurrency=invocation.concurrency,
        runs_open=min(len(pending), runs_within(limit())),
    )
    needs = [Need(surveys[part.slug].left, max(TRANSCRIPT_BYTES_MIN, part.transcript_bytes_min)) for part in pending]
    with open_grid(setup.directory, asked=setup.asked, clock=clock, needs=needs, say=display.say) as grid_run:
        done = sum(found.finished + found.failed for found in surveys.values())
        with Pool(grid_run, engines.served, clock, done=done) as pool, seldom_collecting():
            session = _Session(invocation, setup, surveys, pool, display, clock, concurrency=concurrency)
            is_done = run_loop(session.play(phases, engines))
        found = {part.slug: part.survey().is_complete for part in pending}
        results = gather(setup, grid_run.record, grid_run.accounting(), lambda part: found.get(part.slug, True))
        grid_run.write_tables(results.files())
    exit_code = _print(invocation, results)
    if not is_done:
        _say(invocation, f"interrupted: {_progress(results)}; run the same command again to go on")
        return Exit.INTERRUPTED
    _say(invocation, f"written to {setup.directory}")
    return exit_code


class _Session:
    """The scheduler and the status view side by side, phase by phase."""

    def __init__(
        self,
        invocation: Invocation,
        setup: GridSetup,
        surveys: dict[str, Survey],
        pool: Pool,
        display: Display,
        clock: Clock,
        *,
        concurrency: int | None,
    ) -> None:
        self._invocation = invocation
        self._concurrency = concurrency
        self._setup = setup
        self._pool = pool
        self._display = display
        self._clock = clock
        self._through = sum(found.is_complete for found in surveys.values())
        self._progress = Progress(
            planned=sum(found.planned for found in surveys.values()),
            finished=sum(found.finished for found in surveys.values()),
            failed=sum(found.failed for found in surveys.values()),
        )

    async def play(self, phases: Sequence[Phase], engines: EnginePlan) -> bool:
        """Play all phases, or as many as there are before a stop; whether all is done."""
        stop = asyncio.Event()
        with stop_on_signals(stop, self._display.say):
            showing = asyncio.create_task(self._show())
            try:
                for phase in phases:
                    if stop.is_set() or not await self._play(phase, stop):
                        return False
                return True
            finally:
                showing.cancel()
                await asyncio.wait([showing])

    async def _play(self, phase: Phase, stop: asyncio.Event) -> bool:
        backends = {
            engine.name: engine.build(self._clock, self._display.say, is_pulling=self._invocation.is_pulling)
            for engine in phase.engines
        }
        self._pool.begin(phase.parts)
        result = await run_pooled(
            work=self._pool,
            backends=backends,
            log=self._pool,
            concurrency=self._concurrency,
            clock=self._clock,
            stop=stop,
            progress=self._progress,
            say=self._display.say,
        )
        return not result.interrupted

    async def _show(self) -> None:
        meter = Meter()
        total, grid = len(self._setup.parts), self._setup.grid

        def name() -> str:
            return f"{grid.name}, combination {min(total, self._through + self._pool.begun)} of {total}"

        await tick(
            self._display,
            lambda: meter.frame(read_progress(self._progress, experiment_name=name(), profile=grid.profile)),
            self._clock,
        )


def _told_again(invocation: Invocation, setup: GridSetup, clock: Clock) -> Exit:
    """All is done: print the table, and see that it stands in the directory."""
    assert setup.known is not None
    _say(invocation, f"{setup.directory}: all {len(setup.parts)} combinations are complete; nothing to run")
    accounting = grid_accounting(setup.directory, setup.grid.name)
    results = gather(setup, setup.known, accounting, lambda part: True)
    write_tables(setup.directory, results.files(), clock=clock)
    return _print(invocation, results)


def _print(invocation: Invocation, results: GridResults) -> Exit:
    """Print the table; whether conversations failed decides the exit code."""
    if not invocation.is_quiet:
        with report() as stream:
            write_grid(results.summary, results.rows, stream)
        if not has_parquet():
            say(PARQUET_HINT)
    conversations = results.summary["conversations"]
    has_failed = isinstance(conversations, dict) and bool(conversations.get("failed"))
    return Exit.FAILURES if has_failed else Exit.OK


def _progress(results: GridResults) -> str:
    combinations = results.summary["combinations"]
    assert isinstance(combinations, dict)
    return f"{combinations['complete']} of {combinations['asked']} combinations are complete"


def _say(invocation: Invocation, text: str) -> None:
    if not invocation.is_quiet:
        say(text)
