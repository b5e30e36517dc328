"""Plays an experiment set to its end, or as far as it gets.

It opens the run directories, starts the engines phase by phase, and runs the scheduler beside the status view.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from mac_runner.clock import Clock, SystemClock
from mac_runner.descriptors import limit, runs_within
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.fleet.model import LaneStatus
from mac_runner.plan import Shard
from mac_runner.reports import GridRow, is_nothing_usable, nothing_finished, usability_warning
from mac_runner.runs import claims, event_loop
from mac_runner.runs.engines import (
    EnginePlan,
    Phase,
    concurrency_within_descriptors,
    connections_of,
    plan_engines,
)
from mac_runner.runs.fleet import FleetPlanner, PlannedFleet, RunFleet, local_fleet, opened, plan_fleet
from mac_runner.runs.policies import PolicyPlan, PolicyRequest, check_policies, plan_policies
from mac_runner.runs.setup import ExperimentSet, Setup, located
from mac_runner.runs.stream import ConversationStream, Joining, Listed, OnEnded, OpenRun, Supply, open_setup
from mac_runner.runs.summary import summary_of, write_grid
from mac_runner.scheduler import Progress, run_pooled
from mac_runner.scheduler.policies import Policies
from mac_runner.status import Display, Meter, StatusFrame, Tally, read_progress, tick
from mac_runner.store import Need, Survey, encode_for_reading, open_grid, read_grid, read_run, write_tables
from mac_runner.store.grid import GridAtRest
from mac_runner.store.layout import SUMMARY
from mac_runner.store.lock import LeaseWatch
from mac_runner.store.session import Recorder
from mac_runner.store.space import TRANSCRIPT_BYTES_MIN
from mac_runner.store.workers import open_worker
from mac_runner.types import JsonObject

Stopping: TypeAlias = Callable[[asyncio.Event], AbstractContextManager[None]]
"""Makes a context, entered inside the event loop, in which something may set the event to stop the run."""


class _Engines(NamedTuple):
    """What plays an experiment set."""

    plan: EnginePlan
    phases: Sequence[Phase]
    fleet: PlannedFleet | None
    concurrency: int | None


class Results(NamedTuple):
    """What a run came to."""

    summary: JsonObject
    """Empty for a worker that was interrupted: it knows a part of the run."""
    ended: str
    """How much has ended, in words."""
    rows: tuple[GridRow, ...] | None = None
    """A row for each combination of a grid; None for a single experiment."""
    compared: JsonObject | None = None
    """How the combinations of a grid compare, if they can."""
    is_interrupted: bool = False

    @property
    def unusable(self) -> tuple[str, ...]:
        """The experiments without a finished conversation or a usable reply, with the causes."""
        found = [("", self.summary)] if self.rows is None else [(f"{row.slug}: ", row.summary) for row in self.rows]
        said = [(name, _flaw(summary)) for name, summary in found if summary and not self.is_interrupted]
        return tuple(f"{name}{flaw}" for name, flaw in said if flaw is not None)

    @property
    def has_failures(self) -> bool:
        """Whether conversations failed, or nothing that was said in an experiment could be used."""
        if not self.summary:
            return False
        if self.unusable:
            return True
        if self.rows is None:
            return bool(self.summary["failures"])
        conversations = self.summary["conversations"]
        return isinstance(conversations, dict) and bool(conversations.get("failed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """How to play: the display, the clock, what stops the run, and bounds on the engines."""

    display: Display
    stopping: Stopping = lambda _stop: nullcontext()
    concurrency: int | None = None
    """Requests in flight at once, at most."""
    can_pull: bool = False
    clock: Clock = field(default_factory=SystemClock)
    on_ended: OnEnded | None = None
    on_complete: Callable[[Path], object] = lambda _directory: None
    """Receives each run directory that is closed with nothing left to play; called on a thread of the store."""
    fleet: FleetPlanner = local_fleet
    """Lays out the fleet of the models that are on one."""
    policy: PolicyRequest = field(default_factory=PolicyRequest)
    """The models whose weights a trainer changes."""
    training: Callable[[Policies], AbstractContextManager[Callable[[], Coroutine[object, object, None]]]] | None = None
    """Makes a context around the run, inside its event loop, in which a trainer may change weights.

    It gives what is awaited before the engines close, when all conversations have ended.
    """
    warn: Callable[[str], object] | None = None
    """Says what may not stay unsaid, such as a long wait; by default the display does."""
    is_process_ours: bool = True
    """Whether the limits and the garbage collector of this process may be set as suits the run."""

    def play(self, chosen: ExperimentSet, *, is_retried: Callable[[str], bool] | None = None) -> Results:
        """Play what is left, and the failed conversations that `is_retried`. For a set that is not complete.

        Raises ConfigError or ShortageError before anything is written; EngineDeadError, StoreError, and
        RunLockedError, IdentityError or RunDirectoryError where a run directory cannot be used.
        """
        if chosen.claimed is not None:
            if self.policy.policies:
                raise ConfigError("policy: shards that workers claim have no trainer in common; play one shard, or all")
            return self._play_claimed(chosen)
        pending, surveys = self._pending(chosen)
        engines, phases, fleet, concurrency = self._engines(chosen, pending, len(pending))
        if chosen.grid is None:
            return self._play_one(chosen.setups[0], phases, engines, fleet, concurrency, is_retried)
        return self._play_grid(chosen, pending, surveys, phases, engines, fleet, concurrency)

    def _warn(self, text: str) -> None:
        (self.warn or self.display.say)(text)

    def _engines(self, chosen: ExperimentSet, pending: Sequence[Setup], runs: int) -> _Engines:
        """What plays the pending experiments, with at most `runs` run directories open."""
        engines = plan_engines(pending, chosen.setups, self.clock, self.display.say, can_pull=self.can_pull)
        check_policies(self.policy, engines, self.clock)
        phases = engines.phases(pending)
        fleet = plan_fleet(pending, engines.engines.values(), self.fleet)
        concurrency = concurrency_within_descriptors(
            self.display.say,
            wanted=max(map(_connections, phases), default=0) + (0 if fleet is None else fleet.slots),
            concurrency=self.concurrency,
            runs_open=min(runs, runs_within(limit())),
            is_raising=self.is_process_ours,
        )
        return _Engines(engines, phases, fleet, concurrency)

    def _pending(self, chosen: ExperimentSet) -> tuple[Sequence[Setup], Mapping[str, Survey]]:
        if chosen.grid is None:
            return chosen.setups, {}
        surveys = {setup.slug: setup.survey() for setup in chosen.setups}
        return [setup for setup in chosen.setups if not surveys[setup.slug].is_complete], surveys

    def _play_one(
        self,
        setup: Setup,
        phases: Sequence[Phase],
        engines: EnginePlan,
        fleet: PlannedFleet | None,
        concurrency: int | None,
        is_retried: Callable[[str], bool] | None,
    ) -> Results:
        opened = self._open(setup, engines, is_retried=is_retried, say=self.display.say)
        counts = opened.run.counts
        spec = setup.experiment.spec.results
        tally = Tally(None if spec is None else spec().columns)
        progress = Progress(
            planned=counts.planned, finished=counts.finished, failed=counts.failed, on_outcome=tally.add
        )
        with self._stream(opened.run, self._listed(engines), done=opened.done_before, first=opened) as stream:
            recorded = {setup.slug: opened.run.policies}
            policies = plan_policies(self.policy, [setup], engines, recorded)
            session = _Session(
                self, stream, progress, lambda: setup.name, setup.experiment.profile, concurrency, tally.text, policies
            )
            is_done = event_loop.run(session.play(phases, fleet))
            # Even a run stopped before its first reply leaves a directory with a summary.
            opened.is_exhausted = True
        assert opened.summary is not None, "a run that was played is closed with its summary"
        counts = opened.run.counts
        ended = f"{counts.done} of {counts.planned} conversations have ended"
        return Results(summary=opened.summary, ended=ended, is_interrupted=not is_done)

    def _play_grid(
        self,
        grid: ExperimentSet,
        pending: Sequence[Setup],
        surveys: Mapping[str, Survey],
        phases: Sequence[Phase],
        engines: EnginePlan,
        fleet: PlannedFleet | None,
        concurrency: int | None,
    ) -> Results:
        needs = [
            Need(surveys[setup.slug].left, max(TRANSCRIPT_BYTES_MIN, setup.transcript_bytes_min)) for setup in pending
        ]
        progress = Progress(
            planned=sum(found.planned for found in surveys.values()),
            finished=sum(found.finished for found in surveys.values()),
            failed=sum(found.failed for found in surveys.values()),
        )
        through, total = len(grid.setups) - len(pending), len(grid.setups)
        policies = plan_policies(
            self.policy, pending, engines, {slug: found.policies for slug, found in surveys.items()}
        )
        if policies is not None:
            over = [setup for setup in grid.setups if setup not in pending]
            policies.count((setup.experiment.model_definitions, surveys[setup.slug].finished) for setup in over)
        with open_grid(
            grid.directory, asked=grid.asked, clock=self.clock, needs=needs, say=self.display.say
        ) as grid_run:
            with self._stream(grid_run, self._listed(engines), done=progress.resumed_with) as stream:

                def title() -> str:
                    return f"{grid.name}, combination {min(total, through + stream.begun)} of {total}"

                session = _Session(self, stream, progress, title, grid.profile, concurrency, policies=policies)
                is_done = event_loop.run(session.play(phases, fleet))
            results = write_grid(grid, grid_run)
        if results.complete == total:
            self.on_complete(grid.directory)
        ended = f"{results.complete} of {total} combinations are complete"
        return Results(results.summary, ended, results.rows, results.compared, is_interrupted=not is_done)

    def _play_claimed(self, chosen: ExperimentSet) -> Results:
        """Play the shards that no other worker holds, and wait for the others; the last worker ends the run."""
        watch = LeaseWatch()

        def open_whole(setup: Setup) -> OpenRun:
            served = plan_engines([setup], chosen.setups, self.clock, lambda _line: None, is_dry=True)
            is_alone = chosen.grid is None
            return self._open(setup, served, is_guarded=not is_alone, has_accounts=is_alone, watch=watch)

        while not claims.is_over(chosen):
            claims.check(chosen)
            if (left := claims.shards_left(chosen)) and not self._play_shards(chosen, left):
                return Results({}, "this worker leaves, and its shards are free", is_interrupted=True)
            claims.finish(chosen, open_whole, self.clock, self._warn, on_complete=self.on_complete)
            if not left and not all(map(claims.is_finished, chosen.setups)):
                raise RunDirectoryError(
                    f"{chosen.directory}: all shards are complete, and the run is not; end it with "
                    f"`mac-run FILE --out {chosen.directory}`, without --shard"
                )
        results = results_if_complete(chosen, self.clock)
        assert results is not None, "what is over has results"
        return results

    def _play_shards(self, chosen: ExperimentSet, left: Mapping[str, Sequence[Shard]]) -> bool:
        """Play until all shards are complete; False when the worker was stopped before."""
        pending = [setup for setup in chosen.setups if setup.slug in left]
        engines, phases, fleet, concurrency = self._engines(chosen, pending, sum(map(len, left.values())))
        claims.begin(chosen, left, self.clock)
        progress, watch = Progress(planned=0), LeaseWatch()
        claimed = chosen.claimed
        assert claimed is not None, "only a set that is claimed has shards"

        def open_claimed(part: Setup) -> OpenRun:
            claims.prepare(part)
            return self._open(part, engines, has_accounts=chosen.grid is None, watch=watch)

        def joined(opened: OpenRun) -> None:
            counts = opened.run.counts
            progress.join(planned=counts.planned, finished=counts.finished, failed=counts.failed)

        joining = Joining(
            on_opened=joined,
            accounts=progress.accounts if chosen.grid is None else None,
            look_interval_s=claims.LOOK_INTERVAL_S,
            on_waiting=lambda words: self._warn(f"waiting for {words}"),
            said_after_s=claims.WAIT_SAID_S,
        )
        with open_worker(chosen.directory, clock=self.clock) as worker:
            events = worker.layout.events

            def supply(setups: Sequence[Setup]) -> Supply:
                parts = ((setup, part) for setup in setups for part in setup.parts(claimed, events))
                wanted = [part for setup, (shard, part) in parts if shard in left[setup.slug]]
                return claims.Claims(wanted, open_claimed, is_free=claims.is_free, is_complete=claims.is_complete)

            with self._stream(worker, supply, done=0, joining=joining) as stream:
                session = _Session(
                    self,
                    stream,
                    progress,
                    lambda: f"{chosen.name}, shards: {stream.begun}",
                    chosen.profile,
                    concurrency,
                )
                return event_loop.run(session.play(phases, fleet))

    def _listed(self, engines: EnginePlan) -> Callable[[Sequence[Setup]], Supply]:
        """The supply of experiments that this process alone plays."""

        return lambda setups: Listed(
            setups, lambda setup: self._open(setup, engines, is_guarded=True, has_accounts=False)
        )

    def _open(
        self,
        setup: Setup,
        engines: EnginePlan,
        *,
        is_guarded: bool = False,
        has_accounts: bool = True,
        watch: LeaseWatch | None = None,
        is_retried: Callable[[str], bool] | None = None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> OpenRun:
        """Open the run directory of an experiment."""
        return open_setup(
            setup,
            engines.served[setup.slug],
            self.clock,
            is_guarded=is_guarded,
            has_accounts=has_accounts,
            watch=watch,
            is_retried=is_retried,
            on_ended=self.on_ended,
            on_complete=self.on_complete,
            say=say,
        )

    @contextmanager
    def _stream(
        self,
        log: Recorder,
        supply: Callable[[Sequence[Setup]], Supply],
        *,
        done: int,
        first: OpenRun | None = None,
        joining: Joining | None = None,
    ) -> Iterator[ConversationStream]:
        with (
            ConversationStream(log, supply, self.clock, done=done, first=first, joining=joining) as stream,
            event_loop.rare_collections() if self.is_process_ours else nullcontext(),
        ):
            yield stream


def results_if_complete(chosen: ExperimentSet, clock: Clock) -> Results | None:
    """The results of a set with nothing left to play; None where something is left.

    Summaries and tables are written again where they are not what the journals make.
    """
    if chosen.claimed is not None:
        if not claims.is_over(chosen):
            return None
        # As one that a single process has played.
        chosen = replace(chosen, claimed=None, known=None if chosen.grid is None else read_grid(chosen.directory))
    elif not all(map(Setup.is_complete, chosen.setups)):
        return None
    if chosen.grid is not None and not chosen.is_known:
        return None
    if chosen.grid is None:
        (setup,) = chosen.setups
        summary = summary_of(read_run(setup.directory))
        write_tables(setup.directory, {SUMMARY: encode_for_reading(summary)}, clock=clock)
        return Results(summary, f"all {len(setup.tasks)} conversations have ended already")
    assert chosen.known is not None
    results = write_grid(chosen, GridAtRest(chosen.directory, chosen.known, clock))
    ended = f"all {len(chosen.setups)} combinations are complete"
    return Results(results.summary, ended, results.rows, results.compared)


class _Session:
    """The scheduler and the status view side by side, phase by phase."""

    def __init__(
        self,
        player: Player,
        stream: ConversationStream,
        progress: Progress,
        title: Callable[[], str],
        profile: str,
        concurrency: int | None,
        results: Callable[[], str] = str,
        policies: PolicyPlan | None = None,
    ) -> None:
        self._player = player
        self._planned_policies = policies
        self._stream = stream
        self._progress = progress
        self._title = title
        self._profile = profile
        self._concurrency = concurrency
        self._results = results
        self._lanes: Callable[[], tuple[LaneStatus, ...]] = tuple
        self._policies: Policies | None = None

    async def play(self, phases: Sequence[Phase], planned: PlannedFleet | None) -> bool:
        """Play all phases; False when the run was stopped before their end."""
        stop = asyncio.Event()
        player = self._player
        if self._planned_policies is not None:
            self._policies = self._stream.policies = self._planned_policies.begin(
                self._stream.event, lambda: self._stream.sources, restarts=len(phases) > 1
            )
        with player.stopping(stop), self._training(stop) as trained:
            showing = asyncio.create_task(self._show())
            try:
                async with opened(
                    planned, self._stream.early_event, clock=player.clock, say=player.display.say
                ) as fleet:
                    self._lanes = tuple if fleet is None else fleet.status
                    try:
                        for phase in phases:
                            end = trained if phase is phases[-1] else None
                            if stop.is_set() or not await self._play(phase, fleet, stop, end):
                                return False
                    finally:
                        # The last picture shows how the lanes were, and not that the fleet was closed.
                        last = self._lanes()
                        self._lanes = lambda: last
                return True
            finally:
                showing.cancel()
                await asyncio.wait([showing])

    @contextmanager
    def _training(self, stop: asyncio.Event) -> Iterator[Callable[[], Coroutine[object, object, None]] | None]:
        """A trainer may change weights inside. Gives what to await when all conversations have ended."""
        training, policies = self._player.training, self._policies
        if training is None or policies is None:
            yield None
            return
        with training(policies) as finish:

            async def trained() -> None:
                await self._stream.drained()
                await event_loop.until_stopped(stop, finish())

            yield trained

    async def _play(
        self,
        phase: Phase,
        fleet: RunFleet | None,
        stop: asyncio.Event,
        end: Callable[[], Coroutine[object, object, None]] | None,
    ) -> bool:
        player, policies = self._player, self._policies
        backends = {
            engine.name: engine.build(player.clock, player.display.say, can_pull=player.can_pull, fleet=fleet)
            for engine in phase.engines
        }
        places = {engine.name: (engine.loaded, ("model_definitions", engine.model)) for engine in phase.engines}
        self._stream.begin(phase.setups)
        result = await run_pooled(
            work=self._stream,
            backends=backends,
            log=self._stream,
            concurrency=self._concurrency,
            clock=player.clock,
            stop=stop,
            progress=self._progress,
            policies=policies,
            end=end,
            starting=lambda name: located(*places[name]),
            say=player.display.say,
        )
        # The last picture says of all that ended that it is written.
        await self._stream.drained()
        return not result.interrupted

    async def _show(self) -> None:
        meter = Meter()

        def frame() -> StatusFrame:
            reading = read_progress(
                self._progress,
                experiment_name=self._title(),
                profile=self._profile,
                results=self._results(),
                lanes=self._lanes(),
                windows={} if self._policies is None else self._policies.windows,
            )
            return meter.frame(reading)

        await tick(self._player.display, frame, self._player.clock)


def _flaw(summary: JsonObject) -> str | None:
    return usability_warning(summary) if is_nothing_usable(summary) else nothing_finished(summary)


def _connections(phase: Phase) -> int:
    """How many connections its engines take, without those on a fleet."""
    return connections_of(engine.definition for engine in phase.engines if not engine.is_on_fleet)
