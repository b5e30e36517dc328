"""One running discussion: turns out, replies in."""

from __future__ import annotations

import hashlib
import json
from itertools import chain
from typing import Final

from msgspec.structs import replace

from mac_runner.environments.dialogue import Dialogue
from mac_runner.environments.discussion.prompts import Form, PromptWriter, Rules, aside_field
from mac_runner.environments.discussion.reading.answers import Found, read_fields
from mac_runner.environments.discussion.record import outcome_of, record_of, state_of
from mac_runner.environments.discussion.roles import NO_OBJECT, ROLES
from mac_runner.environments.discussion.state import DiscussionState, Ending, Said, Seat, ending
from mac_runner.environments.markup import defuse
from mac_runner.environments.reading import Cause, Problem, is_placeholder
from mac_runner.types import FinishReason, JsonObject, Prompt, Reply, Task, Turn

ASIDE_CHARS_MAX: Final = 500
"""What a private channel takes of one reply."""


class DiscussionConversation(Dialogue[Said]):
    """The Conversation contract over the state of a discussion."""

    too_long = (
        "the discussion has outgrown the context of the engine; have fewer rounds, agents or history_rounds, or "
        "shorter replies"
    )

    def __init__(self, task: Task, state: DiscussionState, rules: Rules) -> None:
        super().__init__(task, rules.retry)
        self._state = state
        self._rules = rules
        self._seats = {seat.agent: seat for seat in state.seats}
        self._writer = PromptWriter(state, rules)
        self._ending: Ending | None = None
        self._outcome: JsonObject | None = None

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
            self._turn(seat.agent, round=self._state.round, place=seat.place, after=seat.waits_for)
            for seat in self._state.waiting()
        )

    def prompt(self, turn: Turn) -> Prompt:
        """What the seat knows now."""
        return self._writer.prompt(self._seats[turn.agent], turn.attempt, self._last_flaw(turn.agent))

    def record(self) -> JsonObject:
        """Who took part as what, and all that was said."""
        return record_of(self._state)

    def fingerprint(self) -> str:
        """Digest of the state and of the corrections under way."""
        state = state_of(self._state, self._ending) | {"problems": [*self._pending().items()]}
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode("ascii")).hexdigest()

    def _apply(self, turn: Turn, found: Said) -> str:
        self._put(turn, found)
        answer = f"{found.answer} ({found.how}): " if found.answer is not None else ""
        return defuse(f"{answer}{found.text}")

    def _default(self, turn: Turn, problem: Problem) -> str:
        self._put(turn, None, problem.cause)
        return "passes"

    def _put(self, turn: Turn, said: Said | None, cause: Cause | None = None) -> None:
        before = self._state.round
        self._state.put(self._seats[turn.agent], said, cause, turn=turn.key)
        if self._state.round > before:
            settings = self._rules.settings
            self._ending = ending(self._state, settings.max_rounds, settings.stopping)
            if self._ending is not None:
                self._outcome = outcome_of(self._state, self._ending, self._replies)

    def _read(self, turn: Turn, reply: Reply) -> Said | Problem:
        seat = self._seats[turn.agent]
        role, moment = ROLES[seat.role], self._writer.moment(seat)
        form = self._writer.form(seat, moment)
        signs = frozenset() if moment.matcher is None else moment.matcher.signs
        found = read_fields(reply, form.sought, signs=signs)
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
