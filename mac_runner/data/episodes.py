"""Conversations as episodes of verifiers 0.4.0: a trace for each agent, in which each turn is a branch of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from mac_runner.data.rollouts import Rollout, Seat, deal_of
from mac_runner.data.samples import Sample, TrainingRun
from mac_runner.data.tables import Ended
from mac_runner.flat import Cells, FlatColumn, json_text
from mac_runner.reports.exports import utf8_text
from mac_runner.types import FinishReason, JsonObject, JsonValue

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
    for each in run.samples(ended, ended.traces() or None):
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
        for message in sample.prompt:
            key = (parent, message["role"], message["content"])
            if key not in self._known:
                self._known[key] = self._node(parent, {**message})
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
