"""What every conversation does with a reply, whatever the conversation is about.

An agent is asked. A reply without use is asked for again, with the reason, as often as `retry_config` says; then the
conversation goes on with what it does by default, or fails. What came of all replies is counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, NamedTuple, TypeVar

from mac_runner.environments.reading import Problem
from mac_runner.spec import RetryConfig
from mac_runner.types import (
    Agent,
    FinishReason,
    JsonObject,
    Receipt,
    ReceiptKind,
    Reply,
    Sampling,
    Task,
    TokenCount,
    Turn,
)

Found = TypeVar("Found")


class Tried(NamedTuple):
    """A reply after which its agent is asked on: it asked a tool, has to be corrected, or found the prompt too long."""

    turn: str
    reply: Reply
    receipt: Receipt


@dataclass(slots=True)
class Replies:
    """What the replies of one agent came to."""

    counts: Counter[tuple[ReceiptKind, str | None]] = field(default_factory=Counter)
    """How many were of each kind and cause."""
    tokens: TokenCount = field(default_factory=TokenCount)
    counted: int = 0
    """Of how many the engine has counted tokens."""

    def add(self, reply: Reply, kind: ReceiptKind, cause: str | None = None) -> None:
        """One more."""
        self.counts[kind, cause] += 1
        self.tokens += reply.tokens
        self.counted += reply.tokens.is_counted

    @property
    def turns(self) -> int:
        """How many there were, corrections too."""
        return self.counts.total()

    def of(self, *kinds: ReceiptKind) -> int:
        """How many were of these kinds."""
        return sum(count for (kind, _), count in self.counts.items() if kind in kinds)


def rehearsal(names: Sequence[str]) -> Task:
    """A task on which an environment tries out the prompts of an experiment; all agents are of the definition "all"."""
    agents = tuple(
        Agent(agent_id=name, definition="all", model="", seat=seat, slot=seat, sampling=Sampling())
        for seat, name in enumerate(names)
    )
    return Task(index=0, task_id="rehearsal", seed=0, agents=agents)


class Dialogue(ABC, Generic[Found]):
    """The part of a Conversation that is about replies. What they mean, an environment says."""

    too_long: ClassVar[str] = ""
    """Why the conversation fails where a prompt does not fit the engine's context, with the remedy."""

    def __init__(self, task: Task, retry: RetryConfig) -> None:
        self._task = task
        self._agents = {agent.agent_id: agent for agent in task.agents}
        self._retry = retry
        self._tried: dict[str, list[Tried]] = {}
        self._replies = {name: Replies() for name in self._agents}

    @abstractmethod
    def _read(self, turn: Turn, reply: Reply) -> Found | Problem | Receipt:
        """What a reply says, why it has no use, or the OBSERVATION with which its agent is asked on."""

    @abstractmethod
    def _apply(self, turn: Turn, found: Found) -> str:
        """Go on with what was said; returns it in words."""

    @abstractmethod
    def _default(self, turn: Turn, problem: Problem) -> str:
        """Go on without a reply; returns in words with what."""

    def _overflow(self, turn: Turn) -> Receipt:
        """What follows a prompt that does not fit: a FAILURE, or a CORRECTION where the next one is shorter."""
        return Receipt(kind=ReceiptKind.FAILURE, detail=self.too_long)

    def _may_correct(self, turn: Turn, problem: Problem) -> bool:
        """Whether the agent is asked again."""
        return len(self._flawed(turn.agent)) < self._retry.max_retries

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Take up a reply to an open turn; see `environments.base.Conversation`."""
        found = self._overflow(turn) if reply.finish_reason is FinishReason.OVERFLOW else self._read(turn, reply)
        if isinstance(found, Problem):
            return self._refused(turn, reply, found)
        if isinstance(found, Receipt):
            return self._noted(turn, reply, found)
        self._replies[turn.agent].add(reply, ReceiptKind.ACT)
        act = self._apply(turn, found)
        self._tried.pop(turn.agent, None)
        return Receipt(kind=ReceiptKind.ACT, detail=act)

    def _refused(self, turn: Turn, reply: Reply, problem: Problem) -> Receipt:
        if self._may_correct(turn, problem):
            correction = Receipt(kind=ReceiptKind.CORRECTION, detail=problem.reason, cause=problem.cause)
            return self._noted(turn, reply, correction)
        if self._retry.when_exhausted == "fail":
            what = f"turn {turn.key}: {turn.agent} gave no usable reply and has no corrections left [{problem.cause}]"
            failure = Receipt(kind=ReceiptKind.FAILURE, detail=f"{what}: {problem.reason}", cause=problem.cause)
            return self._noted(turn, reply, failure)
        self._replies[turn.agent].add(reply, ReceiptKind.DEFAULT, problem.cause)
        default = self._default(turn, problem)
        self._tried.pop(turn.agent, None)
        return Receipt(kind=ReceiptKind.DEFAULT, detail=f"{default} ({problem.reason})", cause=problem.cause)

    def _noted(self, turn: Turn, reply: Reply, receipt: Receipt) -> Receipt:
        self._replies[turn.agent].add(reply, receipt.kind, receipt.cause)
        if receipt.kind is not ReceiptKind.FAILURE:  # A failure leaves the state as it is.
            self._tried.setdefault(turn.agent, []).append(Tried(turn.key, reply, receipt))
        return receipt

    def _turn(self, agent: str, *, round: int, place: int, after: frozenset[str] = frozenset()) -> Turn:
        """The turn in which an agent is asked, or asked on."""
        kinds = [tried.receipt.kind for tried in self._tried.get(agent, ())]
        return Turn(
            round=round,
            agent=agent,
            model=self._agents[agent].model,
            place=place,
            step=kinds.count(ReceiptKind.OBSERVATION),
            attempt=kinds.count(ReceiptKind.CORRECTION),
            after=after,
        )

    def _flawed(self, agent: str) -> list[Tried]:
        """The replies of an agent, since it was asked, that have no use."""
        return [tried for tried in self._tried.get(agent, ()) if tried.receipt.cause is not None]

    def _last_flaw(self, agent: str) -> str:
        """Why the last of them has none; empty where there is none."""
        flawed = self._flawed(agent)
        return flawed[-1].receipt.detail if flawed else ""

    def _pending(self) -> JsonObject:
        """What enters a fingerprint: by agent, the replies since it was asked, and what came of each."""
        return {
            agent: [[reply.text, reply.tokens.completion, receipt.kind, receipt.detail] for _, reply, receipt in tried]
            for agent, tried in sorted(self._tried.items())
        }
