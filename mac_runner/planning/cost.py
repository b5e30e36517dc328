"""What a study will take: its setups, simulated on engines as a calibration has measured them.

The calibration is a run, whose events show the engines and whose conversations are played again, or a file of
`mac-run calibrate`, with the replies of scripted players.

Each planned conversation is one that finished in the run, drawn with replacement. A plan of 10,000 can so be made of a
pilot of 50, and each kind of conversation is as frequent as it was there. A resampling first draws which conversations
of the run there are to draw from, so that several of them show how far a pilot of that size can mislead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Final, NamedTuple

from mac_runner.backends.base import lookahead_for
from mac_runner.clock import SystemClock
from mac_runner.config import differences
from mac_runner.data.sources import sources_of
from mac_runner.environments.base import Environment, Policy
from mac_runner.errors import ConfigError, RequestRefusedError
from mac_runner.latency import CHARS_PER_TOKEN, StepModel
from mac_runner.plan import Plan
from mac_runner.planning.engine import KV_TOKENS_UNKNOWN, STEP_TOKENS, EngineModel, Load, ReplySource, scripted_replies
from mac_runner.planning.forecast import CLIENT_MS, TURNS_MAX, CriticalPath, Forecast, Study, critical_path, forecast
from mac_runner.planning.observed import FileCalibration, Measured, RunCalibration
from mac_runner.runs.engines import Engine, EnginePlan, plan_engines
from mac_runner.runs.setup import ExperimentSet, RunRequest, Setup, set_up
from mac_runner.scheduler import Source
from mac_runner.scheduler.attempt import Unrecorded
from mac_runner.store import Run, replies_of, task_of
from mac_runner.types import Prompt, Reply, Request, Task, stable_hash

RESAMPLINGS: Final = 20
SLOTS_UNKNOWN: Final = 16
ROW_TURNS_MIN: Final = 20_000
"""Each row of a table simulates so many turns at least, where the study has them."""
SPREAD_TURNS: Final = 2_000
"""How many turns a resampling simulates at most."""
_SPREAD_SLOTS: Final = 16
_FOLLOWING: Final = 4
_PLAYERS: Final = ("heuristic", "discussant", "echo", "random")
"""The scripted players that speak where the calibration has no replies, the first one that the environment has."""
_SCRIPTED: Final = EngineModel(
    steps=StepModel(step_ms=0.001, token_ms=0, prompt_token_ms=0, context_token_ms=0), slots=1_000, lookahead=0
)
"""A program that answers at once."""
_OF_A_SERIES: Final = frozenset({"seed", "experiment_metadata.experiment_name"})
"""In these, runs of one experiment may differ."""
POOL_MAX: Final = 256
"""How many conversations of a run are kept to draw from."""
_BEGINNINGS_OF: Final = 32


class Recorded(NamedTuple):
    """A conversation that finished."""

    task: Task
    replies: Mapping[str, Reply]
    """By the key of the turn."""


def recorded_conversations(run: Run) -> list[Recorded]:
    """Conversations that finished in a run, at most POOL_MAX of them, evenly over the run."""
    rows = [row for row in run.rows() if row.get("status") == "finished"]
    every = max(1, -(-len(rows) // POOL_MAX))
    transcripts = map(run.acknowledged, rows[::every])
    return [Recorded(task_of(one), {turn.turn_key: turn.reply for turn in replies_of(one)}) for one in transcripts]


class Resampled:
    """Recorded conversations in place of planned ones. `resampling` 0 draws from all of them."""

    def __init__(self, recorded: Sequence[Recorded], resampling: int = 0) -> None:
        self._resampling = resampling
        self._pool = recorded
        if resampling:
            self._pool = Random(resampling).choices(recorded, k=len(recorded))  # noqa: S311 - statistics

    def tasks(self, plan: Plan) -> Plan:
        """The same tasks by name and index; what is played in each is a recorded conversation."""
        return plan.made_by(
            lambda task: replace(self._drawn(task.task_id).task, index=task.index, task_id=task.task_id)
        )

    def reply(self, request: Request) -> Reply:
        """The recorded reply to a request. Raises RequestRefusedError where the conversation has no such turn."""
        found = self._drawn(request.conversation).replies.get(request.turn.key)
        if found is None:
            raise RequestRefusedError(f"the recorded conversation has no turn {request.turn.key}")
        return found

    def _drawn(self, task_id: str) -> Recorded:
        return self._pool[stable_hash("resample", self._resampling, task_id) % len(self._pool)]


def beginnings(recorded: Sequence[Recorded], environment: Environment) -> tuple[Prompt, ...]:
    """The first prompts of some recorded conversations."""
    conversations = [environment.open(one.task) for one in recorded[:_BEGINNINGS_OF]]
    return tuple(conversation.prompt(turn) for conversation in conversations for turn in conversation.turns())


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRequest:
    """What a user asks to plan."""

    run: RunRequest
    calibration: Path | None = None
    """A run, or a file of calibrations; not needed where no model needs an engine."""
    lanes: tuple[int, ...] = ()
    """Numbers of lanes of each engine; empty: as the experiment has it."""
    slots: tuple[int, ...] = ()
    """Numbers of requests that each lane serves at once; empty: as the experiment has it."""
    kv_tokens: int | None = None
    """The KV cache of a lane, where the calibration does not say it."""
    gpu: str | None = None
    """Which calibrations of a file are meant."""
    policy: str | None = None
    """The scripted player whose replies are used."""
    reply_tokens: int | None = None
    """How many tokens a scripted player's reply takes."""
    resamplings: int = RESAMPLINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A number of lanes, with a number of slots each, and what the study takes on them."""

    lanes: int
    slots: int
    gpus: int
    """All lanes together; a lane of an engine without a GPU counts as one."""
    forecast: Forecast

    @property
    def gpu_hours(self) -> float:
        """All GPUs for as long as the run takes."""
        return self.gpus * self.forecast.hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a study will take."""

    name: str
    rows: tuple[Row, ...]
    """Empty where no model needs an engine."""
    spread: tuple[float, float] | None
    """Nine of ten resamplings take between so many times and so many times as long; None where none were made."""
    resamplings: int
    replies: tuple[str, ...]
    """Where the replies come from."""
    notes: tuple[str, ...]

    @property
    def enough_lanes(self) -> int | None:
        """With more lanes than so many, the study takes at least 0.9 times as long; None where that was not seen."""
        by_slots: dict[int, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: row.lanes):
            by_slots.setdefault(row.slots, []).append(row)
        most = max(by_slots.values(), key=len, default=[])
        found = (a.lanes for a, b in pairwise(most) if b.forecast.seconds > 0.9 * a.forecast.seconds)
        return next(found, None)


def cost_of(request: CostRequest, say: Callable[[str], None]) -> Cost:
    """Simulate a study on each number of lanes and slots.

    Raises ConfigError where the calibration does not fit the experiment, RunDirectoryError for a directory that is none
    of a run.
    """
    chosen = set_up(request.run)
    plan = plan_engines(chosen.setups, chosen.setups, SystemClock(), say, is_dry=True)
    if all(engine.policy is not None for engine in plan.engines.values()):
        note = (
            "all models are scripted players: no engine is needed, and the run takes no GPU; to plan for engines, "
            "choose them with --profile"
        )
        return Cost(name=chosen.name, rows=(), spread=None, resamplings=0, replies=(), notes=(note,))
    path = request.calibration
    if path is None or not path.exists():
        lacks = "name a run or a file" if path is None else f"there is no run and no file {path}"
        raise ConfigError(
            f"--calibration: {lacks}; play a pilot of the experiment with --limit 20, or measure its engines with "
            "mac-run calibrate"
        )
    planned = _Planned(request, chosen, plan, path, say)
    shapes = [(lanes, slots) for slots in request.slots or (None,) for lanes in request.lanes or (None,)]
    alone, rows = critical_path(planned.study(*shapes[0])), list[Row]()
    turns_max = max(ROW_TURNS_MIN, TURNS_MAX // len(shapes))
    for number, (lanes, slots) in enumerate(shapes, start=1):
        study = planned.study(lanes, slots)
        sizes = ", ".join(f"{name}: {model.lanes} x {model.slots}" for name, model in study.engines.items())
        say(f"plan: simulating {number} of {len(shapes)} ({sizes})")
        rows.append(planned.row(study, forecast(study, turns_max=turns_max, path=alone)))
    return Cost(
        name=planned.chosen.name,
        rows=tuple(rows),
        spread=planned.spread(*shapes[0], rows[0].forecast, alone),
        resamplings=request.resamplings,
        replies=tuple(planned.replies_from),
        notes=tuple(dict.fromkeys(planned.notes)),
    )


class _Planned:
    """An experiment set with what its calibration says."""

    def __init__(
        self, request: CostRequest, chosen: ExperimentSet, plan: EnginePlan, path: Path, say: Callable[[str], None]
    ) -> None:
        self.chosen = chosen
        self._request, self._plan, self._say = request, plan, say
        self.notes: list[str] = []
        self.replies_from: dict[str, None] = {}
        runs = [source.contents for source in sources_of([path]).runs] if path.is_dir() else []
        self._refuse_other_environments(runs)
        note = self.notes.append
        self._calibration = RunCalibration(runs, note) if runs else FileCalibration(path, request.gpu, note)
        self._measured = {
            name: self._calibration.measured(engine) for name, engine in self._plan.engines.items() if not engine.policy
        }
        self._environments = {setup.slug: setup.environment() for setup in chosen.setups}
        self._recorded = {setup.slug: self._recorded_of(setup, runs) for setup in chosen.setups}
        self._beginnings = {slug: beginnings(found, self._environments[slug]) for slug, found in self._recorded.items()}

    def study(self, lanes: int | None, slots: int | None, resampling: int = 0) -> Study:
        """The study on engines of this size; None for what the experiment has."""
        return Study(
            loads=[self._load(setup, resampling) for setup in self.chosen.setups],
            engines={name: self._model(engine, lanes, slots) for name, engine in self._plan.engines.items()},
            client_ms=self._calibration.client_ms or CLIENT_MS,
        )

    def row(self, study: Study, found: Forecast) -> Row:
        """A row of the table."""
        played = {name: model for name, model in study.engines.items() if self._plan.engines[name].policy is None}
        first = next(iter(played.values()))
        gpus = sum(model.lanes * self._plan.engines[name].definition.serving.gpus for name, model in played.items())
        return Row(lanes=first.lanes, slots=first.slots, gpus=gpus, forecast=found)

    def spread(
        self, lanes: int | None, slots: int | None, found: Forecast, alone: CriticalPath
    ) -> tuple[float, float] | None:
        """How much longer and shorter the study takes with other conversations of the same kind.

        A study that is too large is made smaller for it, in lanes, slots and conversations. These scatter more than the
        whole: where turns do not limit each other, its time is a sum over conversations, and the interval is narrowed
        as the scatter of a mean is.
        """
        count = self._request.resamplings
        if not count:
            return None
        self._say(f"plan: {count} resamplings")
        each = max(1.0, found.turns / max(1, found.conversations))
        played = max(len(self.chosen.setups), round(SPREAD_TURNS / each))
        is_whole = played >= found.conversations

        def seconds(resampling: int) -> float:
            study = self.study(lanes, slots, resampling)
            return forecast(study if is_whole else _smaller(study, played), path=alone).seconds

        drawn = sorted(seconds(number) for number in range(1, count + 1))
        least, most = drawn[count // 20], drawn[-1 - count // 20]
        if is_whole:
            return least / found.seconds, most / found.seconds
        factor, usual = self._narrowing(played, found), median(drawn)
        scatter = "the interval is of so few"
        if factor != 1:
            times = f"{1 / factor:.3g} times as much as the forecast"
            scatter = f"these scatter {times}, so the interval is narrowed by that"
        self.notes.append(f"each resampling played {played} conversations on one lane; {scatter}")
        return 1 + factor * (least / usual - 1), 1 + factor * (most / usual - 1)

    def _narrowing(self, played: int, found: Forecast) -> float:
        """How much less the forecast scatters than `played` conversations: all are drawn from the same pool."""
        if found.limit == "gating":
            return 1.0
        pool = sum(len(recorded) for recorded in self._recorded.values())
        of_pool = 1 / pool if pool else 0.0
        return math.sqrt((of_pool + 1 / found.played) / (of_pool + 1 / played))

    def _load(self, setup: Setup, resampling: int) -> Load:
        environment, recorded = self._environments[setup.slug], self._recorded[setup.slug]
        tasks = setup.tasks
        replies: ReplySource
        if recorded:
            drawn = Resampled(recorded, resampling)
            tasks, replies = drawn.tasks(tasks), drawn.reply
        else:
            replies = self._scripted(setup, environment)
            if resampling:
                seed = stable_hash(setup.experiment.seed, "resampling", resampling) % (1 << 31)
                experiment = setup.experiment.model_copy(update={"seed": seed})
                tasks = replace(setup, loaded=replace(setup.loaded, experiment=experiment)).tasks
        source = Source(
            environment=environment,
            environment_name=setup.environment_name,
            experiment_name=setup.name,
            engines=self._plan.served[setup.slug],
            recorder=Unrecorded(),
            retry=setup.experiment.retry_config,
        )
        return Load(source=source, tasks=tasks, replies=replies, beginnings=self._beginnings[setup.slug])

    def _recorded_of(self, setup: Setup, runs: Sequence[Run]) -> list[Recorded]:
        """The conversations of the calibration that are of this very experiment; none where a player is asked for."""
        if self._request.policy is not None:
            return []
        for run in runs:
            directory = run.layout.directory
            found = differences(run.resolved, setup.loaded.resolved).identity
            other = [one.path for one in found if one.path not in _OF_A_SERIES]
            recorded = [] if other else recorded_conversations(run)
            if recorded:
                source = f"{setup.name}: {len(recorded)} finished conversations of {directory}, drawn with replacement"
                self.replies_from[source] = None
                return recorded
            why = f"is of another experiment ({other[0]} differs)" if other else "has no finished conversation"
            self.notes.append(f"{setup.name}: {directory} {why}, so only its engines and token counts are used")
        return []

    def _scripted(self, setup: Setup, environment: Environment) -> ReplySource:
        """Replies of scripted players: those of the experiment, and for other models the one asked for."""
        replies = dict[str, ReplySource]()
        for model, name in self._plan.served[setup.slug].items():
            player = self._plan.engines[name].policy or self._player(setup, environment)
            measured = self._measured.get(name)
            chars_per_token = CHARS_PER_TOKEN if measured is None else measured.chars_per_token
            tokens_of = None if measured is None else self._tokens_of(measured)
            replies[model] = scripted_replies(player, chars_per_token=chars_per_token, tokens_of=tokens_of)
        return lambda request: replies[request.turn.model](request)

    def _player(self, setup: Setup, environment: Environment) -> Policy:
        wanted = self._request.policy
        for name in _PLAYERS if wanted is None else (wanted,):
            try:
                found = environment.policy(name)
            except ConfigError:
                if wanted is not None:
                    raise
                continue
            self.replies_from[f"{setup.name}: the scripted player {name!r}"] = None
            return found
        raise ConfigError(
            f"{setup.name}: the calibration has no conversations of this experiment, and the environment has none of "
            f"the scripted players {', '.join(_PLAYERS)}; name a run of the experiment, or a player with --policy"
        )

    def _tokens_of(self, measured: Measured) -> Callable[[Random], int] | None:
        """How many tokens a scripted player's reply takes; None: as many as its text has."""
        tokens, known = self._request.reply_tokens, measured.reply_tokens
        if tokens is not None:
            return lambda _random: tokens
        return (lambda random: random.choice(known)) if known else None

    def _model(self, engine: Engine, lanes: int | None, slots: int | None) -> EngineModel:
        """An engine of this size; None: as the experiment has it. A scripted player answers at once."""
        measured = self._measured.get(engine.name)
        if measured is None:
            return _SCRIPTED
        note, serving = self.notes.append, engine.definition.serving
        own_lanes = serving.lanes or measured.lanes
        slots = slots or serving.slots or (measured.capacity and max(1, measured.capacity // own_lanes))
        if not slots:
            slots = SLOTS_UNKNOWN
            note(f"{engine.name}: nothing says how many requests a lane serves at once; {slots} are assumed")
        if slots > measured.in_flight:
            note(
                f"{engine.name}: {slots} slots, and at most {measured.in_flight} requests were in flight when the "
                "engine was measured; beyond that the step model is extrapolated"
            )
        elif not measured.is_sweep and slots * 2 <= measured.in_flight:
            note(
                f"{engine.name}: {slots} slots, and the run had up to {measured.in_flight} requests in flight; one "
                "load does not show well how an engine works at another: mac-run calibrate measures several"
            )
        kv_tokens = self._request.kv_tokens or measured.cache_tokens
        if kv_tokens is None:
            note(
                f"{engine.name}: the size of the KV cache is not known, so it limits nothing here; --kv-tokens says it"
            )
        return EngineModel(
            steps=measured.steps,
            lanes=lanes or own_lanes,
            slots=slots,
            step_tokens=serving.step_tokens or STEP_TOKENS,
            kv_tokens=kv_tokens or KV_TOKENS_UNKNOWN,
            context_tokens=serving.context_tokens,
            admits_by_tokens=serving.admits_by_tokens and kv_tokens is not None,
            lookahead=lookahead_for(slots) if serving.admits_by_tokens else None,
            is_prefix_cached=measured.is_prefix_cached,
            chars_per_token=measured.chars_per_token,
        )

    def _refuse_other_environments(self, runs: Sequence[Run]) -> None:
        asked = {setup.environment_name for setup in self.chosen.setups}
        for run in runs:
            if run.environment_name not in asked:
                raise ConfigError(
                    f"{run.layout.directory} is a run of the environment {run.environment_name!r}, and the "
                    f"experiment is of {', '.join(sorted(asked))}; name a run of the same environment"
                )


def _smaller(study: Study, conversations: int) -> Study:
    """A study of so many conversations on one lane of each engine, with so few slots that several follow in each."""
    each = max(1, conversations // len(study.loads))
    return replace(
        study,
        loads=[replace(load, tasks=load.tasks[:each]) for load in study.loads],
        engines={
            name: replace(model, lanes=1, slots=min(model.slots, _SPREAD_SLOTS, max(1, conversations // _FOLLOWING)))
            for name, model in study.engines.items()
        },
    )
