"""A game as a Conversation: turns out, replies in, the rules between.

In a sequential round a reply is applied as it comes. In a simultaneous one the acts are held until all have come
and applied in seat order, so that everybody chose on the same view and the order of arrival leaves no trace. Under
information lag they are held until it is certain which of the turns under way ends first (`turn_taking`): so a prompt
shows what was said when its turn started, whenever it is rendered while the turn is under way.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

from mac_runner.config import GameLatency
from mac_runner.environments.town_of_salem.acts import Act
from mac_runner.environments.town_of_salem.context import Context
from mac_runner.environments.town_of_salem.events import Events
from mac_runner.environments.town_of_salem.knowledge import GameLog, view_of
from mac_runner.environments.town_of_salem.prompts import correction_text, observation_text
from mac_runner.environments.town_of_salem.reading import Chosen, Problem, ToolRequest, read
from mac_runner.environments.town_of_salem.rules import Cap, EndRound, IllegalActError, Move, apply, validate
from mac_runner.environments.town_of_salem.state import GameState, Phase
from mac_runner.environments.town_of_salem.telling import ActRecord, Refusal, outcome_of, record_of
from mac_runner.environments.town_of_salem.tools import observe
from mac_runner.environments.town_of_salem.turn_taking import Span, SpeakingQueue
from mac_runner.limits import TOOL_CALLS_PER_TURN_MAX
from mac_runner.types import JsonObject, Message, Prompt, Receipt, ReceiptKind, Reply, Task, Turn


@dataclass(slots=True)
class _Asked:
    """How far a seat has come in its turn: what was said back and forth since it was first asked.

    `took_ms` is how long that took by the latency model, `refused` the replies that could not be used.
    """

    step: int = 0
    attempt: int = 0
    took_ms: int = 0
    thread: list[Message] = field(default_factory=list)
    observations: tuple[str, ...] = ()
    refused: list[Refusal] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What a seat chose, until it is its turn to happen; `refused` is what it tried before."""

    chosen: Chosen
    is_default: bool
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """A held choice that happens now; `round` and `span` are those of the turn it was made in."""

    seat: int
    round: int
    span: Span | None = None


class Game:
    """One game of Town of Salem; see `environments.base.Conversation` for the contract."""

    def __init__(
        self,
        *,
        task: Task,
        state: GameState,
        opening: Events,
        system: str,
        max_retries: int,
        latency: GameLatency | None = None,
        context_tokens_max: int | None = None,
    ) -> None:
        self._task = task
        self._state = state
        self._context = Context(system=system, tokens_max=context_tokens_max)
        self._max_retries = max_retries
        self._seats = {agent.agent_id: agent.seat for agent in task.agents}
        self._log = GameLog(len(state.players))
        self._log.append(opening)
        self._asked: dict[int, _Asked] = {}
        self._held: dict[int, _Held] = {}
        self._latency = latency or GameLatency()
        self._queue: SpeakingQueue | None = None
        self._acts: list[ActRecord | Refusal] = []
        self._dusks: list[GameState] = []
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
        """One turn for each seat that has not answered; in a sequential round each waits for the one before.

        Under information lag there is one for each slot, and each is a round of its own, numbered as they start.
        """
        if self._open is None:
            self._open = self._open_turns()
        return self._open

    def _open_turns(self) -> tuple[Turn, ...]:
        state = self._state
        if self._queue is not None:
            return tuple(self._turn(turn.seat, round=turn.number) for turn in self._queue.unanswered())
        turns: list[Turn] = []
        for place, seat in enumerate(state.order):
            if seat in state.acted or seat in self._held:
                continue
            waits = bool(turns) and not state.is_simultaneous
            after = frozenset({turns[-1].agent}) if waits else frozenset[str]()
            turns.append(self._turn(seat, round=state.round, place=place, after=after))
        return tuple(turns)

    def _turn(self, seat: int, *, round: int, place: int = 0, after: frozenset[str] = frozenset()) -> Turn:
        agent = self._task.agents[seat]
        asked = self._asked.get(seat) or _Asked()
        return Turn(
            round=round,
            agent=agent.agent_id,
            model=agent.model,
            place=place,
            step=asked.step,
            attempt=asked.attempt,
            after=after,
        )

    def prompt(self, turn: Turn) -> Prompt:
        """The rules, the record, what the seat knows, what it is asked, and this turn so far."""
        seat = self._seats[turn.agent]
        asked = self._asked.get(seat)
        view = view_of(self._state, self._log, seat, asked.observations if asked else ())
        return self._context.prompt(view, asked.thread if asked else (), may_ask=self._may_ask(asked))

    def _may_ask(self, asked: _Asked | None) -> bool:
        return asked is None or asked.step < TOOL_CALLS_PER_TURN_MAX

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Answer a tool request, ask for a correction, or take the act (the default one when all else failed)."""
        self._open = None
        self._completion_tokens += reply.tokens.completion
        seat = self._seats[turn.agent]
        asked = self._asked.setdefault(seat, _Asked())
        asked.took_ms += self._latency.generation_ms(reply)
        reading = read(reply, self._state, seat)
        if isinstance(reading, ToolRequest):
            if self._may_ask(asked):
                return self._observe(seat, asked, reading, reply)
            reading = Problem(reason=f"you have asked {TOOL_CALLS_PER_TURN_MAX} times in this turn; now act")
        if isinstance(reading, Problem):
            asked.refused.append(self._refusal(turn, seat, reading.reason))
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
        asked.took_ms += self._latency.tool_ms
        asked.observations = (*asked.observations, observation)
        self._go_on(asked, reply, observation_text(observation))
        return Receipt(kind=ReceiptKind.OBSERVATION, detail=observation)

    def _go_on(self, asked: _Asked, reply: Reply, said: str) -> None:
        asked.thread.append(Message(role="assistant", content=reply.text))
        asked.thread.append(Message(role="user", content=said))

    def _take(self, seat: int, chosen: Chosen, *, is_default: bool) -> None:
        asked = self._asked.pop(seat)
        self._held[seat] = _Held(chosen=chosen, is_default=is_default, refused=tuple(asked.refused))
        for due in self._due(seat, asked.took_ms):
            self._apply(self._held.pop(due.seat), due)
            self._close_finished_rounds()

    def _due(self, seat: int, took_ms: int) -> list[_Due]:
        """The held choices that happen now that `seat` has made its own, in order."""
        number = self._state.round
        if self._queue is not None:
            completed = self._queue.answered(seat, took_ms)
            return [_Due(seat=turn.seat, round=turn.number, span=turn.span) for turn in completed]
        if not self._state.is_simultaneous:
            return [_Due(seat=seat, round=number)]
        is_complete = len(self._held) == len(self._state.due)
        return [_Due(seat=holder, round=number) for holder in sorted(self._held)] if is_complete else []

    def _refusal(self, turn: Turn, seat: int, reason: str) -> Refusal:
        state = self._state
        return Refusal(
            day=state.day, phase=state.phase.value, round=turn.round, turn=turn.key, seat=seat, reason=reason
        )

    def _apply(self, held: _Held, due: _Due) -> None:
        self._acts += held.refused
        for act in (*held.chosen.side_acts, held.chosen.act):
            try:
                self._perform(act, due, is_default=held.is_default)
            except IllegalActError as problem:
                # It was legal on the view it was chosen on; what others did at the same time came first.
                self._acts.append(self._act_record(act, due, is_default=held.is_default, lapsed=str(problem)))
                if act is held.chosen.act:
                    self._perform(Act(seat=act.seat, verb="wait"), due, is_default=True)

    def _perform(self, act: Act, due: _Due, *, is_default: bool) -> None:
        changed = apply(self._state, act)
        self._acts.append(self._act_record(act, due, is_default=is_default))
        self._state = changed.state
        self._log.append(changed.events)

    def _act_record(self, act: Act, due: _Due, *, is_default: bool, lapsed: str = "") -> ActRecord:
        return ActRecord(
            day=self._state.day,
            phase=self._state.phase.value,
            round=due.round,
            act=act,
            is_default=is_default,
            lapsed=lapsed,
            moment=len(self._log.events),
            span=due.span,
        )

    def _close_finished_rounds(self) -> None:
        while self._state.result is None and not self._state.due:
            move = self._what_ends_the_round()
            if self._state.phase is Phase.NIGHT and isinstance(move, EndRound):
                self._dusks.append(self._state)
            self._state, events = apply(self._state, move)
            self._log.append(events)
        if not self._state.is_lagged:
            self._queue = None
        elif self._queue is None:
            state = self._state
            self._queue = SpeakingQueue.begin(
                state.order, state.turns_left, slots=state.options.speaking_slots, first_number=state.round
            )
        validate(self._state)

    def _what_ends_the_round(self) -> Move:
        tokens_max = self._state.options.completion_tokens_max
        if tokens_max is not None and self._completion_tokens > tokens_max:
            return Cap(f"its replies took {self._completion_tokens} tokens, of {tokens_max} it may take")
        return EndRound()

    def record(self) -> JsonObject:
        """Who sat where as what, every event with its audience, every act, and the truth about them."""
        return record_of(self._state, self._log, self._task, self._acts, self._dusks)

    def fingerprint(self) -> str:
        """SHA-256 of the state, the log, the acts and the turns under way."""
        whole = {
            "state": asdict(self._state),
            "events": [event.as_json() for event in self._log.events],
            "asked": {seat: asdict(asked) for seat, asked in sorted(self._asked.items())},
            "held": {seat: asdict(held) for seat, held in sorted(self._held.items())},
            "queue": None if self._queue is None else asdict(self._queue),
            "acts": [asdict(act) for act in self._acts],
        }
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=sorted).encode()).hexdigest()
