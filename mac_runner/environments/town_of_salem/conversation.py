"""A game as a Conversation: turns out, replies in, the rules between.

In a sequential round a reply is applied as it comes. In a simultaneous one the acts are held until all have come
and applied in seat order, so that everybody chose on the same view and the order of arrival leaves no trace.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

from mac_runner.environments.town_of_salem.acts import Act
from mac_runner.environments.town_of_salem.events import Events
from mac_runner.environments.town_of_salem.knowledge import GameLog, view_of
from mac_runner.environments.town_of_salem.prompts import correction_text, observation_text, turn_text
from mac_runner.environments.town_of_salem.reading import Chosen, Problem, ToolRequest, read
from mac_runner.environments.town_of_salem.rules import Cap, EndRound, Move, apply, validate
from mac_runner.environments.town_of_salem.state import GameState
from mac_runner.environments.town_of_salem.telling import ActRecord, outcome_of, record_of
from mac_runner.environments.town_of_salem.tools import observe
from mac_runner.limits import TOOL_CALLS_PER_TURN_MAX
from mac_runner.types import JsonObject, Message, Prompt, Receipt, ReceiptKind, Reply, Task, Turn


@dataclass(slots=True)
class _Asked:
    """How far a seat has come in its turn: what was said back and forth since it was first asked."""

    step: int = 0
    attempt: int = 0
    thread: list[Message] = field(default_factory=list)
    observations: tuple[str, ...] = ()


class Game:
    """One game of Town of Salem; see `environments.base.Conversation` for the contract."""

    def __init__(self, *, task: Task, state: GameState, opening: Events, system: str, max_retries: int) -> None:
        self._task = task
        self._state = state
        self._system = Message(role="system", content=system)
        self._max_retries = max_retries
        self._seats = {agent.agent_id: agent.seat for agent in task.agents}
        self._log = GameLog(len(state.players))
        self._log.append(opening)
        self._asked: dict[int, _Asked] = {}
        self._held: dict[int, tuple[Chosen, bool]] = {}
        self._acts: list[ActRecord] = []
        self._open: tuple[Turn, ...] | None = None
        self._completion_tokens = 0
        self._close_finished_rounds()

    @property
    def state(self) -> GameState:
        """The game as it stands."""
        return self._state

    @property
    def log(self) -> GameLog:
        """All that happened so far."""
        return self._log

    @property
    def outcome(self) -> JsonObject | None:
        """None while the game goes on, then how it ended and for whom."""
        return None if self._state.result is None else outcome_of(self._state, self._task)

    @property
    def rounds_completed(self) -> int:
        """Rounds behind the one that is open."""
        return self._state.round

    def turns(self) -> tuple[Turn, ...]:
        """One turn for each seat that has not answered; in a sequential round each waits for the one before."""
        if self._open is None:
            self._open = self._open_turns()
        return self._open

    def _open_turns(self) -> tuple[Turn, ...]:
        state = self._state
        turns: list[Turn] = []
        for place, seat in enumerate(state.order):
            if seat in state.acted or seat in self._held:
                continue
            agent = self._task.agents[seat]
            asked = self._asked.get(seat)
            waits = bool(turns) and not state.phase.is_simultaneous
            turns.append(
                Turn(
                    round=state.round,
                    agent=agent.agent_id,
                    model=agent.model,
                    place=place,
                    step=asked.step if asked else 0,
                    attempt=asked.attempt if asked else 0,
                    after=frozenset({turns[-1].agent}) if waits else frozenset(),
                )
            )
        return tuple(turns)

    def prompt(self, turn: Turn) -> Prompt:
        """The rules, the record, what the seat knows, what it is asked, and this turn so far."""
        seat = self._seats[turn.agent]
        asked = self._asked.get(seat)
        view = view_of(self._state, self._log, seat, asked.observations if asked else ())
        thread = asked.thread if asked else []
        return Prompt(
            messages=(self._system, Message(role="user", content=turn_text(view)), *thread),
            view=view,
        )

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Answer a tool request, ask for a correction, or take the act (the default one when all else failed)."""
        self._open = None
        self._completion_tokens += reply.tokens.completion
        seat = self._seats[turn.agent]
        asked = self._asked.setdefault(seat, _Asked())
        reading = read(reply, self._state, seat)
        if isinstance(reading, ToolRequest):
            if asked.step < TOOL_CALLS_PER_TURN_MAX:
                return self._observe(seat, asked, reading, reply)
            reading = Problem(reason=f"you have asked {TOOL_CALLS_PER_TURN_MAX} times in this turn; now act")
        if isinstance(reading, Problem):
            if asked.attempt < self._max_retries:
                asked.attempt += 1
                self._go_on(asked, reply, correction_text(reading.reason))
                return Receipt(kind=ReceiptKind.CORRECTION, detail=reading.reason)
            self._take(seat, Chosen(act=Act(seat=seat, verb="wait")), is_default=True)
            return Receipt(kind=ReceiptKind.DEFAULT, detail=f"wait ({reading.reason})")
        self._take(seat, reading, is_default=False)
        return Receipt(kind=ReceiptKind.ACT, detail=reading.act.verb)

    def _observe(self, seat: int, asked: _Asked, request: ToolRequest, reply: Reply) -> Receipt:
        observation = observe(view_of(self._state, self._log, seat), request.name, request.argument)
        asked.step += 1
        asked.observations = (*asked.observations, observation)
        self._go_on(asked, reply, observation_text(observation))
        return Receipt(kind=ReceiptKind.OBSERVATION, detail=observation)

    def _go_on(self, asked: _Asked, reply: Reply, said: str) -> None:
        asked.thread.append(Message(role="assistant", content=reply.text))
        asked.thread.append(Message(role="user", content=said))

    def _take(self, seat: int, chosen: Chosen, *, is_default: bool) -> None:
        self._asked.pop(seat, None)
        if self._state.phase.is_simultaneous:
            self._held[seat] = (chosen, is_default)
            if len(self._held) < len(self._state.due):
                return
            held, self._held = self._held, {}
            for holder in sorted(held):
                self._apply(*held[holder])
        else:
            self._apply(chosen, is_default)
        self._close_finished_rounds()

    def _apply(self, chosen: Chosen, is_default: bool) -> None:
        for act in (*chosen.side_acts, chosen.act):
            state = self._state
            self._acts.append(
                ActRecord(day=state.day, phase=state.phase.value, round=state.round, act=act, is_default=is_default)
            )
            self._state, events = apply(state, act)
            self._log.append(events)

    def _close_finished_rounds(self) -> None:
        while self._state.result is None and not self._state.due:
            self._state, events = apply(self._state, self._what_ends_the_round())
            self._log.append(events)
        validate(self._state)

    def _what_ends_the_round(self) -> Move:
        tokens_max = self._state.options.completion_tokens_max
        if tokens_max is not None and self._completion_tokens > tokens_max:
            return Cap(f"its replies took {self._completion_tokens} tokens, of {tokens_max} it may take")
        return EndRound()

    def record(self) -> JsonObject:
        """Who sat where as what, every event with its audience, and every act."""
        return record_of(self._state, self._log, self._task, self._acts)

    def fingerprint(self) -> str:
        """SHA-256 of the state, the log, the acts and the turns under way."""
        whole = {
            "state": asdict(self._state),
            "events": [event.as_json() for event in self._log.events],
            "asked": {seat: asdict(asked) for seat, asked in sorted(self._asked.items())},
            "held": {seat: [asdict(chosen), by_default] for seat, (chosen, by_default) in sorted(self._held.items())},
            "acts": [asdict(act) for act in self._acts],
        }
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=sorted).encode()).hexdigest()
