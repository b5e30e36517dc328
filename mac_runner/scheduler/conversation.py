"""An open conversation: the environment's part, its records, and its failure.

Every call into the environment is made here, inside a boundary: whatever it raises becomes a ConversationError and
fails this conversation only.

A failed conversation's transcript ends with the turn it failed on, in the order of `Turn.canonical`. Replies to later
turns are left out; replies to earlier turns are still taken. So the transcript does not depend on what ran at the same
time, and replaying it gives the recorded state. When two turns fail, the first one in that order is the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from mac_runner.environments.base import Conversation
from mac_runner.environments.replay import receive, replay
from mac_runner.errors import ConversationError, RunDirectoryError, boundary
from mac_runner.plan import request_seed
from mac_runner.scheduler.engine_policy import RequestState, suspects
from mac_runner.scheduler.pools import BEFORE_ALL, Needs, Place
from mac_runner.scheduler.state import Opened, Source
from mac_runner.types import FinishReason, JsonObject, ReceiptKind, RecordedReply, Request, Task, Turn, TurnRecord


class OpenTurns(NamedTuple):
    """The turns that a conversation has open."""

    turns: tuple[Turn, ...]
    rounds_completed: int
    needs: Needs


class Ending(NamedTuple):
    """What the environment reports of an ended conversation."""

    outcome: JsonObject | None
    record: JsonObject
    fingerprint: str


class LiveConversation:
    """A conversation between its opening and its transcript.

    `number` is its place among all conversations of the run. `typical_prompt_tokens` gives the usual size of a prompt;
    None if no model admits by tokens.
    """

    def __init__(
        self,
        number: int,
        source: Source,
        task: Task,
        opened_at_s: float,
        typical_prompt_tokens: Callable[[], int] | None = None,
    ) -> None:
        self.number = number
        self.source = source
        self.task = task
        self.opened_at_s = opened_at_s
        self.records: list[TurnRecord] = []
        self._sizes: dict[str, int] = {}
        self.requests: dict[str, RequestState] = {}
        self.failure: str | None = None
        self.failed_at: Place | None = None
        self.answered = 0
        self.conversation: Conversation | None = None
        self._agents = {agent.agent_id: agent for agent in task.agents}
        self._typical_prompt_tokens = typical_prompt_tokens

    def definition(self, turn: Turn) -> str:
        """The agent definition whose turn it is."""
        return self._agents[turn.agent].definition

    def open(self, replies: Iterable[RecordedReply]) -> Opened:
        """Open it and replay the replies recorded in earlier sessions.

        Raises RunDirectoryError when a reply was given to another prompt than is rendered now: another version of
        mac_runner began the run, and going on would mix the two.
        """
        number = self.number
        try:
            self.conversation = self._fresh()
            self._restore(self.conversation, replies)
        except ConversationError as fault:
            self.failure = f"it could not be opened: {fault}"
            return Opened(number, (), 0)
        try:
            now = self.turns()
        except ConversationError as fault:
            self.break_down(str(fault))
            return Opened(number, (), 0)
        return Opened(
            number,
            now.turns,
            now.rounds_completed,
            self.failed_at,
            now.needs,
            engines=self.source.engines,
            suspects=suspects(self.source.recorder.deaths(self.task)),
        )

    def turns(self) -> OpenTurns:
        """The turns open now."""
        conversation = self._opened()
        with boundary(ConversationError, "turns"):
            turns, rounds = conversation.turns(), conversation.rounds_completed
        for turn in turns:
            if turn.agent not in self._agents or turn.model not in self.source.engines:
                raise ConversationError(
                    f"turn {turn.key} asks agent {turn.agent!r} on model {turn.model!r}; no such pair"
                )
        return OpenTurns(turns, rounds, self._needs(turns))

    def _needs(self, turns: Iterable[Turn]) -> Needs:
        """Tokens that the next turn of each agent is expected to take: its last prompt and reply, and a full reply.

        An agent that has not spoken yet is assumed to read what others read, in this conversation or in the run.
        """
        if self._typical_prompt_tokens is None:
            return {}
        unknown = max(self._sizes.values(), default=0) or self._typical_prompt_tokens()
        return {
            turn.agent: self._sizes.get(turn.agent, unknown) + self._agents[turn.agent].sampling.max_tokens
            for turn in turns
        }

    def request(self, turn: Turn, *, is_suspect: bool = False) -> Request:
        """The request for `turn`, its prompt rendered now."""
        with boundary(ConversationError, f"turn {turn.key}: prompt"):
            prompt = self._opened().prompt(turn)
        sampling = replace(self._agents[turn.agent].sampling, seed=request_seed(self.task, turn))
        return Request(
            conversation=self.task.task_id, turn=turn, prompt=prompt, sampling=sampling, is_suspect=is_suspect
        )

    def wants(self, turn: Turn) -> bool:
        """Whether a reply to `turn` still matters."""
        return self.failed_at is None or turn.canonical < self.failed_at

    def receive(self, turn: Turn, recorded: RecordedReply) -> TurnRecord:
        """Apply a reply; a FAILURE receipt fails the conversation at this turn."""
        record = receive(self._opened(), turn, recorded)
        self._keep(record)
        if record.receipt.kind is ReceiptKind.FAILURE:
            self.fail(turn, record.receipt.detail)
        return record

    def _keep(self, record: TurnRecord) -> None:
        self.records.append(record)
        tokens = record.reply.tokens
        if record.reply.finish_reason is not FinishReason.OVERFLOW and tokens.is_counted:
            self._sizes[record.turn.agent] = tokens.prompt + tokens.completion

    def fail(self, turn: Turn, reason: str) -> None:
        """Fail the conversation at `turn`; the first failed turn in canonical order gives the reason."""
        if self.wants(turn):
            self.failed_at = turn.canonical
            self.failure = reason

    def break_down(self, reason: str) -> None:
        """Fail the conversation because it cannot list its turns; no turn is at fault, and all records are kept."""
        if self.failed_at is None:
            self.failed_at = BEFORE_ALL
            self.failure = reason

    def settle(self) -> Ending:
        """Bring an ended conversation into the form of its transcript; `failure` and `records` are final afterwards."""
        try:
            with boundary(ConversationError, "its end"):
                return self._settle()
        except ConversationError as fault:
            # The environment cannot report the ending; the records are kept.
            self.failure = self.failure or str(fault)
            return Ending(None, {}, "")

    def _settle(self) -> Ending:
        if self.failure is None and self._opened().outcome is None:
            keys = ", ".join(turn.key for turn in self._opened().turns()) or "none"
            self.failure = f"it has no outcome and no turn of it can start (open turns: {keys})"
        if self.failed_at is not None and self.failed_at != BEFORE_ALL:
            self._cut_back(self.failed_at)
        conversation = self.conversation
        if conversation is None:
            return Ending(None, {}, "")
        outcome = conversation.outcome if self.failure is None else None
        return Ending(outcome, conversation.record(), conversation.fingerprint())

    def _cut_back(self, failed_at: Place) -> None:
        kept = [record for record in self.records if _is_kept(record, failed_at)]
        kept.sort(key=lambda record: record.turn.canonical)
        conversation = self._fresh()
        self.records = list(replay(conversation, map(_recorded, kept)).records)
        self.conversation = conversation

    def _restore(self, conversation: Conversation, replies: Iterable[RecordedReply]) -> None:
        rest: dict[str, RecordedReply] = {}
        for recorded in replies:
            # Two overlapping sessions can record a reply twice; the first one counts.
            rest.setdefault(recorded.turn_key, recorded)
        while (following := self._restorable(conversation, rest)) is not None:
            del rest[following.turn_key]
            self._restore_one(conversation, following)

    def _restorable(self, conversation: Conversation, rest: Mapping[str, RecordedReply]) -> RecordedReply | None:
        """The next reply in recorded order; after a failure, the next one to a turn that is still wanted."""
        if self.failed_at is None:
            return next(iter(rest.values()), None)
        with boundary(ConversationError, "turns"):
            return next(
                (rest[turn.key] for turn in conversation.turns() if turn.key in rest and self.wants(turn)), None
            )

    def _restore_one(self, conversation: Conversation, recorded: RecordedReply) -> None:
        # One at a time, so that the first reply to another prompt is noticed before it is applied.
        replayed = replay(conversation, (recorded,), check_prompts=True)
        if replayed.changed_prompts:
            raise RunDirectoryError(
                f"the replies recorded for {self.task.task_id} were given to other prompts than this version of "
                f"mac_runner renders (turn {recorded.turn_key}); go on with the version that began the run, or use "
                "--out DIR for a new one"
            )
        (record,) = replayed.records
        self._keep(record)
        if record.receipt.kind is ReceiptKind.FAILURE:
            self.fail(record.turn, record.receipt.detail)

    def _fresh(self) -> Conversation:
        with boundary(ConversationError, f"opening {self.task.task_id}"):
            return self.source.environment.open(self.task)

    def _opened(self) -> Conversation:
        assert self.conversation is not None, f"{self.task.task_id} was never opened"
        return self.conversation


def _is_kept(record: TurnRecord, failed_at: Place) -> bool:
    place = record.turn.canonical
    return place < failed_at or (place == failed_at and record.receipt.kind is ReceiptKind.FAILURE)


def _recorded(record: TurnRecord) -> RecordedReply:
    return RecordedReply(
        turn_key=record.turn.key, prompt_sha256=record.prompt_sha256, reply=record.reply, model=record.turn.model
    )
