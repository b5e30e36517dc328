"""What a study will take: its setups as a study of the simulation, on engines as a calibration has measured them.

The calibration is a run, whose events show the engines and whose conversations are played again, or a file of
`mac-run calibrate`, with the replies of scripted players.

Each planned conversation is one that finished in the run, drawn with replacement. A plan of 10,000 can so be made of a
pilot of 50, and each kind of conversation is as frequent as it was there. A resampling first draws which conversations
of the run there are to draw from, so that several of them show how far a pilot of that size can mislead.

Copies of a conversation would find each other's prompts in the prefix cache, as different conversations do not. So each
copy differs from all others from the place on at which its prompt goes beyond what all conversations begin with.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final, NamedTuple, cast

from mac_runner.clock import SystemClock
from mac_runner.config import differences
from mac_runner.data.sources import sources_of
from mac_runner.environments.base import Conversation, Environment, Policy
from mac_runner.errors import ConfigError, RequestRefusedError
from mac_runner.latency import CHARS_PER_TOKEN, StepModel
from mac_runner.plan import Plan
from mac_runner.planning.engine import EngineModel, ReplySource, ScriptedReplies
from mac_runner.planning.forecast import (
    CLIENT_MS,
    TURNS_MAX,
    CriticalPath,
    Forecast,
    Load,
    Study,
    critical_path,
    forecast,
)
from mac_runner.planning.observed import FileCalibration, RunCalibration, engine_model, known_calibrations
from mac_runner.runs.engines import Engine, plan_engines, tensor_parallel_of
from mac_runner.runs.setup import ExperimentSet, RunRequest, Setup, set_up
from mac_runner.store import Run, replies_of, task_of
from mac_runner.types import JsonObject, Message, Prompt, Reply, Request, Task, Turn, stable_hash

SCRIPTED_SLOTS: Final = 1_000
RESAMPLINGS: Final = 20
ROW_TURNS_MIN: Final = 20_000
"""Each row of a table simulates so many turns at least, where the study has them."""
SPREAD_TURNS: Final = 2_000
"""How many turns a resampling simulates at most."""
_SPREAD_SLOTS: Final = 16
_FOLLOWING: Final = 4
_PLAYERS: Final = ("heuristic", "discussant", "echo", "random")
"""The scripted players that speak where the calibration has no replies, the first one that the environment has."""
_FREE: Final = StepModel(step_ms=0.001, token_ms=0, prompt_token_ms=0, context_token_ms=0)
"""A program that answers at once."""
_OF_A_SERIES: Final = frozenset({"seed", "experiment_metadata.experiment_name"})
"""In these, runs of one experiment may differ."""
POOL_MAX: Final = 256
"""How many conversations of a run are kept to draw from."""
_FIRST_PROMPTS_OF: Final = 32
_MARKS: Final = 0xE000
"""The characters that copies differ in: Unicode's private area, which no prompt has."""
_MARKS_COUNT: Final = 0x1900


class Recorded(NamedTuple):
    """A conversation that finished."""

    task: Task
    replies: Mapping[str, Reply]
    """By the key of the turn."""


def recorded_conversations(contents: Run) -> list[Recorded]:
    """Conversations that finished in a run, at most POOL_MAX of them, evenly over the run."""
    rows = [row for row in contents.rows() if row.get("status") == "finished"]
    every = max(1, -(-len(rows) // POOL_MAX))
    return [_recorded(contents.acknowledged(row)) for row in rows[::every]]


def _recorded(transcript: JsonObject) -> Recorded:
    return Recorded(task_of(transcript), {one.turn_key: one.reply for one in replies_of(transcript)})


@dataclass(frozen=True)
class Resampled:
    """The tasks of a plan with the replies of recorded conversations. `resampling` 0 draws from all of them."""

    recorded: Sequence[Recorded]
    environment: Environment
    resampling: int = 0

    def tasks(self, plan: Plan) -> Plan:
        """The same tasks by name and index; what is played in each is a recorded conversation."""
        return plan.made_by(
            lambda task: replace(self._drawn(task.task_id).task, index=task.index, task_id=task.task_id)
        )

    def __call__(self, request: Request) -> Reply:
        """The recorded reply to a request. Raises RequestRefusedError where the conversation has no such turn."""
        found = self._drawn(request.conversation).replies.get(request.turn.key)
        if found is None:
            raise RequestRefusedError(f"the recorded conversation has no turn {request.turn.key}")
        return found

    @property
    def copies(self) -> Environment:
        """The environment, in which no two copies of a conversation have a prompt in common."""
        return cast("Environment", _Copies(self.environment, self._beginnings))

    @cached_property
    def _pool(self) -> Sequence[Recorded]:
        if not self.resampling:
            return self.recorded
        return Random(self.resampling).choices(self.recorded, k=len(self.recorded))  # noqa: S311 - statistics

    def _drawn(self, task_id: str) -> Recorded:
        return self._pool[stable_hash("resample", self.resampling, task_id) % len(self._pool)]

    @cached_property
    def _beginnings(self) -> list[str]:
        """The first prompts of conversations, in order."""
        found = set[str]()
        for one in self.recorded[:_FIRST_PROMPTS_OF]:
            conversation = self.environment.open(one.task)
            found |= {_text(conversation.prompt(turn)) for turn in conversation.turns()}
        return sorted(found)


class _Copies:
    """An environment whose prompts have a mark of their conversation."""

    def __init__(self, environment: Environment, beginnings: Sequence[str]) -> None:
        self._environment = environment
        self._beginnings = beginnings

    def open(self, task: Task) -> Conversation:
        mark = chr(_MARKS + stable_hash("mark", task.task_id) % _MARKS_COUNT)
        return cast("Conversation", _Copy(self._environment.open(task), mark, self._beginnings))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)


class _Copy:
    def __init__(self, conversation: Conversation, mark: str, beginnings: Sequence[str]) -> None:
        self._conversation = conversation
        self._mark = mark
        self._beginnings = beginnings

    def prompt(self, turn: Turn) -> Prompt:
        prompt = self._conversation.prompt(turn)
        text, known = _text(prompt), self._beginnings
        at = bisect_left(known, text)
        shared = max((_shared(text, other) for other in known[max(0, at - 1) : at + 1]), default=0)
        return _marked(prompt, shared, self._mark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conversation, name)


def _text(prompt: Prompt) -> str:
    return "".join([f"{message.role}\x1f{message.content}\x1e" for message in prompt.messages])


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one.startswith(other[:middle]):
            least = middle
        else:
            most = middle - 1
    return least


def _marked(prompt: Prompt, at: int, mark: str) -> Prompt:
    """The prompt with a mark in place of its character at `at` of `_text`; unchanged where that is its end."""
    for number, message in enumerate(prompt.messages):
        at -= len(message.role) + 1
        if at < len(message.content):
            place = max(0, at)
            content = f"{message.content[:place]}{mark}{message.content[place + 1 :]}"
            marked = Message(role=message.role, content=content)
            return replace(prompt, messages=(*prompt.messages[:number], marked, *prompt.messages[number + 1 :]))
        at -= len(message.content) + 1
    return prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRequest:
    """What a user asks to plan."""

    run: RunRequest
    calibration: Path
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
        most = max(by_slots.values(), key=len)
        found = (a.lanes for a, b in pairwise(most) if b.forecast.seconds > 0.9 * a.forecast.seconds)
        return next(found, None)


def cost_of(request: CostRequest, say: Callable[[str], None]) -> Cost:
    """Simulate a study on each number of lanes and slots.

    Raises ConfigError where the calibration does not fit the experiment, RunDirectoryError for a directory that is none
    of a run.
    """
    path = request.calibration
    if not path.exists():
        raise ConfigError(
            f"--calibration: there is no run and no file {path}; play a pilot of the experiment with --limit 20, or "
            "measure its engines with mac-run calibrate"
        )
    runs = [source.contents for source in sources_of([path]).runs] if path.is_dir() else []
    planned = _Planned(request, set_up(request.run), runs, say)
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
        self, request: CostRequest, chosen: ExperimentSet, runs: Sequence[Run], say: Callable[[str], None]
    ) -> None:
        self.chosen = chosen
        self._request, self._runs, self._say = request, runs, say
        self.notes: list[str] = []
        self.replies_from: dict[str, None] = {}
        self._plan = plan_engines(chosen.setups, chosen.setups, SystemClock(), say, is_dry=True)
        if all(engine.policy is not None for engine in self._plan.engines.values()):
            raise ConfigError(
                f"{chosen.name}, profile {chosen.profile}: all models are scripted players, which need no engine; "
                "choose another --profile"
            )
        self._refuse_other_environments()
        self._calibration = self._calibration_of(request)
        self._measured = {
            name: self._calibration.measured(engine) for name, engine in self._plan.engines.items() if not engine.policy
        }
        self._environments = {setup.slug: setup.environment() for setup in chosen.setups}
        self._recorded = {setup.slug: self._recorded_of(setup) for setup in chosen.setups}

    def study(self, lanes: int | None, slots: int | None, resampling: int = 0) -> Study:
        """The study on engines of this size; None for what the experiment has."""
        loads, sources = [], dict[str, ReplySource]()
        for setup in self.chosen.setups:
            load, sources[setup.name] = self._load(setup, resampling)
            loads.append(load)
        by_conversation = _ByExperiment(sources)
        models = {name: self._model(engine, lanes, slots) for name, engine in self._plan.engines.items()}
        return Study(
            loads=loads,
            engines=models,
            replies=dict.fromkeys(models, by_conversation),
            client_ms=self._calibration.client_ms or CLIENT_MS,
        )

    def row(self, study: Study, found: Forecast) -> Row:
        """A row of the table."""
        played = {name: model for name, model in study.engines.items() if self._plan.engines[name].policy is None}
        first = next(iter(played.values()))
        gpus = sum(
            model.lanes * tensor_parallel_of(self._plan.engines[name].definition) for name, model in played.items()
        )
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
        outside = count // 20
        if is_whole:
            usual = seconds(0)
            return drawn[outside] / usual, drawn[-1 - outside] / usual
        factor, usual = self._narrowing(played, found), median(drawn)
        scatter = (
            "the interval is of so few"
            if factor == 1
            else f"these scatter {1 / factor:.3g} times as much as the forecast, so the interval is narrowed by that"
        )
        self.notes.append(f"each resampling played {played} conversations on one lane; {scatter}")
        return 1 + factor * (drawn[outside] / usual - 1), 1 + factor * (drawn[-1 - outside] / usual - 1)

    def _narrowing(self, played: int, found: Forecast) -> float:
        """How much less the forecast scatters than `played` conversations: all are drawn from the same pool."""
        if found.limit == "gating":
            return 1.0
        pool = sum(len(recorded) for recorded in self._recorded.values())
        of_pool = 1 / pool if pool else 0.0
        return math.sqrt((of_pool + 1 / found.played) / (of_pool + 1 / played))

    def _load(self, setup: Setup, resampling: int) -> tuple[Load, ReplySource]:
        environment, recorded = self._environments[setup.slug], self._recorded[setup.slug]
        tasks = setup.tasks
        replies: ReplySource
        if recorded:
            drawn = Resampled(recorded, environment, resampling)
            environment, tasks, replies = drawn.copies, drawn.tasks(tasks), drawn
        else:
            if resampling:
                seed = stable_hash(setup.experiment.seed, "resampling", resampling) % (1 << 31)
                experiment = setup.experiment.model_copy(update={"seed": seed})
                tasks = replace(setup, loaded=replace(setup.loaded, experiment=experiment)).tasks
            replies = self._scripted(setup, environment)
        load = Load(
            environment=environment,
            environment_name=setup.environment_name,
            experiment_name=setup.name,
            tasks=tasks,
            engines=self._plan.served[setup.slug],
            retry=setup.experiment.retry_config,
        )
        return load, replies

    def _recorded_of(self, setup: Setup) -> list[Recorded]:
        """The conversations of the calibration that are of this very experiment; none where a player is asked for."""
        if self._request.policy is not None:
            return []
        for contents in self._runs:
            directory = contents.layout.directory
            found = differences(contents.resolved, setup.loaded.resolved).identity
            other = [one.path for one in found if one.path not in _OF_A_SERIES]
            recorded = [] if other else recorded_conversations(contents)
            if recorded:
                source = f"{setup.name}: {len(recorded)} finished conversations of {directory}, drawn with replacement"
                self.replies_from[source] = None
                return recorded
            why = f"is of another experiment ({other[0]} differs)" if other else "has no finished conversation"
            self.notes.append(f"{setup.name}: {directory} {why}, so only its engines and token counts are used")
        return []

    def _scripted(self, setup: Setup, environment: Environment) -> ReplySource:
        """Replies of scripted players: those of the experiment, and for other models the one asked for."""
        served = self._plan.served[setup.slug]
        players = {
            model: self._plan.engines[name].policy or self._player(setup, environment) for model, name in served.items()
        }
        replies = {
            model: ScriptedReplies(
                policy_of=lambda _conversation, model: players[model],
                chars_per_token=CHARS_PER_TOKEN if name not in self._measured else self._measured[name].chars_per_token,
                tokens_of=self._tokens_of(name),
            )
            for model, name in served.items()
        }
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

    def _tokens_of(self, engine: str) -> Callable[[Random], int] | None:
        """How many tokens a scripted player's reply takes; None: as many as its text has."""
        if engine not in self._measured:
            return None
        if (tokens := self._request.reply_tokens) is not None:
            return lambda _random: tokens
        known = self._measured[engine].reply_tokens
        return (lambda random: random.choice(known)) if known else None

    def _model(self, engine: Engine, lanes: int | None, slots: int | None) -> EngineModel:
        """An engine of this size; a scripted player is an engine that answers at once."""
        measured = self._measured.get(engine.name)
        if measured is None:
            return EngineModel(steps=_FREE, slots=SCRIPTED_SLOTS, lookahead=0)
        kv_tokens = self._request.kv_tokens
        return engine_model(engine, measured, lanes=lanes, slots=slots, kv_tokens=kv_tokens, note=self.notes.append)

    def _calibration_of(self, request: CostRequest) -> RunCalibration | FileCalibration:
        if self._runs:
            return RunCalibration(self._runs, self.notes.append)
        known = known_calibrations(request.calibration, "--calibration")
        return FileCalibration(request.calibration, known, request.gpu, self.notes.append)

    def _refuse_other_environments(self) -> None:
        asked = {setup.environment_name for setup in self.chosen.setups}
        for contents in self._runs:
            if contents.environment_name not in asked:
                raise ConfigError(
                    f"{contents.layout.directory} is a run of the environment {contents.environment_name!r}, and the "
                    f"experiment is of {', '.join(sorted(asked))}; name a run of the same environment"
                )


class _ByExperiment:
    """The replies of each experiment; a conversation is named after its own."""

    def __init__(self, sources: Mapping[str, ReplySource]) -> None:
        self._sources = sources

    def __call__(self, request: Request) -> Reply:
        return self._sources[request.conversation.rpartition("-")[0]](request)


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
