"""One running discussion: turns out, replies in."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import chain
from typing import Final

from mac_runner.environments.base import exhausted
from mac_runner.environments.discussion.prompts import Form, PromptWriter, Rules, aside_field
from mac_runner.environments.discussion.reading.answers import Cause, Found, Problem, read_fields
from mac_runner.environments.discussion.record import Spent, outcome_of, record_of, state_of
from mac_runner.environments.discussion.roles import NO_OBJECT, ROLES
from mac_runner.environments.discussion.state import (
    DiscussionState,
    Ending,
    Said,
    Seat,
    ending,
)
from mac_runner.environments.markup import defuse
from mac_runner.environments.placeholders import is_placeholder
from mac_runner.types import FinishReason, JsonObject, Prompt, Receipt, ReceiptKind, Reply, Turn

ASIDE_CHARS_MAX: Final = 500
"""What a private channel takes of one reply."""
OVERFLOW: Final = (
    "the discussion has outgrown the context of the engine; have fewer rounds, agents or history_rounds, or shorter "
    "replies"
)


class DiscussionConversation:
    """The Conversation contract over the state of a discussion."""

    def __init__(self, state: DiscussionState, rules: Rules) -> None:
        self._state = state
        self._rules = rules
        self._seats = {seat.agent: seat for seat in state.seats}
        self._writer = PromptWriter(state, rules)
        self._ending: Ending | None = None
        self._outcome: JsonObject | None = None
        self._spent = {seat.agent: Spent() for seat in state.seats}

    @property
    def outcome(self) -> JsonObject | None:
        """What was answered, once it has ended."""
        return self._outcome

    @property
    def rounds_completed(self) -> int:
        """Rounds in which all have spoken."""
        return self._state.round

    def turns(self) -> tuple[Turn, ...]:
        """One for each seat that has not spoken in the present round."""
        if self._ending is not None:
            return ()
        return tuple(
            Turn(
                round=self._state.round,
                agent=seat.agent,
                model=seat.model,
                place=seat.place,
                attempt=len(self._state.problems.get(seat.place, ())),
                after=seat.waits_for,
            )
            for seat in self._state.waiting()
        )

    def prompt(self, turn: Turn) -> Prompt:
        """What the seat knows now."""
        return self._writer.prompt(self._seats[turn.agent], turn.attempt)

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Record what is said; a reply without use is asked for again, and in the end the agent passes or fails."""
        if reply.finish_reason is FinishReason.OVERFLOW:
            return Receipt(kind=ReceiptKind.FAILURE, detail=OVERFLOW)
        self._spent[turn.agent].add(reply.tokens)
        seat = self._seats[turn.agent]
        said = self._read(seat, reply)
        if isinstance(said, Said):
            self._put(turn, said)
            return Receipt(kind=ReceiptKind.ACT, detail=_detail(said))
        if turn.attempt < self._rules.corrections_max:
            problems = self._state.problems
            problems[seat.place] = (*problems.get(seat.place, ()), said)
            return Receipt(kind=ReceiptKind.CORRECTION, detail=said.reason, cause=said.cause)
        when = self._rules.when_exhausted
        receipt = exhausted(turn, when, default="passes", reason=said.reason, cause=said.cause)
        if receipt.kind is ReceiptKind.DEFAULT:
            self._put(turn, None, said.cause)
        return receipt

    def record(self) -> JsonObject:
        """Who took part as what, and all that was said."""
        return record_of(self._state)

    def fingerprint(self) -> str:
        """Digest of the state and of the corrections under way."""
        state = state_of(self._state, self._ending)
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode("ascii")).hexdigest()

    def _put(self, turn: Turn, said: Said | None, cause: Cause | None = None) -> None:
        before = self._state.round
        self._state.put(self._seats[turn.agent], said, cause, turn=turn.key)
        if self._state.round > before:
            settings = self._rules.settings
            self._ending = ending(self._state, settings.max_rounds, settings.stopping)
            if self._ending is not None:
                self._outcome = outcome_of(self._state, self._ending, self._spent)

    def _read(self, seat: Seat, reply: Reply) -> Said | Problem:
        role, moment = ROLES[seat.role], self._writer.moment(seat)
        form = self._writer.form(seat, moment)
        ordered = sorted(form.names, key=lambda name: name != role.decisive)
        signs = frozenset() if moment.matcher is None else moment.matcher.signs
        found = read_fields(reply, ordered, signs=signs)
        if isinstance(found, Problem):
            return found
        if copied := _copied(found, form):
            return Problem(Cause.PLACEHOLDER, copied)
        said = role.read(found, moment)
        if said is NO_OBJECT and reply.finish_reason is FinishReason.LENGTH:
            return Problem(Cause.CUT_OFF, f"it was cut off before its {role.decisive}; be shorter")
        if isinstance(said, Problem) or not seat.channels:
            return said
        return replace(said, asides=_asides(found, seat))


def _copied(found: Found, form: Form) -> str | None:
    """What of the form is given back in the place of an answer."""
    for name, shown in zip(form.names, form.shown, strict=True):
        if is_placeholder(found.get(name), (name, *shown)):
            return f"its {name} is what the form shows and no answer; give your own"
    if is_placeholder(found.prose, chain(*form.shown)):
        return "it is what the form shows and no answer; give your own"
    return None


def _asides(found: Found, seat: Seat) -> tuple[tuple[str, str], ...]:
    said = ((channel, found.get(aside_field(channel))[:ASIDE_CHARS_MAX].strip()) for channel in seat.channels)
    return tuple((channel, text) for channel, text in said if defuse(text))


def _detail(said: Said) -> str:
    answer = f"{said.answer} ({said.how}): " if said.answer is not None else ""
    return defuse(f"{answer}{said.text}")
