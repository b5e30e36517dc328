"""Plays an experiment set to its end, or as far as it gets.

It opens the run directories, starts the engines phase by phase, and runs the scheduler beside the status view.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from mac_runner.clock import Clock, SystemClock, pause
from mac_runner.descriptors import limit, runs_within
from mac_runner.errors import ConfigError, RunDirectoryError, RunLockedError
from mac_runner.fleet.lane import Fleet, LaneStatus
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
from mac_runner.runs.fleet import FleetPlanner, PlannedFleet, local_fleet, opened, plan_fleet
from mac_runner.runs.limits import Limits
from mac_runner.runs.policies import PolicyPlan, PolicyRequest, check_policies, plan_policies
from mac_runner.runs.setup import ExperimentSet, Setup, located
from mac_runner.runs.stream import LOOK_INTERVAL_S, ConversationStream, OnEnded, OpenRun, Supply, open_setup
from mac_runner.runs.summary import summary_of, write_grid
from mac_runner.scheduler import Progress, run_pooled
from mac_runner.scheduler.policies import Policies
from mac_runner.status import Display, Meter, StatusFrame, Tally, read_progress, tick
from mac_runner.store import (
    Disk,
    Need,
    Survey,
    encode_for_reading,
    is_complete,
    open_grid,
    read_grid,
    read_run,
    survey,
    write_tables,
)
from mac_runner.store.grid import GridAtRest
from mac_runner.store.layout import SUMMARY, Layout
from mac_runner.store.lock import LeaseWatch
from mac_runner.store.manifest import Counts
from mac_runner.store.recovery import held_in
from mac_runner.store.session import Recorder, open_worker
from mac_runner.store.space import TRANSCRIPT_BYTES_MIN
from mac_runner.store.standing import complete_run
from mac_runner.types import JsonObject, PolicyVersion

Stopping: TypeAlias = Callable[[asyncio.Event], AbstractContextManager[None]]
"""Makes a context, entered inside the event loop, in which something may set the event to stop the run."""


INTERRUPTED: Final = "interrupted"


class _Opened(NamedTuple):
    """What a session has open: where its records go, where its conversations come from, and how it ends."""

    log: Recorder
    supply: Callable[[Sequence[Setup]], Supply]
    title: Callable[[int], str]
    """By how many run directories have begun."""
    end: Callable[[], Results]
    """Writes what is derived of all that is there, once nothing but the log is open."""
    found: Mapping[str, Survey | Counts] = MappingProxyType({})
    """How far the experiments were, by their slugs; those of shards are counted as they are opened."""
    versions: Mapping[str, Mapping[str, Sequence[PolicyVersion]]] = MappingProxyType({})
    """The versions that each model had, by experiment."""
    on_outcome: Callable[[JsonObject], None] = lambda _outcome: None
    results: Callable[[], str] = str
    """The results so far, as the status view shows them, by the outcomes that `on_outcome` received."""
    is_accounted: bool = False
    """Each run directory is accounted for what engines used while it was the one opened last."""


class Results(NamedTuple):
    """What a run came to."""

    summary: JsonObject
    """Empty for a worker that was stopped, which knows a part of the run, and for a run that was not begun."""
    ended: str
    """How much has ended, in words."""
    rows: tuple[GridRow, ...] | None = None
    """A row for each combination of a grid; None for a single experiment."""
    compared: JsonObject | None = None
    """How the combinations of a grid compare, if they can."""
    stopped_by: str | None = None
    """What stopped it before its end: INTERRUPTED, or the limit that was reached, in words."""
    is_complete: bool = False
    """Nothing is left to play."""

    @property
    def is_interrupted(self) -> bool:
        """Whether it was stopped before its end."""
        return self.stopped_by is not None

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
    """Receives the directory of a run or a grid that is closed with nothing left to play."""
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
            return self._play_claimed(chosen)
        surveys = {} if chosen.grid is None else {setup.slug: survey(setup.invocation) for setup in chosen.setups}
        pending = [setup for setup in chosen.setups if chosen.grid is None or not surveys[setup.slug].is_complete]

        def whole(engines: EnginePlan) -> AbstractContextManager[_Opened]:
            say = self.display.say
            if chosen.grid is None:
                return self._run(chosen, engines, is_retried=is_retried, say=say)
            return self._grid(chosen, pending, engines, surveys, say=say)

        return self._play(chosen, pending, whole, runs=len(pending))

    def _play_claimed(self, chosen: ExperimentSet) -> Results:
        """Play the shards that no other worker holds, until the run has ended."""
        if self.policy.policies:
            raise ConfigError("policy: shards that workers claim have no trainer in common; play one shard, or all")
        while (complete := results_if_complete(chosen, self.clock)) is None:
            claims.check(chosen)
            if left := claims.shards_left(chosen):
                pending = [setup for setup in chosen.setups if setup.slug in left]
                shards = partial(self._shards, chosen, left)
                part = self._play(chosen, pending, shards, runs=sum(map(len, left.values())))
                if part.is_interrupted:
                    return part
            self._end_in_turn(chosen)
            if not left and not all(map(claims.is_finished, chosen.setups)):
                raise RunDirectoryError(
                    f"{chosen.directory}: all shards are complete, and the run is not; end it with "
                    f"`mac-run FILE --out {chosen.directory}`, without --shard"
                )
        return complete

    def _play(
        self,
        chosen: ExperimentSet,
        pending: Sequence[Setup],
        opening: Callable[[EnginePlan], AbstractContextManager[_Opened]],
        *,
        runs: int,
    ) -> Results:
        """One session over what `opening` opens: at most so many `runs` at once, and none before all is checked."""
        limits = Limits(chosen, self.clock)
        # What a retry plays has ended already.
        if limits.reached is not None and any(setup.only or survey(setup.invocation).left for setup in pending):
            return Results({}, "nothing was played", stopped_by=limits.reached)
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
        with opening(engines) as opened:
            limits.own = opened.log.layout.directory.name
            counts = opened.found.values()
            progress = Progress(
                planned=sum(found.planned for found in counts),
                finished=sum(found.finished for found in counts),
                failed=sum(found.failed for found in counts),
                on_outcome=opened.on_outcome,
            )
            policies = plan_policies(self.policy, pending, engines, opened.versions)
            if policies is not None:
                left = {setup.slug for setup in pending}
                over = [setup for setup in chosen.setups if setup.slug not in left]
                policies.count((one.experiment.model_definitions, opened.found[one.slug].finished) for one in over)
            stream = ConversationStream(
                opened.log,
                opened.supply,
                self.clock,
                done=progress.resumed_with,
                joins=None if chosen.claimed is None else progress,
                accounts=progress.accounts if opened.is_accounted else None,
                say=self._warn,
            )
            with stream, event_loop.rare_collections() if self.is_process_ours else nullcontext():

                def title() -> str:
                    return opened.title(stream.begun)

                session = _Session(
                    self, stream, progress, title, chosen.profile, concurrency, limits, opened.results, policies
                )
                stopped_by = event_loop.run(session.play(phases, fleet))
            results = opened.end()
        if results.is_complete:
            self.on_complete(chosen.directory)
        return results._replace(stopped_by=stopped_by)

    @contextmanager
    def _run(
        self,
        chosen: ExperimentSet,
        engines: EnginePlan,
        *,
        is_retried: Callable[[str], bool] | None = None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> Iterator[_Opened]:
        """The directory of a single experiment, whose session is that of the run."""
        (setup,) = chosen.setups
        spec = setup.experiment.spec.results
        tally = Tally(None if spec is None else spec().columns)
        with open_setup(
            setup, engines.served[setup.slug], self.clock, is_retried=is_retried, on_ended=self.on_ended, say=say
        ) as run:

            def end() -> Results:
                # Even a run stopped before its first reply leaves a directory with a summary.
                summary, counts = run.sum_up(), run.run.counts
                return Results(summary, counts.in_words, is_complete=counts.done == counts.planned)

            yield _Opened(
                log=run.run,
                supply=lambda setups: Supply(setups, lambda _setup: run),
                title=lambda _begun: chosen.name,
                end=end,
                found={setup.slug: run.run.counts},
                versions={setup.slug: run.run.policies},
                on_outcome=tally.add,
                results=tally.text,
            )

    @contextmanager
    def _grid(
        self,
        chosen: ExperimentSet,
        pending: Sequence[Setup],
        engines: EnginePlan,
        surveys: Mapping[str, Survey],
        *,
        say: Callable[[str], None] = lambda _line: None,
    ) -> Iterator[_Opened]:
        """The directory of a grid, in which the session opens each combination when its turn comes."""
        total, through = len(chosen.setups), len(chosen.setups) - len(pending)
        bytes_min = {setup.slug: max(TRANSCRIPT_BYTES_MIN, setup.transcript_bytes_min) for setup in chosen.setups}
        needs = [Need(found.left, bytes_min[slug]) for slug, found in surveys.items()]

        def open_combination(setup: Setup) -> OpenRun:
            return open_setup(setup, engines.served[setup.slug], self.clock, is_guarded=True, on_ended=self.on_ended)

        shares = [found.share for found in surveys.values()] if surveys else None
        with open_grid(
            chosen.directory, asked=chosen.asked, clock=self.clock, needs=needs, shares=shares, say=say
        ) as grid:

            def end() -> Results:
                found = write_grid(chosen, grid)
                ended = f"{found.complete} of {total} combinations are complete"
                return Results(found.summary, ended, found.rows, found.compared, is_complete=found.complete == total)

            yield _Opened(
                log=grid,
                supply=lambda setups: Supply(setups, open_combination),
                title=lambda begun: f"{chosen.name}, combination {min(total, through + begun)} of {total}",
                end=end,
                found=surveys,
                versions={slug: found.policies for slug, found in surveys.items()},
            )

    @contextmanager
    def _shards(
        self, chosen: ExperimentSet, left: Mapping[str, Sequence[Shard]], engines: EnginePlan
    ) -> Iterator[_Opened]:
        """A place for this worker in the directory of a run or a grid, from which it claims shards of it."""
        claims.begin(chosen, left, self.clock)
        watch = LeaseWatch()

        def open_claimed(part: Setup) -> OpenRun:
            return open_setup(part, engines.served[part.slug], self.clock, watch=watch, on_ended=self.on_ended)

        with open_worker(chosen.directory, clock=self.clock) as worker:
            events = worker.layout.events
            yield _Opened(
                log=worker,
                supply=lambda setups: claims.supply_of(chosen, setups, left, open_claimed, events),
                title=lambda begun: f"{chosen.name}, shards: {begun}",
                end=lambda: Results({}, "this worker leaves, and its shards are free"),
                is_accounted=chosen.grid is None,
            )

    def _end_in_turn(self, chosen: ExperimentSet) -> None:
        """End the run if all its conversations have ended. One worker does it, and the others wait for it."""
        is_said = False
        while not claims.is_over(chosen):
            try:
                return self._end(chosen)
            except RunLockedError as held:
                if not is_said:
                    self._warn(f"waiting for the end of the run: {held.fact}")
                is_said = True
                pause(LOOK_INTERVAL_S)

    def _end(self, chosen: ExperimentSet) -> None:
        """End the run as a process does that has it to itself, without an engine.

        Conversations that turn out to be open again are left to who asks for them next.
        """
        pending = [setup for setup in chosen.setups if not claims.is_finished(setup)]
        engines = plan_engines(chosen.setups, chosen.setups, self.clock, lambda _line: None, is_dry=True)
        whole = self._run(chosen, engines) if chosen.grid is None else self._grid(chosen, pending, engines, {})
        with whole as opened:
            if claims.is_ended(chosen):  # Another worker may have been quicker, between the look and the lock.
                opened.log.withdraw()
                return
            with ConversationStream(opened.log, opened.supply, self.clock) as stream:
                if not event_loop.run(stream.pass_over(pending)):
                    return
            is_complete = opened.end().is_complete
        if is_complete:
            self.on_complete(chosen.directory)

    def _warn(self, text: str) -> None:
        (self.warn or self.display.say)(text)


def results_if_complete(chosen: ExperimentSet, clock: Clock) -> Results | None:
    """The results of a set with nothing left to play; None where something is left.

    Summaries and tables are written again where they are not what the journals make.
    """
    is_over = chosen.claimed is not None
    if is_over:
        if not claims.is_over(chosen):
            return None
        # As one that a single process has played.
        chosen = replace(chosen, claimed=None, known=None if chosen.grid is None else read_grid(chosen.directory))
    if chosen.grid is None:
        (setup,) = chosen.setups
        contents = read_run(setup.directory) if is_over else complete_run(setup.invocation)
        if contents is None:
            return None
        summary = summary_of(contents)
        write_tables(setup.directory, {SUMMARY: encode_for_reading(summary)}, clock=clock)
        return Results(summary, f"all {len(setup.tasks)} conversations have ended already", is_complete=True)
    if chosen.known is None or not chosen.is_known:
        return None
    if not is_over and not (_may_be_over(chosen) and all(is_complete(setup.invocation) for setup in chosen.setups)):
        return None
    results = write_grid(chosen, GridAtRest(chosen.directory, chosen.known, clock))
    ended = f"all {len(chosen.setups)} combinations are complete"
    return Results(results.summary, ended, results.rows, results.compared, is_complete=True)


def _may_be_over(grid: ExperimentSet) -> bool:
    """Whether all conversations have transcripts, by their names: soon known, before any journal is read."""
    held = held_in(Disk(), Layout(directory=grid.directory, experiment_name=grid.name))
    return all(task_id in held for setup in grid.setups for task_id, _ in setup.tasks.ids())


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
        limits: Limits,
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
        self._limits = limits
        self._results = results
        self._lanes: Callable[[], tuple[LaneStatus, ...]] = tuple
        self._policies: Policies | None = None

    async def play(self, phases: Sequence[Phase], planned: PlannedFleet | None) -> str | None:
        """Play all phases; what stopped the run before their end (`Results.stopped_by`)."""
        stop = asyncio.Event()
        player = self._player
        if self._planned_policies is not None:
            self._policies = self._stream.policies = self._planned_policies.begin(
                self._stream.event, lambda: self._stream.sources, restarts=len(phases) > 1
            )
        with player.stopping(stop), self._training(stop) as trained:
            beside = [
                asyncio.create_task(self._show()),
                asyncio.create_task(self._limits.watch(self._progress, stop, player.display.say)),
            ]
            try:
                async with opened(
                    planned, self._stream.early_event, clock=player.clock, say=player.display.say
                ) as fleet:
                    self._lanes = tuple if fleet is None else fleet.status
                    try:
                        for phase in phases:
                            end = trained if phase is phases[-1] else None
                            if stop.is_set() or not await self._play(phase, fleet, stop, end):
                                return self._limits.stopped_by(self._progress) or INTERRUPTED
                    finally:
                        # The last picture shows how the lanes were, and not that the fleet was closed.
                        last = self._lanes()
                        self._lanes = lambda: last
                return None
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)

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
        fleet: Fleet | None,
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
