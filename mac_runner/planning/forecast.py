"""A run in simulated time: the real scheduler, plan and environments against modelled engines, without a disk.

A study that is too large is simulated in part, in two ways that keep what decides its time:

- A *slice* has one of `parts` equal parts of the lanes of every engine and of the conversations, and a client that is
  as many times slower. Lanes are alike and a conversation stays on its lane, so each lane has as much to do as in the
  whole. At least LANES_MIN lanes are left: with fewer, a request finds a free slot elsewhere less often. Where lanes
  have many slots, two are enough that have SLOTS_MIN together.
- A *stretch* opens only the first conversations, and goes on for the others as the run went while it opened the last
  of those, as many as are open at once. By then a conversation begins where another one ends: STEADY_MIN times as many
  are opened as are open at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Final, Literal, NamedTuple, TypeAlias

from mac_runner.backends.base import Backend
from mac_runner.bottleneck import BUSY_SHARE_MIN, CPU_SHARE_MIN, WAITING_MIN
from mac_runner.planning.engine import AloneEngine, Client, EngineModel, Load, ModelledEngine
from mac_runner.planning.loop import SimulatedClock, simulate
from mac_runner.scheduler import Job, Progress, Source, run_pooled
from mac_runner.scheduler.attempt import Unrecorded
from mac_runner.types import Task, TokenCount

Limit: TypeAlias = Literal["client", "kv", "engine", "gating"]
"""What holds a run back first: the runner's own CPU, the KV cache of an engine, the speed of an engine, or turns that
wait for other turns of their conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUse:
    """What one engine does in the run."""

    lanes: int
    slots: int
    """How many requests all lanes serve at once."""
    requests: int
    tokens: TokenCount
    slot_share: float
    """The part of the slots that is in use, over the time of the run."""
    step_share: float
    """The part of the time in which a lane is in a step, on average over the lanes."""
    kv_wait_share: float
    """The part of the time in which a lane has a free slot and a request that waits for KV cache."""
    waiting: float
    """How many turns wait for a slot, on average."""
    preemptions: int
    """How often a request lost its place in the KV cache and was read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the whole study is expected to take, from a simulation of it or of a part of it."""

    seconds: float
    """From the first request to the last reply, with all engines up."""
    conversations: int
    turns: int
    failed: int
    """Conversations that fail."""
    engines: Mapping[str, EngineUse]
    critical_path_s: float
    """How long the longest conversation takes on engines that serve nothing else: no number of lanes makes the run
    shorter."""
    client_share: float
    """The part of the time in which the runner's process computes."""
    limit: Limit
    limiting_engine: str | None
    """The engine that `limit` speaks of."""
    played: int
    """How many conversations were simulated."""
    played_share: float
    """The part of the lanes that was simulated, with their share of the conversations and of the runner's CPU."""

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    @property
    def tokens(self) -> TokenCount:
        return sum((engine.tokens for engine in self.engines.values()), TokenCount())

    @property
    def slot_share(self) -> float:
        """The part of all slots that is in use."""
        slots = sum(engine.slots for engine in self.engines.values())
        return sum(engine.slots * engine.slot_share for engine in self.engines.values()) / slots

    @property
    def hit_share(self) -> float:
        """The part of the prompts' tokens that is served from the prefix cache."""
        tokens = self.tokens
        return tokens.cached / tokens.prompt if tokens.prompt else 0.0


CLIENT_MS: Final = 0.7
"""The runner's CPU time for a request where it was not measured."""
TURNS_MAX: Final = 100_000
"""How many turns are simulated, unless a part of that size would not show how the study goes."""
PILOT: Final = 64
"""How many conversations are played on engines that serve nothing else, for the critical path."""
LANES_MIN: Final = 4
SLOTS_MIN: Final = 128
STEADY_MIN: Final = 3
_NOTES: Final = 64
KV_SHARE_MIN: Final = 0.25
"""From this part of the time on in which requests wait for KV cache, or of the slots that it keeps empty, the cache
limits the run."""
CRITICAL_SHARE_MIN: Final = 0.9
"""From this part of the run on, its longest conversation limits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is planned: the conversations, and the engines that serve them."""

    loads: Sequence[Load]
    engines: Mapping[str, EngineModel]
    client_ms: float = CLIENT_MS
    """The runner's CPU time for a request. With several processes, theirs divided by their number."""

    @property
    def by_experiment(self) -> dict[str, Load]:
        return {load.source.experiment_name: load for load in self.loads}

    @property
    def conversations(self) -> int:
        """How many are planned."""
        return sum(len(load.tasks) for load in self.loads)


class CriticalPath(NamedTuple):
    """Conversations on engines that serve nothing else."""

    seconds: float
    """How long the longest one takes."""
    turns_per_conversation: float


_Sums: TypeAlias = Mapping[tuple[str, str], float]
"""What adds up over the time of a run, by engine and by what it is; the engine `""` has what is of the whole run."""


def forecast(study: Study, *, turns_max: int = TURNS_MAX, path: CriticalPath | None = None) -> Forecast:
    """Simulate a study, or a part of it with about `turns_max` turns, and return what the whole is expected to take.

    `path` is that of the same conversations on engines of the same speed, where it is known.
    """
    path = path or critical_path(study)
    wanted = max(PILOT, round(turns_max / max(1.0, path.turns_per_conversation)))
    parts = _parts(study, wanted)
    sums, played, failed_share = _play(_sliced(study, parts), wanted)
    seconds = sums["", "seconds"]
    uses = {name: _use(name, model, sums, parts) for name, model in study.engines.items()}
    client_share = sums["", "client_s"] / seconds if seconds else 0.0
    limit, engine = _limit(uses, client_share, path.seconds / seconds if seconds else 1.0)
    return Forecast(
        seconds=seconds,
        conversations=study.conversations,
        turns=round(sums["", "turns"] * parts),
        failed=round(failed_share * study.conversations),
        engines=uses,
        critical_path_s=path.seconds,
        client_share=client_share,
        limit=limit,
        limiting_engine=engine,
        played=played,
        played_share=1 / parts,
    )


def critical_path(study: Study) -> CriticalPath:
    """Play some conversations of a study, all at once, on engines that serve each request alone."""
    progress = Progress(planned=PILOT)
    backends = {name: AloneEngine(model, study.by_experiment) for name, model in study.engines.items()}
    work = _Work(study, PILOT, progress)
    seconds = simulate(lambda: _run(work, backends, progress))
    return CriticalPath(seconds, progress.turns / max(1, work.taken))


def _parts(study: Study, wanted: int) -> int:
    """Into how many slices a study is cut; one of them is simulated."""
    most = math.ceil(study.conversations / wanted)
    lanes = math.gcd(*(model.lanes for model in study.engines.values()))
    fitting = [
        parts
        for parts in range(1, lanes + 1)
        if lanes % parts == 0 and all(_is_enough(model.lanes // parts, model.slots) for model in study.engines.values())
    ]
    return next((parts for parts in fitting if parts >= most), fitting[-1] if fitting else 1)


def _is_enough(lanes: int, slots: int) -> bool:
    """Whether so many lanes show how more of them go."""
    return lanes >= LANES_MIN or (lanes > 1 and lanes * slots >= SLOTS_MIN)


def _sliced(study: Study, parts: int) -> Study:
    """One slice of a study."""
    return replace(
        study,
        loads=[replace(load, tasks=load.tasks[: math.ceil(len(load.tasks) / parts)]) for load in study.loads],
        engines={name: replace(model, lanes=model.lanes // parts) for name, model in study.engines.items()},
        client_ms=study.client_ms * parts,
    )


class _Work:
    """The conversations of a study: all in the order of the plan, or only some, those of all experiments in turn.

    At least `wanted` are opened. With `sums`, more of them follow until there were STEADY_MIN times as many as were
    open at once, and what it returns is noted on the way.
    """

    def __init__(self, study: Study, wanted: int, progress: Progress, sums: Callable[[], _Sums] | None = None) -> None:
        self.taken = 0
        self._wanted, self._progress, self._sums = wanted, progress, sums
        each = [map(partial(_job, load), load.tasks()) for load in study.loads]
        mixed = (job for row in zip_longest(*each) for job in row if job is not None)
        self._jobs = chain(*each) if wanted >= study.conversations else mixed
        self._open_max = 0
        self._notes: list[tuple[int, _Sums]] = []

    def extrapolated(self, found: _Sums, left: int) -> _Sums:
        """What a run comes to that goes on for `left` conversations as while the last ones were opened.

        These are about half of all, in whole generations: as many conversations as are open at once.
        """
        generations = max(1, self.taken // (2 * max(1, self._open_max)))
        begin = max(0, self.taken - generations * self._open_max)
        opened_before, before = min(self._notes[:-1] or self._notes, key=lambda note: abs(note[0] - begin))
        opened, after = self._notes[-1]
        times = left / (opened - opened_before)
        return {key: value + times * (after[key] - before[key]) for key, value in found.items()}

    async def take(self) -> Job | None:
        """The next conversation."""
        self._open_max = max(self._open_max, self._progress.open)
        enough = self._wanted if self._sums is None else max(self._wanted, STEADY_MIN * self._open_max)
        job = next(self._jobs, None) if self.taken < enough else None
        if job is not None:
            self.taken += 1
        if self._sums is not None and (job is None or self.taken % math.ceil(self._wanted / _NOTES) == 0):
            self._notes.append((self.taken, self._sums()))
        return job

    def settled(self, source: Source) -> None:
        """Count nothing: the scheduler does."""


def _job(load: Load, task: Task) -> Job:
    return Job(load.source, task, ())


async def _run(work: _Work, backends: Mapping[str, Backend], progress: Progress) -> float:
    """Play conversations as a run does, and keep nothing; the time that it took."""
    clock = SimulatedClock()
    await run_pooled(
        work=work,
        backends=backends,
        log=Unrecorded(),
        concurrency=None,
        clock=clock,
        stop=asyncio.Event(),
        progress=progress,
    )
    return clock.monotonic_s()


def _play(study: Study, wanted: int) -> tuple[_Sums, int, float]:
    """Simulate a study, or at least `wanted` conversations of it and the rest as those went.

    Returns the sums of all, how many were played, and the part of these that failed.
    """
    client, progress = Client(study.client_ms), Progress(planned=study.conversations)
    backends = {name: ModelledEngine(model, study.by_experiment, client) for name, model in study.engines.items()}
    sums = partial(_sums, client, progress, backends)
    work = _Work(study, wanted, progress, sums if wanted < study.conversations else None)
    simulate(lambda: _run(work, backends, progress))
    left = study.conversations - work.taken
    found = work.extrapolated(sums(), left) if left else sums()
    return found, work.taken, progress.failed / max(1, work.taken)


def _sums(client: Client, progress: Progress, backends: Mapping[str, ModelledEngine]) -> _Sums:
    usage = progress.usage
    assert usage is not None, "the run has begun"
    sums = {("", "seconds"): usage.played_s, ("", "turns"): progress.turns, ("", "client_s"): client.busy_s}
    for name, engine in backends.items():
        used = usage.models[name]
        of_engine = {
            "requests": engine.requests,
            "prompt": engine.tokens.prompt,
            "cached": engine.tokens.cached,
            "completion": engine.tokens.completion,
            "busy_slot_s": used.busy_slot_s,
            "available_slot_s": used.available_slot_s,
            "waiting_turn_s": used.waiting_turn_s,
            "lane_s": sum(lane.busy_s for lane in engine.lanes),
            "kv_wait_s": sum(lane.kv_wait_s for lane in engine.lanes),
            "preemptions": sum(lane.preemptions for lane in engine.lanes),
        }
        sums |= {(name, what): value for what, value in of_engine.items()}
    return sums


def _use(name: str, model: EngineModel, sums: _Sums, parts: int) -> EngineUse:
    """What the whole engine does, by the sums of one of `parts` slices."""

    def whole(what: str) -> int:
        return round(sums[name, what] * parts)

    whole_s = sums["", "seconds"] or 1.0
    lane_s = model.lanes // parts * whole_s
    return EngineUse(
        lanes=model.lanes,
        slots=model.lanes * model.slots,
        requests=whole("requests"),
        tokens=TokenCount(prompt=whole("prompt"), cached=whole("cached"), completion=whole("completion")),
        slot_share=sums[name, "busy_slot_s"] / (lane_s * model.slots),
        step_share=sums[name, "lane_s"] / lane_s,
        kv_wait_share=max(
            sums[name, "kv_wait_s"] / lane_s, 1 - sums[name, "available_slot_s"] / (lane_s * model.slots)
        ),
        waiting=sums[name, "waiting_turn_s"] * parts / whole_s,
        preemptions=whole("preemptions"),
    )


def _limit(uses: Mapping[str, EngineUse], client_share: float, critical_share: float) -> tuple[Limit, str | None]:
    """What holds the run back first, and the engine that it concerns.

    In this order: the client, if it computes nearly all the time; the longest conversation, if it takes nearly all the
    time; the engine that most turns wait for, by its cache or by its speed; else turns that wait for each other.
    """
    if client_share >= CPU_SHARE_MIN:
        return "client", None
    if critical_share >= CRITICAL_SHARE_MIN:
        return "gating", None
    name = max(uses, key=lambda one: (uses[one].waiting, uses[one].slot_share))
    use = uses[name]
    if use.kv_wait_share >= KV_SHARE_MIN:
        return "kv", name
    if use.waiting >= WAITING_MIN or use.slot_share >= BUSY_SHARE_MIN:
        return "engine", name
    return "gating", None
