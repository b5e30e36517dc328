"""Rollouts: the replies of an ended conversation as a trainer reads them, one for each turn.

An environment renders each prompt as a whole, so a prompt does not continue the one before it. One turn is one sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mac_runner.data.tables import Ended, FlatTable, Wanted
from mac_runner.environments.base import Environment
from mac_runner.environments.replay import open_turn, receive
from mac_runner.errors import ConversationError, RunDirectoryError, boundary
from mac_runner.flat import Cells, FlatColumn, Message, cell
from mac_runner.reports.exports import utf8_text
from mac_runner.store import Run, replies_of, task_of
from mac_runner.types import FinishReason, JsonObject, JsonValue, Prompt, ReceiptKind, TokenTrace

USABLE: Final = (ReceiptKind.ACT, ReceiptKind.OBSERVATION)
"""The receipts of replies that the environment could use."""
_NO_TOKENS: Final = TokenTrace(prompt_ids=(), completion_ids=(), logprobs=())


class Seat(NamedTuple):
    """What is known of an agent besides its task: what it played, and what the outcome is worth to it."""

    role: str | None = None
    faction: str | None = None
    rewards: Mapping[str, float] = {}
    reward: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One reply, and what a trainer needs to learn from it.

    `policy_version` are the first and the last version of the weights that made the reply, where the engine reports
    them. `reward` is the scalar that `rewards` come to; None where the conversation failed. Rollouts with the same
    `group_id` are of the same seat in the same deal, so their rewards can be compared. `weight` is 1 divided by the
    number of trainable turns of the seat, and 0 for a turn that is not trainable.
    """

    conversation: str
    agent: str
    turn: str
    round: int
    definition: str
    role: str | None
    faction: str | None
    model: str
    policy_version: tuple[int, int] | None
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
    sampling: JsonObject
    finish_reason: FinishReason
    is_truncated: bool
    receipt: ReceiptKind
    reward: float | None
    rewards: Mapping[str, float]
    group_id: str
    trainable: bool
    weight: float


ROLLOUT_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "conversation": FlatColumn("text", "the conversation"),
    "agent": FlatColumn("text", "who was asked"),
    "turn": FlatColumn("text", "the turn: `round/agent/step/attempt`"),
    "round": FlatColumn("integer", "the round, from 0"),
    "definition": FlatColumn("text", "the agent's entry of `agent_definitions`"),
    "role": FlatColumn("text", "its role, where the environment has roles"),
    "faction": FlatColumn("text", "its faction, where the environment has factions"),
    "model": FlatColumn("text", "the entry of `model_definitions` that answered"),
    "policy_start": FlatColumn("integer", "the first version of the weights that made the reply"),
    "policy_end": FlatColumn("integer", "the last version"),
    "prompt_ids": FlatColumn("integers", "the tokens of the prompt"),
    "completion_ids": FlatColumn("integers", "the tokens of the reply"),
    "logprobs": FlatColumn("numbers", "the natural logarithm of how likely each was"),
    "sampling": FlatColumn("json", "how the reply was drawn"),
    "finish_reason": FlatColumn("text", "`stop`, `length`, `overflow`, `unknown` or the engine's own word"),
    "is_truncated": FlatColumn("truth", "whether the reply reached `max_tokens`"),
    "receipt": FlatColumn("text", "`act`, `observation`, `correction`, `default` or `failure`"),
    "reward": FlatColumn("number", "what the outcome is worth to the agent; empty where the conversation failed"),
    "rewards": FlatColumn("json", "the rewards by name that it comes from"),
    "group_id": FlatColumn("text", "the deal and the seat: rewards within a group can be compared"),
    "trainable": FlatColumn("truth", "whether to learn from this turn"),
    "weight": FlatColumn("number", "1 / trainable turns of the seat; 0 where not trainable"),
}


def rollouts_of(
    transcript: JsonObject,
    seats: Mapping[str, Seat],
    *,
    traces: Mapping[str, TokenTrace] | None,
    only: Collection[str] = (),
) -> list[Rollout]:
    """The rollouts of a transcript, in the order of its turns.

    `traces` are the tokens of its turns by key. With None no tokens are asked for; otherwise a turn without tokens is
    not trainable. `only` are names of models and agent definitions whose turns are trainable; empty for all. Turns of a
    conversation that failed are not trainable. Neither are those that a fork has from its parent, nor replies that no
    engine gave.
    """
    task: Any = transcript["task"]
    agents = {agent["agent_id"]: agent for agent in task["agents"]}
    turns: Any = transcript["turns"]
    is_finished, borrowed = transcript["status"] == "finished", _borrowed(task, turns)
    found = traces or {}

    def is_trainable(turn: Any) -> bool:
        names = (turn["model"], agents[turn["agent"]]["definition"])
        is_chosen = not only or any(name in only for name in names)
        is_drawn = turn["reply"]["finish_reason"] != FinishReason.OVERFLOW and turn["turn"] not in borrowed
        return is_finished and is_chosen and is_drawn and (traces is None or turn["turn"] in found)

    trainable = {turn["turn"] for turn in turns if is_trainable(turn)}
    counts = Counter(turn["agent"] for turn in turns if turn["turn"] in trainable)
    return [
        _rollout(
            transcript, agents[turn["agent"]], turn, seats[turn["agent"]], found.get(turn["turn"], _NO_TOKENS), weight
        )
        for turn in turns
        for weight in [1 / counts[turn["agent"]] if turn["turn"] in trainable else 0.0]
    ]


def _rollout(transcript: JsonObject, agent: Any, turn: Any, seat: Seat, trace: TokenTrace, weight: float) -> Rollout:
    task: Any = transcript["task"]
    reply = turn["reply"]
    policy, reason = reply.get("policy"), FinishReason(reply["finish_reason"])
    return Rollout(
        conversation=task["task_id"],
        agent=turn["agent"],
        turn=turn["turn"],
        round=turn["round"],
        definition=agent["definition"],
        role=seat.role,
        faction=seat.faction,
        model=turn["model"],
        policy_version=None if policy is None else (policy[0], policy[1]),
        prompt_ids=trace.prompt_ids,
        completion_ids=trace.completion_ids,
        logprobs=trace.logprobs,
        sampling=agent["sampling"],
        finish_reason=reason,
        is_truncated=reason is FinishReason.LENGTH,
        receipt=ReceiptKind(turn["receipt"]["kind"]),
        reward=seat.reward,
        rewards=seat.rewards,
        group_id=f"{deal_of(transcript)}/{turn['agent']}",
        trainable=weight > 0,
        weight=weight,
    )


def deal_of(transcript: Mapping[str, Any]) -> str:
    """What the conversations of a group have in common: their deal, or the turn that forks leave; else their own id."""
    task = transcript["task"]
    if (fork := task.get("fork")) is not None:
        return f"{fork['of']}@{fork['turn']}"
    group: JsonValue = task.get("group")
    return str(task["task_id"]) if group is None else f"{transcript['experiment_name']}/{group}"


def _borrowed(task: Any, turns: Any) -> set[str]:
    """The turns of a fork whose replies its parent has, or that no engine gave."""
    fork = task.get("fork")
    if fork is None:
        return set()
    places = {turn["turn"]: (turn["round"], turn["place"], turn["step"], turn["attempt"]) for turn in turns}
    # Draw 0 has the seeds of the parent, and records no draw of its own.
    since = tuple(fork["draws"][-1]["since"]) if fork["draw"] else places.get(fork["turn"])
    before = {key for key, place in places.items() if since is None or place < since}
    return before.union(fork.get("forced", ()), *(draw.get("spared", ()) for draw in fork["draws"]))


def rollout_row(rollout: Rollout) -> dict[str, Cells]:
    """A rollout as a row of the table `rollouts`."""
    start, end = rollout.policy_version or (None, None)
    row = {name: getattr(rollout, name, None) for name in ROLLOUT_COLUMNS}
    return row | {
        "policy_start": start,
        "policy_end": end,
        "prompt_ids": list(rollout.prompt_ids),
        "completion_ids": list(rollout.completion_ids),
        "logprobs": list(rollout.logprobs),
        "sampling": cell("json", rollout.sampling, "sampling"),
        "rewards": cell("json", {**rollout.rewards}, "rewards"),
        "finish_reason": str(rollout.finish_reason),
        "receipt": str(rollout.receipt),
    }


# Prompts: what engines were sent, rendered again by playing the replies of a transcript.


PROMPTS: Final = "prompts"
_PROMPT_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "conversation": FlatColumn("text", "the conversation"),
    "turn": FlatColumn("text", "the turn"),
    "messages": FlatColumn("json", "what the engine was sent: a list of `role` and `content`"),
    "chars": FlatColumn("integer", "how long all messages together are", "characters"),
}


def prompt_table(environment: Callable[[], Environment]) -> FlatTable:
    """The table of prompts; `environment` sets up what plays the conversations, and is asked for the first one."""

    def rows(ended: Ended, _wanted: Wanted) -> Iterator[Mapping[str, Cells]]:
        for key, prompt in sent_prompts(ended.transcript, environment()):
            messages: list[JsonValue] = [{"role": one.role, "content": one.content} for one in prompt.messages]
            yield {
                "conversation": ended.task_id,
                "turn": key,
                "messages": cell("json", messages, "messages"),
                "chars": prompt.size_chars,
            }

    meaning = "What engines were sent, rendered again by playing the replies."
    return FlatTable(PROMPTS, meaning, ("conversation", "turn"), _PROMPT_COLUMNS, rows, is_optional=True)


def sent_prompts(transcript: JsonObject, environment: Environment) -> Iterator[tuple[str, Prompt]]:
    """The key of each turn with its prompt. Raises RunDirectoryError where this version renders another prompt."""
    task = task_of(transcript)
    try:
        conversation = environment.open(task)
        for recorded in replies_of(transcript):
            turn = open_turn(conversation, recorded.turn_key)
            with boundary(ConversationError, f"turn {turn.key}: prompt"):
                prompt = conversation.prompt(turn)
            if prompt.sha256 != recorded.prompt_sha256:
                raise ConversationError(f"the prompt of turn {turn.key} has another digest than the one that was sent")
            yield turn.key, prompt
            receive(conversation, turn, recorded)
    except ConversationError as fault:
        raise RunDirectoryError(
            f"{task.task_id}: this version cannot render the prompts ({fault}); the run is of another version, or the "
            "transcript was changed: use the version that played it, or check it with verify"
        ) from fault


# Rollouts in words: each reply with the prompt that it answered, as text formats have them.


MESSAGES: Final = FlatColumn("messages", "")


def message(role: str, text: str) -> Message:
    """A message as trainers have it. Half a surrogate pair, which no tokenizer takes, is written as an escape."""
    return {"role": role, "content": utf8_text(text)}


def messages_of(prompt: Prompt) -> list[Message]:
    """A prompt as trainers have it."""
    return [message(each.role, each.content) for each in prompt.messages]


SEAT_COLUMNS: Final = frozenset(("agent", "role", "faction"))
"""What rollouts have of the table `agents`."""


class Sample(NamedTuple):
    """A rollout in words: the prompt, the reply, and the thoughts that the engine gave apart."""

    rollout: Rollout
    prompt: Sequence[Message]
    text: str
    thinking: str | None
    cached: int
    counted: tuple[int, int]
    """The tokens of the prompt and of the reply, as the engine counted them."""

    @property
    def reply(self) -> Message:
        """The reply as a message."""
        return message("assistant", self.text)

    @property
    def is_usable(self) -> bool:
        """Whether it is worth imitating: trainable, and the environment could use it."""
        return self.rollout.trainable and self.rollout.receipt in USABLE


class TrainingRun(NamedTuple):
    """A run whose conversations are exported, with what they need besides a transcript."""

    contents: Run
    environment: Callable[[], Environment]
    """Sets up what renders the prompts again."""
    agents: Callable[[Ended], Iterable[Mapping[str, Cells]]]
    """The rows of the table `agents`."""
    only: Sequence[str] = ()
    """The models and agent definitions whose turns are trainable; empty for all."""

    def rollouts(self, ended: Ended, traces: Mapping[str, TokenTrace] | None) -> list[Rollout]:
        """The rollouts of a conversation; with `traces`, a turn without tokens is not trainable."""
        return rollouts_of(ended.transcript, self.seats(ended), traces=traces, only=self.only)

    def seats(self, ended: Ended) -> dict[str, Seat]:
        """What each agent played, and what the outcome is worth to it."""
        worth = ended.worth
        return {
            agent: Seat(_text(row, "role"), _text(row, "faction"), *worth.get(agent, ({}, None)))
            for row in self.agents(ended)
            for agent in [str(row["agent"])]
        }

    def samples(self, ended: Ended, traces: Mapping[str, TokenTrace] | None = None) -> Iterator[Sample]:
        """The rollouts of a conversation in words; its prompts are rendered again."""
        turns: Any = ended.transcript["turns"]
        prompts = sent_prompts(ended.transcript, self.environment())
        for rollout, turn, (_, prompt) in zip(self.rollouts(ended, traces), turns, prompts, strict=True):
            reply, counted = turn["reply"], turn["reply"]["tokens"]
            yield Sample(
                rollout,
                messages_of(prompt),
                reply["text"],
                reply.get("thinking"),
                counted.get("timing", counted).get("cached", 0),
                (counted["prompt"], counted["completion"]),
            )


def _text(row: Mapping[str, Cells], name: str) -> str | None:
    value = row.get(name)
    return None if value is None else str(value)
