"""Tables in the formats that trainers read, one row for each reply, pair or conversation (`mac-run export --format`).

Each format names the release whose own classes read it back in `tests/trainers`. Formats of trainers change from month
to month; the columns of `rollouts` are the stable contract.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from statistics import fmean
from typing import Any, Final, NamedTuple

from mac_runner.data.files import JSONL, PARQUET
from mac_runner.data.rollouts import (
    MESSAGES,
    ROLLOUT_COLUMNS,
    USABLE,
    Rollout,
    Sample,
    Seat,
    TrainingRun,
    deal_of,
    message,
    messages_of,
    rollout_row,
    sent_prompts,
)
from mac_runner.data.tables import Ended, FlatTable, Training
from mac_runner.errors import ConfigError
from mac_runner.flat import Cells, FlatColumn, json_text
from mac_runner.problems import suggestion
from mac_runner.reports.exports import utf8_text
from mac_runner.store import read_run
from mac_runner.store.rows import DoneRow
from mac_runner.types import FinishReason, JsonObject, JsonValue

# Conversations as episodes of verifiers 0.4.0.

VERIFIERS_VERSION: Final = "0.4.0"

EPISODE_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "id": FlatColumn("text", "the conversation"),
    "env": FlatColumn("json", "the environment and the name of the experiment"),
    "task": FlatColumn("json", "the environment and the task"),
    "group": FlatColumn("json", "the deal"),
    "run": FlatColumn("json", "the versions of the weights"),
    "ok": FlatColumn("truth", "whether it finished"),
    "errors": FlatColumn("json", "why it failed"),
    "traces": FlatColumn("json", "a trace for each agent"),
}


def episode_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    """An `Episode`: a trace for each agent, in which each turn is a branch of its own."""
    transcript: Any = ended.transcript
    seats = run.seats(ended)
    traces = {agent["agent_id"]: _Graph(agent, seats[agent["agent_id"]]) for agent in transcript["task"]["agents"]}
    for each in run.samples(ended, ended.traces or None):
        traces[each.rollout.agent].add(each)
    failure = transcript["failure"]
    standing: JsonObject = {
        "ok": failure is None,
        "errors": [] if failure is None else [{"type": "ConversationError", "message": utf8_text(failure)}],
    }
    task = transcript["task"]
    more = {key: task[key] for key in ("seed", "material") if task.get(key) is not None}
    dispatched: JsonObject = {
        "type": transcript["environment"],
        "data": {"idx": task["index"], "id": task["task_id"], **more},
    }
    rollouts = [rollout for trace in traces.values() for rollout in trace.rollouts]
    yield {
        "id": task["task_id"],
        "env": json_text({"id": transcript["environment"], "name": transcript["experiment_name"]}),
        "task": json_text(dispatched),
        "group": json_text({"id": deal_of(transcript)}),
        "run": _run_info(transcript["experiment_name"], rollouts),
        "ok": failure is None,
        "errors": json_text(standing["errors"]),
        "traces": json_text([trace.trace(task["task_id"], dispatched, standing) for trace in traces.values()]),
    }


def _run_info(name: str, rollouts: Iterable[Rollout]) -> str | None:
    """The versions of the weights that made the replies; None where no engine reports them."""
    spans = [rollout.policy_version for rollout in rollouts if rollout.trainable and rollout.policy_version]
    if not spans:
        return None
    start, end = min(first for first, _ in spans), max(last for _, last in spans)
    work: JsonObject = {"type": "train", "step": start, "policy": {"start": start, "end": end}}
    return json_text({"type": "train", "id": name, "work": work})


class _Graph:
    """The trace of one agent: its messages, each once for each prefix, and its calls."""

    def __init__(self, agent: Mapping[str, Any], seat: Seat) -> None:
        self.rollouts: list[Rollout] = []
        self._agent, self._seat = agent, seat
        self._nodes: list[JsonValue] = []
        self._calls: list[JsonValue] = []
        self._known: dict[tuple[int | None, str, str], int] = {}

    def add(self, sample: Sample) -> None:
        """Add a turn. Its reply has the tokens of its prompt too, because no message of it has tokens of its own."""
        parent: int | None = None
        for each in sample.prompt:
            key = (parent, each["role"], each["content"])
            if key not in self._known:
                self._known[key] = self._node(parent, {**each})
            parent = self._known[key]
        rollout, thinking = sample.rollout, sample.thinking
        reply: JsonObject = {**sample.reply, **({} if thinking is None else {"reasoning_content": thinking})}
        prompt, completion = list(rollout.prompt_ids), list(rollout.completion_ids)
        node = self._node(
            parent,
            reply,
            sampled=True,
            token_ids=[*prompt, *completion],
            mask=[*[False] * len(prompt), *[rollout.trainable] * len(completion)],
            logprobs=list(rollout.logprobs) if rollout.trainable else [],
        )
        self.rollouts.append(rollout)
        self._calls.append(_call(node, sample))

    def _node(self, parent: int | None, message: JsonObject, **more: JsonValue) -> int:
        self._nodes.append({"parent": parent, "message": message, "timestamp": 0.0, **more})
        return len(self._nodes) - 1

    def trace(self, conversation: str, task: JsonObject, standing: JsonObject) -> JsonObject:
        """The trace as JSON. Its rewards sum to the scalar reward: those by name have weight 0."""
        agent, seat = self._agent, self._seat
        rewards: JsonObject = {name: {"score": value, "weight": 0.0} for name, value in seat.rewards.items()}
        if seat.reward is not None:
            rewards["reward"] = {"score": seat.reward, "weight": 1.0}
        return {
            "version": 1,
            "id": f"{conversation}/{agent['agent_id']}",
            "verifiers": {"version": VERIFIERS_VERSION},
            "task": task,
            "agent": {
                "name": agent["agent_id"],
                "config": {"model": agent["model"]},
                "trainable": any(rollout.trainable for rollout in self.rollouts),
            },
            "nodes": self._nodes,
            "calls": self._calls,
            "rewards": rewards,
            "info": {"definition": agent["definition"], "role": seat.role, "faction": seat.faction},
            "is_completed": True,
            **standing,
            "timing": {"start": 0.0},
        }


def _call(node: int, sample: Sample) -> JsonObject:
    rollout = sample.rollout
    prompt, completion = sample.counted
    sampling = {key: value for key, value in rollout.sampling.items() if key != "seed"}
    return {
        "node": node,
        "model": rollout.model,
        "sampling": sampling,
        "finish_reason": None if rollout.finish_reason is FinishReason.OVERFLOW else str(rollout.finish_reason),
        "usage": {
            "prompt_tokens": prompt - sample.cached,
            "completion_tokens": completion,
            "cached_input_tokens": sample.cached,
        },
    }


# Pairs of replies to the same prompt, chosen by what came of them: the forks of a run as preferences.


PAIR_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "prompt": MESSAGES._replace(meaning="what the engine was sent"),
    "chosen": MESSAGES._replace(meaning="the usable reply of the highest value, as one message"),
    "rejected": MESSAGES._replace(meaning="the reply of the lowest value, as one message"),
    "conversation": FlatColumn("text", "the conversation that the forks leave"),
    "turn": FlatColumn("text", "the turn"),
    "chosen_value": FlatColumn("number", "the mean reward after `chosen`"),
    "rejected_value": FlatColumn("number", "the mean reward after `rejected`"),
    "chosen_draws": FlatColumn("integer", "how many conversations that mean is of"),
    "rejected_draws": FlatColumn("integer", "how many conversations that mean is of"),
}


class _Arm(NamedTuple):
    """A reply to the turn that forks leave, and what the outcomes after it were worth."""

    text: str
    is_usable: bool
    rewards: list[float]

    @property
    def value(self) -> float:
        """The mean over the draws."""
        return fmean(self.rewards)


class Pairs:
    """The pairs of a fork: of each turn that forks leave, the best usable reply and the worst one."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    @cached_property
    def _rows(self) -> dict[tuple[str, str], list[DoneRow]]:
        """By the turn that they leave, what is needed of the index row of each conversation."""
        rows: dict[tuple[str, str], list[DoneRow]] = {}
        # Read again: what writes a part was given the rows of that part alone.
        for row in read_run(self._run.contents.layout.directory).rows_in_task_order():
            kept: JsonObject = {key: row.get(key) for key in ("task_id", "sha256", "size_bytes", "status")}
            rows.setdefault(_point(row), []).append(DoneRow.of(kept))
        return rows

    def rows(self, ended: Ended) -> Iterator[Mapping[str, Cells]]:
        """The pair of a turn, with the first conversation that leaves there."""
        rows = self._rows[_point(ended.row)]
        if rows[0].task_id != ended.task_id:
            return
        arms: dict[str, _Arm] = {}
        for row in rows:
            if (found := self._reply(Ended(ended.contents, row, ended.environment))) is not None:
                text, is_usable, reward = found
                arms.setdefault(text, _Arm(text, is_usable, [])).rewards.append(reward)
        ranked = sorted(arms.values(), key=lambda arm: arm.value)
        # What a correction made of an unusable reply does not make it the better one.
        best = next((arm for arm in reversed(ranked) if arm.is_usable), None)
        if best is not None and best.value > ranked[0].value:
            yield self._pair(ended, best, ranked[0])

    def _reply(self, ended: Ended) -> tuple[str, bool, float] | None:
        """The reply of a fork to its turn, and what came of it; None where it may not be compared."""
        transcript: Any = ended.transcript
        fork = transcript["task"]["fork"]
        for rollout, turn in zip(self._run.rollouts(ended, None), transcript["turns"], strict=True):
            is_chosen = not self._run.only or {rollout.model, rollout.definition}.intersection(self._run.only)
            if rollout.turn == fork["turn"] and is_chosen and rollout.reward is not None:
                is_drawn = turn["turn"] not in fork["forced"] and rollout.finish_reason is not FinishReason.OVERFLOW
                return (turn["reply"]["text"], rollout.receipt in USABLE, rollout.reward) if is_drawn else None
        return None

    def _pair(self, ended: Ended, best: _Arm, worst: _Arm) -> Mapping[str, Cells]:
        transcript: Any = ended.transcript
        fork = transcript["task"]["fork"]
        prompts = sent_prompts(transcript, self._run.environment())
        prompt = next(prompt for key, prompt in prompts if key == fork["turn"])
        return {
            "prompt": messages_of(prompt),
            "chosen": [message("assistant", best.text)],
            "rejected": [message("assistant", worst.text)],
            "conversation": fork["of"],
            "turn": fork["turn"],
            "chosen_value": best.value,
            "rejected_value": worst.value,
            "chosen_draws": len(best.rewards),
            "rejected_draws": len(worst.rewards),
        }


def _point(row: Mapping[str, JsonValue]) -> tuple[str, str]:
    return str(row.get("fork_of")), str(row.get("turn"))


ROLLOUTS: Final = "rollouts"
DPO: Final = "trl-dpo"
_COMMON: Final[Mapping[str, FlatColumn]] = {
    "conversation": FlatColumn("text", "the conversation"),
    "turn": FlatColumn("text", "the turn"),
    "agent": FlatColumn("text", "who was asked"),
    "reward": FlatColumn("number", "what the outcome is worth to the agent"),
    "weight": FlatColumn("number", "1 / trainable turns of the seat"),
}
_PROMPT: Final = MESSAGES._replace(meaning="what the engine was sent")
_REPLY: Final = MESSAGES._replace(meaning="the reply, as one message")


# The rows of each format.


def _rollout_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    return map(rollout_row, run.rollouts(ended, ended.traces))


def _common(rollout: Rollout) -> dict[str, Cells]:
    return {name: getattr(rollout, name) for name in _COMMON}


def _sft_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    for each in run.samples(ended):
        if each.is_usable:
            yield {"prompt": each.prompt, "completion": [each.reply], **_common(each.rollout)}


def _kto_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    for each in run.samples(ended):
        if each.rollout.trainable and each.rollout.reward is not None:
            row = {"prompt": each.prompt, "completion": [each.reply], **_common(each.rollout)}
            yield {**row, "label": each.is_usable and each.rollout.reward > 0}


def _verl_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    for each in run.samples(ended):
        if each.is_usable and not any(message["role"] == "assistant" for message in each.prompt):
            yield {"messages": [*each.prompt, each.reply], **_common(each.rollout)}


def _chat_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    for each in run.samples(ended):
        if each.is_usable:
            # Without a weight of 0 the replies of a prompt are learned as well.
            prompt: list[JsonValue] = [
                {**message, **({"weight": 0} if message["role"] == "assistant" else {})} for message in each.prompt
            ]
            yield {"messages": json_text([*prompt, {**each.reply}])}


# All of them.

_TURN: Final = ("conversation", "turn")
RowsOf = Callable[[Ended], Iterable[Mapping[str, Cells]]]


class _Format(NamedTuple):
    """A format: what a row is, the columns, the kind of file, and its rows."""

    meaning: str
    columns: Mapping[str, FlatColumn]
    kind: str
    rows_of: Callable[[TrainingRun], RowsOf]
    key: tuple[str, ...] = _TURN
    is_bare: bool = False
    """Whether a reader refuses, or ignores, further columns."""
    has_tokens: bool = False
    """Whether it has the tokens of replies that have them."""


def _each(rows: Callable[[TrainingRun, Ended], Iterable[Mapping[str, Cells]]]) -> Callable[[TrainingRun], RowsOf]:
    return lambda run: partial(rows, run)


_FORMATS: Final[Mapping[str, _Format]] = {
    ROLLOUTS: _Format(
        "One row for each reply, with its tokens.", ROLLOUT_COLUMNS, PARQUET, _each(_rollout_rows), has_tokens=True
    ),
    "verifiers": _Format(
        f"One `Episode` of verifiers {VERIFIERS_VERSION} for each conversation.",
        EPISODE_COLUMNS,
        JSONL,
        _each(episode_rows),
        ("id",),
        is_bare=True,
        has_tokens=True,
    ),
    "trl-sft": _Format(
        "The usable replies, for `SFTTrainer` of trl 1.16.",
        {"prompt": _PROMPT, "completion": _REPLY, **_COMMON},
        PARQUET,
        _each(_sft_rows),
    ),
    "trl-kto": _Format(
        "All replies, for `KTOTrainer` of trl 1.16.",
        {
            "prompt": _PROMPT,
            "completion": _REPLY,
            "label": FlatColumn("truth", "whether the reply was usable and its reward is above 0"),
            **_COMMON,
        },
        PARQUET,
        _each(_kto_rows),
    ),
    DPO: _Format(
        "Of each turn that forks leave, the best usable and the worst reply, for `DPOTrainer` of trl 1.16.",
        PAIR_COLUMNS,
        PARQUET,
        lambda run: Pairs(run).rows,
    ),
    "verl-sft": _Format(
        "The usable replies to prompts without replies, for `MultiTurnSFTDataset` of verl 0.9.",
        {"messages": MESSAGES._replace(meaning="the prompt and the reply"), **_COMMON},
        PARQUET,
        _each(_verl_rows),
    ),
    "openai-chat": _Format(
        "The usable replies as chat messages, for fine-tuning services.",
        {"messages": FlatColumn("json", "the prompt and the reply")},
        JSONL,
        _each(_chat_rows),
        (),
        is_bare=True,
    ),
}


FORMATS: Final = tuple(_FORMATS)
"""The formats that trainers read."""
WITH_TOKENS: Final = tuple(name for name, found in _FORMATS.items() if found.has_tokens)
"""Those that read token traces where a run has them."""


def training_tables(run: TrainingRun) -> dict[str, FlatTable]:
    """A table for each format. Each is left out unless it is named."""
    return {name: _table(run, name, found) for name, found in _FORMATS.items()}


def _table(run: TrainingRun, name: str, found: _Format) -> FlatTable:
    rows = found.rows_of(run)
    return FlatTable(
        name,
        found.meaning,
        found.key,
        found.columns,
        lambda ended, _wanted: rows(ended),
        is_optional=True,
        training=Training(found.kind, partial(check_format, run, name), partial(_basis, run, name), found.is_bare),
    )


def check_format(run: TrainingRun, name: str) -> None:
    """Raise ConfigError for names of `only` that the run has not got, and for a run without what the format needs."""
    contents = run.contents
    models = _entries(contents.resolved, "model_definitions")
    agents = _entries(contents.resolved, "agent_definitions")
    for one in run.only:
        if one not in models and one not in agents:
            raise ConfigError(
                f"--only: {contents.layout.directory} has no model and no agent definition {one!r}"
                f"{suggestion(one, [*models, *agents])}"
            )
    if name == ROLLOUTS:
        # A definition is asked for by its model; without names any model with tokens will do.
        asked = {agents[one].get("model") if one in agents else one for one in run.only} or models.keys()
        silent = sorted(str(one) for one in asked if one in models and not models[str(one)].get("record_tokens"))
        if silent and (run.only or len(silent) == len(asked)):
            raise ConfigError(
                f"--format {name}: {contents.layout.directory} has no tokens of {', '.join(silent)}: a run records "
                f"them with model_definitions.{silent[0]}.record_tokens: true; the other formats need none"
            )
    if name == DPO and contents.fork is None:
        raise ConfigError(
            f"--format {name}: {contents.layout.directory} is not a fork: a pair is two replies to the same prompt, "
            "which mac-run fork plays"
        )


def _entries(experiment: JsonObject, section: str) -> dict[str, JsonObject]:
    """The entries of a section by name: a mapping, or a list of objects with an `agent_id`."""
    found: Any = experiment.get(section) or {}
    return dict(found) if isinstance(found, dict) else {each["agent_id"]: each for each in found}


def _basis(run: TrainingRun, name: str) -> str:
    """The names of `only`; for pairs also all conversations, because one of them has the pair of others."""
    rows = [[row["task_id"], row["sha256"]] for row in run.contents.rows_in_task_order()] if name == DPO else []
    return json.dumps([sorted(run.only), rows])
