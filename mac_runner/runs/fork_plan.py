"""Forks of recorded conversations: which replies stay, what changes, and what it will cost. Touches nothing.

A fork keeps the replies that come before its turn in the order of the transcript. The environment is opened again with
the settings of the fork and plays them, and each prompt is compared with the digest of the one that was sent. So a
change that an earlier turn would have seen is found, and refused unless it is asked for by `is_rebased`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from mac_runner.config import Experiment, Loaded, revised
from mac_runner.environments import build_environment
from mac_runner.environments.base import Conversation, Environment
from mac_runner.environments.replay import replay
from mac_runner.errors import ConfigError, ConversationError, RunDirectoryError, boundary
from mac_runner.plan import sampling_of
from mac_runner.problems import suggestion
from mac_runner.reports import find_turn, listed, matching, parse_condition
from mac_runner.runs.policies import Policy, fork_policies
from mac_runner.runs.recorded import ended_row, recorded_experiment
from mac_runner.runs.setup import Setup
from mac_runner.store import Run, is_grid, read_run, replies_of, task_of
from mac_runner.store.fork import Branch, ForkRecord
from mac_runner.store.records import branch_id, entry, objects, row_id
from mac_runner.store.traces import Traces
from mac_runner.types import (
    Agent,
    Draw,
    Fork,
    JsonObject,
    JsonValue,
    PolicyVersion,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Reply,
    Task,
    TokenCount,
    Turn,
)

FIXED: Final = ("seed", "experiment_metadata", "report", "plugins", "profile")
"""Sections that a fork takes from its parent: they decide which conversation it is."""
FIXED_KEYS: Final = (
    "conversations",
    "samples_per_task",
    "environment",
    "template_file",
    "template",
    "questions",
    "topics",
)
"""Keys that say what a conversation is about, or name files, which a fork does not read again."""
SILENCE_ATTEMPTS_MAX: Final = 20
"""How many empty replies in a row may stay without a default act."""


class Arm(NamedTuple):
    """What happens at the turn of a fork: drawn again, kept as it was said, silence, or a reply that is given."""

    name: str = "fork"
    is_kept: bool = False
    is_silent: bool = False
    reply: str | None = None


def arm_of_reply(reply: str | None) -> Arm:
    """The arm of a fork without others: drawn again, or the reply that is given."""
    return Arm() if reply is None else Arm("reply", reply=reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """What a user asks to fork."""

    run: Path
    turn: str
    """The key of a turn (`12/Abel/0/0`), the beginning of a single one (`12/Abel`), or its place (`#60`), from 0."""
    game: str | None = None
    where: tuple[str, ...] = ()
    """In place of a game: conditions that all forked conversations meet."""
    is_round: bool = False
    """Draw all turns again that are open together with this one."""
    overrides: tuple[str, ...] = ()
    """`KEY=VALUE`, laid over the parent's experiment."""
    seats: tuple[str, ...] = ()
    """`AGENT.model=NAME`: the model of one agent from the turn on."""
    draws: range = range(1)
    arms: tuple[Arm, ...] = (Arm(),)
    is_rebased: bool = False
    """Keep the replies though the prompts before the turn have changed."""
    policies: tuple[Policy, ...] = ()
    """The versions of models that are not those of the turns which are drawn again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFork:
    """A fork that can be written: its experiment, its tasks, and the replies that each begins with."""

    loaded: Loaded
    environment: Environment
    record: ForkRecord
    branches: tuple[Branch, ...]
    budget: Budget
    policies: Mapping[str, Sequence[PolicyVersion]]
    """The versions that its journal begins with, by model; each model plays with its last one."""
    given: tuple[Policy, ...]
    """What the caller says of them."""
    outcome: JsonObject | None
    """That of the first parent, if it finished."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.loaded.experiment.experiment_metadata.experiment_name

    def setup(self, directory: Path) -> Setup:
        """The fork as something to play in a directory."""
        return Setup(
            loaded=self.loaded,
            directory=directory,
            environment=lambda: self.environment,
            lineup=self.environment.lineup,
            transcript_bytes_min=self.environment.transcript_bytes_min,
            plan=self.record.plan(),
        )


class Budget(NamedTuple):
    """What a fork will take, by what the parents took from there on."""

    conversations: int
    turns: int
    tokens: TokenCount


class _Point(NamedTuple):
    """Where a conversation is forked: its transcript, the place of the turn among its turns, and its token traces."""

    transcript: JsonObject
    place: int
    traces: Traces

    @property
    def key(self) -> str:
        return str(objects(self.transcript, "turns")[self.place]["turn"])

    @property
    def agent(self) -> str:
        return str(objects(self.transcript, "turns")[self.place]["agent"])


def plan_fork(request: ForkRequest) -> PlannedFork:
    """Everything about a fork except its directory.

    Raises ConfigError for a request that cannot be met, and RunDirectoryError where the parent cannot be played.
    """
    if is_grid(request.run):
        raise ConfigError(f"RUN: {request.run} is a grid; name the directory of one of its combinations")
    contents = read_run(request.run)
    parent = recorded_experiment(contents)
    _check_overrides(request.overrides)
    loaded = revised(parent.resolved, request.overrides, str(contents.layout.config))
    environment = build_environment(loaded.experiment)
    points, notes = _points(contents, request)
    branches: list[Branch] = []
    parents: list[JsonObject] = []
    for point, sha256 in points:
        before = len(branches)
        branches += _branches(environment, parent.experiment, loaded.experiment, point, request, len(branches))
        kept = min(len(branch.replies) for branch in branches[before:])
        parents.append(
            {
                "task": task_of(point.transcript).task_id,
                "run": str(request.run.resolve()),
                "transcript_sha256": sha256,
                "turn": point.key,
                "agent": point.agent,
                "place": point.place,
                "kept": kept,
            }
        )
    policies = fork_policies(
        request.policies,
        contents.state.policies,
        parent.experiment,
        loaded.experiment,
        {agent.model for task, _ in branches for agent in task.agents},
        [(objects(point.transcript, "turns"), point.place) for point, _ in points],
    )
    asked, tasks = _asked(request, policies), tuple(task for task, _ in branches)
    record = ForkRecord(asked=asked, parents=tuple(parents), tasks=tasks)
    budget = _budget([point for point, _ in points], len(request.draws) * len(request.arms))
    return PlannedFork(
        loaded=loaded,
        environment=environment,
        record=record,
        branches=tuple(branches),
        budget=budget,
        policies=policies,
        given=request.policies,
        outcome=outcome if isinstance(outcome := points[0][0].transcript["outcome"], dict) else None,
        notes=tuple(notes),
    )


def _check_overrides(overrides: Iterable[str]) -> None:
    for override in overrides:
        parts = override.partition("=")[0].split(".")
        if parts[0] in FIXED or not {*parts}.isdisjoint(FIXED_KEYS):
            raise ConfigError(
                f"--set {'.'.join(parts)}: a fork has this from its parent, whose seed, subject and files it keeps; "
                "start a run of another experiment instead"
            )


def _asked(request: ForkRequest, policies: Mapping[str, Sequence[PolicyVersion]]) -> JsonObject:
    """What was asked for, as `fork.json` records it."""
    overrides: list[JsonValue] = [*request.overrides]
    seats: list[JsonValue] = [*request.seats]
    arms: list[JsonValue] = [{"name": arm.name, "reply": arm.reply} for arm in request.arms]
    draws: list[JsonValue] = [*request.draws]
    versions: JsonObject = {
        model: {"version": found[-1].version, "sha256": found[-1].sha256} for model, found in policies.items()
    }
    return {
        "turn": request.turn,
        "round": request.is_round,
        "set": overrides,
        "seats": seats,
        "draws": draws,
        "arms": arms,
        "rebase": request.is_rebased,
        **({"policies": versions} if versions else {}),
    }


def _row(contents: Run, game: str) -> JsonObject:
    """The index row of the conversation to fork. Raises ConfigError for one that has not ended or is not planned."""
    try:
        return ended_row(contents, game)
    except ConfigError:
        planned = contents.planned()
        if game not in planned and game not in map(str, planned.values()):
            raise
        raise ConfigError(
            f"GAME: {game!r} has not ended, and only an ended conversation can be forked; {contents.counts.in_words}"
        ) from None


def _points(contents: Run, request: ForkRequest) -> tuple[list[tuple[_Point, str]], list[str]]:
    """The conversations to fork, each with its digest, and notes on those that have no such turn."""
    if request.game is not None:
        row = _row(contents, request.game)
        return [(_point(contents, row, request.turn), entry(row, "sha256", str))], []
    how = listed(contents.environment_name)
    conditions = [parse_condition(text, how.columns) for text in request.where]
    found: list[tuple[_Point, str]] = []
    without: list[str] = []
    wanted = {values["id"] for values in matching(contents.json_rows(), how, conditions)}
    for row in (row for row in contents.rows_in_task_order() if row_id(row) in wanted):
        try:
            found.append((_point(contents, row, request.turn), entry(row, "sha256", str)))
        except ConfigError:
            without.append(row_id(row))
    if not found:
        raise ConfigError(f"--where: no conversation meets the conditions and has a turn {request.turn!r}")
    notes = [f"left out, without a turn {request.turn}: {', '.join(without)}"] if without else []
    return found, notes


def _point(contents: Run, row: JsonObject, wanted: str) -> _Point:
    """Where the conversation of a row is forked, with its token traces."""
    transcript = contents.acknowledged(row)
    return _Point(transcript, _place(transcript, wanted), contents.traces(transcript))


def _replies(point: _Point) -> list[RecordedReply]:
    return [recorded.traced(point.traces) for recorded in replies_of(point.transcript)]


def _place(transcript: JsonObject, wanted: str) -> int:
    """The place of the turn that is wanted among the turns."""
    turns = objects(transcript, "turns")
    if wanted.startswith("#"):
        if not wanted[1:].isdecimal() or int(wanted[1:]) >= len(turns):
            raise ConfigError(f"--turn: there is no turn {wanted!r}; the turns are #0 to #{len(turns) - 1}")
        return int(wanted[1:])
    return turns.index(find_turn(transcript, wanted, "--turn"))


def _branches(
    environment: Environment,
    before: Experiment,
    after: Experiment,
    point: _Point,
    request: ForkRequest,
    first: int,
) -> Iterator[Branch]:
    """The tasks of one forked conversation: the arms of a draw stand together, because they are compared."""
    parent = task_of(point.transcript)
    task = replace(parent, agents=_agents(parent, before, after, request.seats))
    stems = [_stem(environment, task, point, request, arm) for arm in request.arms]
    inherited = () if parent.fork is None else parent.fork.draws
    for draw in request.draws:
        for arm, stem in zip(request.arms, stems, strict=True):
            name = "" if len(request.arms) == 1 else arm.name
            fork = Fork(
                of=parent.task_id,
                turn=point.key,
                arm=arm.name,
                draw=draw,
                draws=(*inherited, Draw(stem.since, draw, stem.spared)) if draw else inherited,
                forced=stem.forced,
                is_off_policy=stem.is_off_policy or (parent.fork is not None and parent.fork.is_off_policy),
            )
            task_id = branch_id(parent.task_id, point.place, name, draw)
            yield Branch(replace(task, task_id=task_id, index=first, fork=fork), stem.replies)
            first += 1


def _agents(task: Task, before: Experiment, after: Experiment, seats: Iterable[str]) -> tuple[Agent, ...]:
    """The agents with what the fork changes of their definitions and of single seats."""
    old = {definition.agent_id: definition for definition in before.agent_definitions}
    new = {definition.agent_id: definition for definition in after.agent_definitions}
    agents: dict[str, Agent] = {}
    for agent in task.agents:
        was, now = old[agent.definition], new.get(agent.definition)
        if now is None:
            raise ConfigError(f"--set: {agent.agent_id} is played by {agent.definition!r}, which is not there any more")
        model = agent.model if was.model == now.model else now.model
        sampling = agent.sampling if sampling_of(was) == sampling_of(now) else sampling_of(now)
        agents[agent.agent_id] = replace(agent, model=model, sampling=sampling)
    for seat in seats:
        key, equals, model = seat.partition("=")
        name, _, what = key.rpartition(".")
        if not equals or what != "model" or not name:
            raise ConfigError(f"--seat: found {seat!r}; write AGENT.model=NAME, such as Abel.model=big")
        if name not in agents:
            raise ConfigError(f"--seat: no agent {name!r} took part{suggestion(name, agents)}")
        if model not in after.model_definitions:
            hint = suggestion(model, after.model_definitions)
            raise ConfigError(f"--seat: there is no model definition {model!r}{hint}; --set model_definitions.NAME=…")
        agents[name] = replace(agents[name], model=model)
    if unknown := {agent.model for agent in agents.values()} - after.model_definitions.keys():
        raise ConfigError(f"the model definitions lack {', '.join(sorted(unknown))}, which agents of the parent have")
    return tuple(agents.values())


class _Stem(NamedTuple):
    """What all draws of an arm begin with. The turns whose `canonical` is at least `since` are drawn again."""

    replies: tuple[RecordedReply, ...]
    since: tuple[int, int, int, int]
    spared: tuple[str, ...]
    """The keys of such turns whose replies are the parent's."""
    forced: tuple[str, ...]
    is_off_policy: bool


def _stem(environment: Environment, task: Task, point: _Point, request: ForkRequest, arm: Arm) -> _Stem:
    """Play the replies before the turn, and those beside it that stay. Raises ConfigError where that cannot be."""
    try:
        with boundary(ConversationError, "opening"):
            conversation = environment.open(task)
    except ConversationError as fault:
        if not request.overrides:
            raise RunDirectoryError(f"{task.task_id} cannot begin ({fault})") from fault
        raise ConfigError(
            f"--set: {task.task_id} cannot begin with these changes ({fault}); leave out what does not fit its agents"
        ) from fault
    try:
        return _Growing(conversation, point, is_rebased=request.is_rebased).grown(arm, is_round=request.is_round)
    except ConversationError as fault:
        raise ConfigError(
            f"{task.task_id}: what was said before turn {point.key} cannot be played with these changes ({fault}); "
            "fork at an earlier turn, or leave the change out"
        ) from fault


class _Growing:
    """A conversation that is played up to the turn of its fork."""

    def __init__(self, conversation: Conversation, point: _Point, *, is_rebased: bool) -> None:
        self._conversation = conversation
        self._point = point
        self._task_id = task_of(point.transcript).task_id
        self._is_rebased = is_rebased
        models = {str(turn["turn"]): str(turn["model"]) for turn in objects(point.transcript, "turns")}
        self._recorded = [structs.replace(each, model=models[each.turn_key]) for each in _replies(point)]
        self._replies: list[RecordedReply] = []
        self._spared: list[str] = []
        self._forced: list[str] = []
        self._is_off_policy = False

    def grown(self, arm: Arm, *, is_round: bool) -> _Stem:
        """Everything that stays."""
        for recorded in self._recorded[: self._point.place]:
            if is_round and self._ready(self._point.key) is not None:
                break
            self._keep(recorded)
        turn = self._ready(self._point.key)
        if turn is None:
            raise ConversationError(f"turn {self._point.key} is not open there")
        since = min(each.canonical for each in self._all_ready()) if is_round else turn.canonical
        if not is_round:
            self._keep_siblings(turn)
        if arm.is_kept:
            self._keep(self._recorded[self._point.place])
            self._spared.append(turn.key)
        elif arm.reply is not None:
            self._force(turn, arm.reply)
        elif arm.is_silent:
            self._fall_silent(turn)
        return _Stem(tuple(self._replies), since, tuple(self._spared), tuple(self._forced), self._is_off_policy)

    def _all_ready(self) -> list[Turn]:
        """The open turns that wait for no other agent of their round."""
        with boundary(ConversationError, "turns"):
            turns = self._conversation.turns()
        open_in = {(turn.round, turn.agent) for turn in turns}
        return [turn for turn in turns if not any((turn.round, agent) in open_in for agent in turn.after)]

    def _ready(self, key: str) -> Turn | None:
        return next((turn for turn in self._all_ready() if turn.key == key), None)

    def _rendered(self, turn: Turn) -> str:
        with boundary(ConversationError, f"turn {turn.key}: prompt"):
            return self._conversation.prompt(turn).sha256

    def _keep(self, recorded: RecordedReply) -> Receipt:
        """Apply a reply of the parent, given to the prompt that is rendered now."""
        replayed = replay(self._conversation, (recorded,), check_prompts=True)
        if replayed.changed_prompts and not self._is_rebased:
            raise ConfigError(
                f"{self._task_id}: with these changes the prompt of turn {recorded.turn_key} is another one than was "
                f"sent, so its reply may not stay; fork at that turn (--turn {recorded.turn_key}), leave the change "
                "out, or add --rebase: it keeps the replies and marks every number as off-policy"
            )
        (record,) = replayed.records
        self._is_off_policy |= bool(replayed.changed_prompts)
        self._replies.append(structs.replace(recorded, prompt_sha256=record.prompt_sha256))
        if record.receipt.kind is ReceiptKind.FAILURE:
            raise ConversationError(record.receipt.detail)
        return record.receipt

    def _keep_siblings(self, turn: Turn) -> None:
        """Keep the replies after the turn that did not wait for it: those of turns that are open beside it."""
        for recorded in self._recorded[self._point.place + 1 :]:
            beside = self._ready(recorded.turn_key)
            if beside is None or beside.round != turn.round:
                continue
            if self._rendered(beside) == recorded.prompt_sha256 or self._is_rebased:
                self._keep(recorded)
                self._spared.append(recorded.turn_key)

    def _force(self, turn: Turn, text: str) -> Receipt:
        recorded = RecordedReply(turn_key=turn.key, prompt_sha256=self._rendered(turn), reply=Reply(text=text))
        self._forced.append(turn.key)
        said = self._recorded[self._point.place]
        self._is_off_policy |= turn.key != said.turn_key or text != said.reply.text
        return self._keep(recorded)

    def _fall_silent(self, turn: Turn) -> None:
        """Give empty replies until the environment takes its default act."""
        waiting: Turn | None = turn
        for _ in range(SILENCE_ATTEMPTS_MAX):
            if waiting is None or self._force(waiting, "").kind is not ReceiptKind.CORRECTION:
                return
            agent, number = turn.agent, turn.round
            waiting = next((each for each in self._all_ready() if (each.agent, each.round) == (agent, number)), None)
        raise ConversationError(f"{turn.agent} was silent {SILENCE_ATTEMPTS_MAX} times without a default act")


def _budget(points: Sequence[_Point], draws: int) -> Budget:
    """What the parents took from the turn on, for each draw."""
    turns, tokens = 0, TokenCount()
    for point in points:
        rest = replies_of(point.transcript)[point.place :]
        turns += len(rest)
        tokens = sum((recorded.reply.tokens for recorded in rest), tokens)
    spent = TokenCount(prompt=draws * tokens.prompt, cached=0, completion=draws * tokens.completion)
    return Budget(len(points) * draws, draws * turns, spent)
