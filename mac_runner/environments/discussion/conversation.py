"""One running discussion: turns out, replies in."""

from __future__ import annotations

import hashlib
import json

from mac_runner.environments.discussion.prompts import render
from mac_runner.environments.discussion.rules import Discussion, Participant, Statable, Statement, read
from mac_runner.environments.markup import defuse
from mac_runner.types import FinishReason, JsonObject, Prompt, Receipt, ReceiptKind, Reply, Turn

OVERFLOW = (
    "the discussion has outgrown the context of the engine; have fewer rounds or participants, or shorter replies"
)


class DiscussionConversation:
    """The Conversation contract over a table of statements."""

    def __init__(self, discussion: Discussion, *, corrections_max: int) -> None:
        self._discussion = discussion
        self._corrections_max = corrections_max
        self._by_agent = {participant.agent: participant for participant in discussion.participants}

    @property
    def outcome(self) -> JsonObject | None:
        """How many spoke and passed, once all rounds are over."""
        discussion = self._discussion
        if discussion.round < discussion.rounds:
            return None
        passes = sum(said.text is None for said in discussion.said.values())
        statements = len(discussion.said) - passes
        return {"kind": "discussion", "rounds": discussion.rounds, "statements": statements, "passes": passes}

    @property
    def rounds_completed(self) -> int:
        """Rounds in which all have spoken."""
        return self._discussion.round

    def turns(self) -> tuple[Turn, ...]:
        """One for each participant that has not spoken in the present round."""
        return tuple(
            Turn(
                round=self._discussion.round,
                agent=participant.agent,
                model=participant.model,
                place=participant.place,
                attempt=len(self._discussion.problems.get(participant.place, ())),
                after=participant.hears,
            )
            for participant in self._discussion.waiting()
        )

    def prompt(self, turn: Turn) -> Prompt:
        """What the seat knows now."""
        return render(self._discussion, self._by_agent[turn.agent], turn.attempt)

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Put down the statement; one that cannot be used is asked for again, and in the end the agent passes."""
        if reply.finish_reason is FinishReason.OVERFLOW:
            return Receipt(kind=ReceiptKind.FAILURE, detail=OVERFLOW)
        participant = self._by_agent[turn.agent]
        reading = read(reply)
        if isinstance(reading, Statable):
            self._discussion.say(participant, reading.text)
            return Receipt(kind=ReceiptKind.ACT, detail=defuse(reading.text))
        if turn.attempt < self._corrections_max:
            problems = self._discussion.problems
            problems[participant.place] = (*problems.get(participant.place, ()), reading.reason)
            return Receipt(kind=ReceiptKind.CORRECTION, detail=reading.reason)
        self._discussion.say(participant, None)
        return Receipt(kind=ReceiptKind.DEFAULT, detail=f"passes ({reading.reason})")

    def record(self) -> JsonObject:
        """Who took part as what, and all that was said."""
        discussion = self._discussion
        return {
            "topic": discussion.topic,
            "participants": [_participant_json(participant) for participant in discussion.participants],
            "events": [_event(discussion.said[place]) for place in sorted(discussion.said)],
        }

    def fingerprint(self) -> str:
        """Digest of the table and of the corrections under way."""
        state: JsonObject = self.record() | {
            "rounds": self._discussion.rounds,
            "problems": [[place, *reasons] for place, reasons in sorted(self._discussion.problems.items())],
        }
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode("ascii")).hexdigest()


def _event(said: Statement) -> JsonObject:
    """A statement as the transcript's readers expect an event: when, who learned of it, what it was in words."""
    return {
        "when": f"Round {said.round + 1}",
        "audience": "all",
        "text": f"{said.agent} passes." if said.text is None else f"{said.agent}: {defuse(said.text)}",
        "data": {"round": said.round, "agent": said.agent, "text": said.text},
    }


def _participant_json(participant: Participant) -> JsonObject:
    return {"agent": participant.agent, "role": participant.role, "hears": [*sorted(participant.hears)]}
