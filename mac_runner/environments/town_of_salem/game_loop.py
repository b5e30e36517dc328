"""How replies become moves: each choice is held until it is certain when it happens.

In a sequential round an act is applied at once. In a simultaneous one the acts are held until all have come, then
applied in seat order, so the order of arrival leaves no trace. Under information lag they are held until it is certain
which active turn ends first (`turn_taking`). A prompt then shows what was said when its turn started, whenever it is
rendered.

In a night chat one channel may have a first speaker, whom the others in it answer (`Channel.first`). They are asked
once the first speakers of all channels have answered, whose words are heard then; everybody else speaks at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from mac_runner.environments.town_of_salem.hindsight import ActRecord, Refusal
from mac_runner.environments.town_of_salem.model.events import Events
from mac_runner.environments.town_of_salem.model.state import GameState, Phase
from mac_runner.environments.town_of_salem.rules.acts import Act
from mac_runner.environments.town_of_salem.rules.channels import answering, channels_of, first_speakers
from mac_runner.environments.town_of_salem.rules.moves import (
    Beside,
    Cap,
    EndRound,
    IllegalActError,
    Move,
    apply,
    validate,
)
from mac_runner.environments.town_of_salem.seat.knowledge import GameLog, place_of
from mac_runner.environments.town_of_salem.seat.replies import Chosen
from mac_runner.environments.town_of_salem.turn_taking import Span, SpeakingQueue
from mac_runner.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What a seat chose, until it happens."""

    chosen: Chosen
    is_default: bool
    refused: tuple[Refusal, ...] = ()
    """The replies of the seat that could not be used."""
    place: tuple[int, int] | None = None
    """Where options are shuffled: the place of the chosen one, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """A held choice that happens now, with the round and the span of its turn."""

    seat: int
    round: int
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTurn:
    """A seat that is asked now: its round, its place in it, and the seats it waits for."""

    seat: int
    round: int
    place: int = 0
    after: tuple[int, ...] = ()


class GameLoop:
    """A running game: its state, its log, every act made, and the choices that are held."""

    def __init__(self, state: GameState, opening: Events) -> None:
        self.state = state
        self.log = GameLog(len(state.players))
        self.log.append(opening)
        self.acts: list[ActRecord | Refusal] = []
        self.dusks: list[GameState] = []
        """The state at the end of each night's choosing."""
        self.completion_tokens = 0
        """What the replies have cost so far."""
        self._held: dict[int, _Held] = {}
        self._turn_keys: dict[int, str] = {}
        """By seat, the turn of the choice that it holds. No part of the state, from which nothing else follows."""
        self._queue: SpeakingQueue | None = None
        self._close_finished_rounds()

    def open_turns(self) -> tuple[OpenTurn, ...]:
        """Every seat that has not answered; in a sequential round each waits for the one before."""
        if self._queue is not None:
            return tuple(OpenTurn(seat=turn.seat, round=turn.number) for turn in self._queue.unanswered())
        state, turns = self.state, list[OpenTurn]()
        answers, leading = answering(state), self._leading()
        for place, seat in enumerate(state.order):
            if seat in state.acted or seat in self._held:
                continue
            after = leading if seat in answers else ()
            if not state.is_simultaneous:
                after = tuple(turn.seat for turn in turns[-1:])
            turns.append(OpenTurn(seat=seat, round=state.round, place=place, after=after))
        return tuple(turns)

    def _leading(self) -> tuple[int, ...]:
        """The first speakers of this round who have not answered."""
        return tuple(seat for seat in first_speakers(self.state) if seat in self.state.due and seat not in self._held)

    def take(
        self, chosen: Chosen, *, turn: str, took_ms: int, is_default: bool = False, refused: tuple[Refusal, ...] = ()
    ) -> None:
        """Take the choice of a seat in the turn with this key, of `took_ms`, and do all that is certain to happen."""
        seat = chosen.act.seat
        self._turn_keys[seat] = turn
        # What it was shown: the state changes for a seat only when its turn is over.
        place = place_of(chosen.act, self.state) if self.state.options.shuffle_options else None
        self._held[seat] = _Held(chosen=chosen, is_default=is_default, refused=refused, place=place)
        for due in self._due(seat, took_ms):
            self._apply(self._held.pop(due.seat), due)
            self._close_finished_rounds()

    def _due(self, seat: int, took_ms: int) -> list[_Due]:
        """The held choices that happen once `seat` has chosen, in order."""
        number = self.state.round
        if self._queue is not None:
            completed = self._queue.answered(seat, took_ms)
            return [_Due(seat=turn.seat, round=turn.number, span=turn.span) for turn in completed]
        if not self.state.is_simultaneous:
            return [_Due(seat=seat, round=number)]
        if len(self._held) == len(self.state.due):
            return [_Due(seat=holder, round=number) for holder in sorted(self._held)]
        first = first_speakers(self.state)
        if seat not in first or self._leading():
            return []
        # What is said first elsewhere is held like all words there, so that no other seat hears it sooner.
        return [_Due(seat=one, round=number) for one in sorted(first) if one in self._held and self._leads(one, first)]

    def _leads(self, seat: int, first: Mapping[int, str]) -> bool:
        """Whether what a first speaker chose are words in the channel where it speaks first."""
        act = self._held[seat].chosen.act
        mine = channels_of(self.state, seat)[0].name
        return act.verb == "speak" and (act.choice or mine) == first[seat]

    def _apply(self, held: _Held, due: _Due) -> None:
        self.acts += held.refused
        chosen = held.chosen
        for act in (*chosen.side_acts, *([] if chosen.speech is None else [chosen.speech]), chosen.act):
            try:
                place = held.place if act is chosen.act else None
                is_beside = act is chosen.speech
                self._perform(act, due, is_default=held.is_default, place=place, is_beside=is_beside)
            except IllegalActError as problem:
                # It was legal on its view; what others did at the same time came first.
                self.acts.append(self._act_record(act, due, is_default=held.is_default, lapsed=str(problem)))
                if act is chosen.act:
                    self._perform(Act(seat=act.seat, verb="wait"), due, is_default=True)

    def _perform(
        self,
        act: Act,
        due: _Due,
        *,
        is_default: bool,
        place: tuple[int, int] | None = None,
        is_beside: bool = False,
    ) -> None:
        changed = apply(self.state, Beside(act) if is_beside else act)
        self.acts.append(self._act_record(act, due, is_default=is_default, place=place))
        self.state = changed.state
        self.log.append(changed.events, self._turn_keys[act.seat])

    def _act_record(
        self,
        act: Act,
        due: _Due,
        *,
        is_default: bool,
        lapsed: str = "",
        place: tuple[int, int] | None = None,
    ) -> ActRecord:
        return ActRecord(
            day=self.state.day,
            phase=self.state.phase,
            round=due.round,
            act=act,
            is_default=is_default,
            lapsed=lapsed,
            moment=len(self.log.events),
            span=due.span,
            place=place,
        )

    def _close_finished_rounds(self) -> None:
        while self.state.result is None and not self.state.due:
            move = self._what_ends_the_round()
            if self.state.phase is Phase.NIGHT and isinstance(move, EndRound):
                self.dusks.append(self.state)
            self.state, events = apply(self.state, move)
            self.log.append(events)
        if not self.state.is_lagged:
            self._queue = None
        elif self._queue is None:
            state = self.state
            self._queue = SpeakingQueue.begin(
                state.order, state.turns_left, slots=state.options.speaking_slots, first_number=state.round
            )
        validate(self.state)

    def _what_ends_the_round(self) -> Move:
        tokens_max = self.state.options.completion_tokens_max
        if tokens_max is not None and self.completion_tokens > tokens_max:
            return Cap(f"its replies took {self.completion_tokens} tokens, of {tokens_max} it may take")
        return EndRound()

    def as_json(self) -> JsonObject:
        """All of it, for a digest."""
        return {
            "state": asdict(self.state),
            "events": [event.as_json() for event in self.log.events],
            "held": {str(seat): asdict(held) for seat, held in sorted(self._held.items())},
            "queue": None if self._queue is None else asdict(self._queue),
            "acts": [asdict(act) for act in self.acts],
        }
