"""A game as a Conversation: turns go out, replies come in, the rules decide between.

`Game` holds the dialogue with one seat until it has chosen: prompts, tool requests and their answers, corrections.
Whatever is asked of a game, its own catalogue of roles is then in force.

`GameLoop` makes the choices happen, each once it is certain when. In a sequential round an act is applied at once. In a
simultaneous one the acts are held until all have come, then applied in seat order, so the order of arrival leaves no
trace. Under information lag they are held until it is certain which active turn ends first (`SpeakingQueue`). A prompt
then shows what was said when its turn started, whenever it is rendered.

In a night chat one channel may have a first speaker, whom the others in it answer (`Channel.first`). They are asked
once the first speakers of all channels have answered, whose words are heard then; everybody else speaks at once.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from mac_runner.environments.dialogue import Dialogue, Tried
from mac_runner.environments.markup import OBSERVATION_TAG, disarm
from mac_runner.environments.reading import Cause, Problem
from mac_runner.environments.town_of_salem.counts import reply_counts
from mac_runner.environments.town_of_salem.hindsight import (
    ActRecord,
    Hindsight,
    Refusal,
    as_json,
    hindsight_of,
    outcome_of,
)
from mac_runner.environments.town_of_salem.model.events import Events
from mac_runner.environments.town_of_salem.model.role import Changed
from mac_runner.environments.town_of_salem.model.state import GameState, Phase, Result
from mac_runner.environments.town_of_salem.roles.catalogue import catalogue
from mac_runner.environments.town_of_salem.rules.acts import ACTS, Act, IllegalActError, Span, apply, apply_beside
from mac_runner.environments.town_of_salem.rules.calendar import (
    answering,
    channels_of,
    end_game,
    end_round,
    first_speakers,
    validate,
)
from mac_runner.environments.town_of_salem.seat.asking import Asking
from mac_runner.environments.town_of_salem.seat.knowledge import GameLog, place_of, view_of
from mac_runner.environments.town_of_salem.seat.prompts import (
    PLAIN,
    Context,
    Prompts,
    shorter_than,
)
from mac_runner.environments.town_of_salem.seat.replies import Chosen, read
from mac_runner.environments.town_of_salem.seat.tools import TOOL_CALLS_PER_TURN_MAX, observe
from mac_runner.environments.town_of_salem.settings import GameLatency
from mac_runner.spec import RetryConfig
from mac_runner.types import JsonObject, Message, Prompt, Receipt, ReceiptKind, Reply, Task, Turn


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
class Due:
    """A seat whose choice happens now, with the round and the span of its turn."""

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


@dataclass(slots=True, kw_only=True)
class ActiveTurn:
    """A turn that holds a slot."""

    seat: int
    number: int
    """Counts the turns of the game."""
    started_ms: int
    ended_ms: int | None = None
    """None until it is known."""


@dataclass(slots=True)
class SpeakingQueue:
    """Information lag: seats queue for the speaking slots of a discussion, on a clock that belongs to it.

    The seat at the front of the queue takes a free slot and starts its turn: it sees what has been said by then. When
    the turn is over its words become visible, and the seat goes to the back of the queue if it has turns left. So slow
    and waiting seats answer to an older state of the talk.

    The length of a turn is known with its reply. No turn completes before the lengths of all active turns are known:
    only then is it certain which ends first, and the real order of arrival leaves no trace. Turns that end at the same
    moment complete in seat order before the next ones start.
    """

    slots: int
    turns_left: dict[int, int]
    """The turns that each seat has not started."""
    next_number: int
    now_ms: int = 0
    waiting: list[int] = field(default_factory=list)
    active: list[ActiveTurn] = field(default_factory=list)

    @classmethod
    def begin(
        cls, order: Sequence[int], turns: Mapping[int, int], *, slots: int, first_number: int = 0
    ) -> SpeakingQueue:
        """Queue the seats in `order` for their `turns`, and fill the slots from the front."""
        queue = cls(slots=slots, turns_left=dict(turns), next_number=first_number, waiting=list(order))
        queue._fill()
        return queue

    def unanswered(self) -> tuple[ActiveTurn, ...]:
        """Active turns of unknown length, in the order in which they started."""
        return tuple(turn for turn in self.active if turn.ended_ms is None)

    def answered(self, seat: int, took_ms: int) -> list[Due]:
        """The turns that are certain to complete, in order, once that of `seat` took `took_ms`."""
        turn = next(turn for turn in self.unanswered() if turn.seat == seat)
        turn.ended_ms = turn.started_ms + took_ms
        completed: list[Due] = []
        while self.active and not self.unanswered():
            completed += self._complete()
            self._fill()
        return completed

    def _complete(self) -> list[Due]:
        """Free the slots of the turns that end first; their seats queue again in seat order."""
        ends = {turn.seat: turn.ended_ms or 0 for turn in self.active}
        self.now_ms = min(ends.values())
        over = sorted((turn for turn in self.active if ends[turn.seat] == self.now_ms), key=lambda turn: turn.seat)
        self.active = [turn for turn in self.active if turn not in over]
        self.waiting += [turn.seat for turn in over if self.turns_left[turn.seat]]
        return [
            Due(seat=turn.seat, round=turn.number, span=Span(started_ms=turn.started_ms, ended_ms=self.now_ms))
            for turn in over
        ]

    def _fill(self) -> None:
        while self.waiting and len(self.active) < self.slots:
            seat = self.waiting.pop(0)
            self.turns_left[seat] -= 1
            self.active.append(ActiveTurn(seat=seat, number=self.next_number, started_ms=self.now_ms))
            self.next_number += 1


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

    def _due(self, seat: int, took_ms: int) -> list[Due]:
        """The held choices that happen once `seat` has chosen, in order."""
        number = self.state.round
        if self._queue is not None:
            return self._queue.answered(seat, took_ms)
        if not self.state.is_simultaneous:
            return [Due(seat=seat, round=number)]
        if len(self._held) == len(self.state.due):
            return [Due(seat=holder, round=number) for holder in sorted(self._held)]
        first = first_speakers(self.state)
        if seat not in first or self._leading():
            return []
        # What is said first elsewhere is held like all words there, so that no other seat hears it sooner.
        return [Due(seat=one, round=number) for one in sorted(first) if one in self._held and self._leads(one, first)]

    def _leads(self, seat: int, first: Mapping[int, str]) -> bool:
        """Whether what a first speaker chose are words in the channel where it speaks first."""
        act = self._held[seat].chosen.act
        mine = channels_of(self.state, seat)[0].name
        return act.verb == "speak" and (act.choice or mine) == first[seat]

    def _apply(self, held: _Held, due: Due) -> None:
        self.acts += held.refused
        chosen = held.chosen
        for act in (*chosen.side_acts, *([] if chosen.speech is None else [chosen.speech]), chosen.act):
            record = self._record(act, due, is_default=held.is_default)
            try:
                changed = (apply_beside if act is chosen.speech else apply)(self.state, act)
            except IllegalActError as problem:
                # It was legal on its view; what others did at the same time came first.
                self.acts.append(replace(record, lapsed=str(problem)))
                if act is chosen.act:
                    wait = Act(seat=act.seat, verb="wait")
                    self._happen(self._record(wait, due, is_default=True), apply(self.state, wait))
            else:
                self._happen(replace(record, place=held.place) if act is chosen.act else record, changed)

    def _record(self, act: Act, due: Due, *, is_default: bool) -> ActRecord:
        return ActRecord(
            day=self.state.day,
            phase=self.state.phase,
            round=due.round,
            act=act,
            is_default=is_default,
            moment=len(self.log.events),
            span=due.span,
        )

    def _happen(self, record: ActRecord, changed: Changed) -> None:
        self.acts.append(record)
        self.state = changed.state
        self.log.append(changed.events, self._turn_keys[record.act.seat])

    def _close_finished_rounds(self) -> None:
        tokens_max = self.state.options.completion_tokens_max
        while self.state.result is None and not self.state.due:
            if tokens_max is not None and self.completion_tokens > tokens_max:
                spent = f"its replies took {self.completion_tokens} tokens, of {tokens_max} it may take"
                self.state, events = end_game(self.state, Result(ending="capped", reason=spent))
            else:
                if self.state.phase is Phase.NIGHT:
                    self.dusks.append(self.state)
                self.state, events = end_round(self.state)
            self.log.append(events)
        if not self.state.is_lagged:
            self._queue = None
        elif self._queue is None:
            state = self.state
            self._queue = SpeakingQueue.begin(
                state.order, state.turns_left, slots=state.options.speaking_slots, first_number=state.round
            )
        validate(self.state)

    def as_json(self) -> JsonObject:
        """All of it, for a digest."""
        return {
            "state": {**asdict(self.state), "options": self.state.options.model_dump()},
            "events": [event.as_json() for event in self.log.events],
            "held": {str(seat): asdict(held) for seat, held in sorted(self._held.items())},
            "queue": None if self._queue is None else asdict(self._queue),
            "acts": [asdict(act) for act in self.acts],
        }


class Game(Dialogue[Chosen]):
    """One game of Town of Salem; see `environments.base.Conversation` for the contract."""

    def __init__(
        self,
        *,
        task: Task,
        state: GameState,
        opening: Events,
        retry: RetryConfig,
        latency: GameLatency | None = None,
        context_tokens_max: int | None = None,
        asking: Mapping[str, Asking] | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        """`asking` says by agent definition how its players are asked; the others are asked as usual.

        The catalogue in force is that of the game from now on.
        """
        super().__init__(task, retry)
        self.catalogue = catalogue()
        self._context = Context(prompts or Prompts(), context_tokens_max)
        self._asking = [(asking or {}).get(agent.definition, PLAIN) for agent in task.agents]
        # By seat: the order in which seats learn of their limits must not show in a prompt.
        self._windows: dict[int, int] = {}
        self._latency = latency or GameLatency()
        self._open: tuple[Turn, ...] | None = None
        self._game = GameLoop(state, opening)
        self._took_ms = Counter[int]()
        """By seat, on the clock of the latency model: the turn so far."""
        self._waits = Counter[str]()
        """By player: how often it chose to wait."""
        self._outcome: JsonObject | None = None
        self._seen: Hindsight | None = None

    @property
    def state(self) -> GameState:
        """The game now."""
        return self._game.state

    @property
    def log(self) -> GameLog:
        """All that happened so far."""
        return self._game.log

    @property
    def outcome(self) -> JsonObject | None:
        """None while the game goes on, then its ending and how each player fared."""
        if self._outcome is None and self._game.state.result is not None:
            counts = [reply_counts(self._replies[name], self._waits[name]) for name in self._agents]
            with self.catalogue.in_force():
                self._outcome = outcome_of(self._game.state, self._task, self._hindsight(), counts)
        return self._outcome

    def _hindsight(self) -> Hindsight:
        """What is known by now; kept once the game is over."""
        game = self._game
        seen = self._seen or hindsight_of(game.state, game.log, self._task, game.acts, game.dusks)
        if game.state.result is not None:
            self._seen = seen
        return seen

    @property
    def rounds_completed(self) -> int:
        """Rounds before the open one."""
        return self._game.state.round

    def turns(self) -> tuple[Turn, ...]:
        """One turn for each seat that has not answered; in a sequential round each waits for the one before.

        Under information lag there is one per slot, and each is a round of its own, numbered as they start.
        """
        if self._open is None:
            with self.catalogue.in_force():
                self._open = tuple([self._asked(turn) for turn in self._game.open_turns()])
        return self._open

    def _asked(self, open_turn: OpenTurn) -> Turn:
        agents = self._task.agents
        return self._turn(
            agents[open_turn.seat].agent_id,
            round=open_turn.round,
            place=open_turn.place,
            after=frozenset(agents[seat].agent_id for seat in open_turn.after),
        )

    def prompt(self, turn: Turn) -> Prompt:
        """The rules, the record, what the seat knows and is asked, and this turn so far."""
        seat = self._agents[turn.agent].seat
        asking = self._asking[seat]
        tried = self._tried.get(turn.agent, ())
        observed = tuple([each.receipt.detail for each in tried if each.receipt.kind is ReceiptKind.OBSERVATION])
        with self.catalogue.in_force():
            return self._context.prompt(
                view_of(self._game.state, self._game.log, seat, observed),
                [message for each in tried for message in _said(each, asking)],
                asking=asking,
                may_ask=turn.step < TOOL_CALLS_PER_TURN_MAX,
                tokens_max=self._windows.get(seat),
            )

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Answer a tool request, ask for a correction, or take the act (`wait` when no corrections are left)."""
        self._open = None
        with self.catalogue.in_force():
            return super().receive(turn, reply)

    def _read(self, turn: Turn, reply: Reply) -> Chosen | Problem | Receipt:
        self._game.completion_tokens += reply.tokens.completion
        seat = self._agents[turn.agent].seat
        self._took_ms[seat] += self._latency.generation_ms(reply)
        reading = read(reply, self._game.state, seat)
        if isinstance(reading, Chosen | Problem):
            return reading
        if turn.step == TOOL_CALLS_PER_TURN_MAX:
            text = f"you have asked tools {TOOL_CALLS_PER_TURN_MAX} times in this turn; now act"
            return Problem(Cause.TOO_MANY_TOOLS, text)
        self._took_ms[seat] += self._latency.tool_ms
        view = view_of(self._game.state, self._game.log, seat)
        return Receipt(kind=ReceiptKind.OBSERVATION, detail=observe(view, reading.name, reading.argument))

    def _apply(self, turn: Turn, found: Chosen) -> str:
        self._waits[turn.agent] += found.act.verb == "wait"
        self._take(turn, found, self._refusals(turn))
        return found.act.verb

    def _default(self, turn: Turn, problem: Problem) -> str:
        wait = Chosen(act=Act(seat=self._agents[turn.agent].seat, verb="wait"))
        self._take(turn, wait, [*self._refusals(turn), self._refusal(turn, turn.key, problem.reason)], is_default=True)
        return wait.act.verb

    def _take(self, turn: Turn, chosen: Chosen, refused: Sequence[Refusal], *, is_default: bool = False) -> None:
        took_ms = self._took_ms.pop(chosen.act.seat)
        self._game.take(chosen, turn=turn.key, took_ms=took_ms, is_default=is_default, refused=tuple(refused))

    def _refusals(self, turn: Turn) -> list[Refusal]:
        return [self._refusal(turn, each.turn, each.receipt.detail) for each in self._flawed(turn.agent)]

    def _refusal(self, turn: Turn, key: str, reason: str) -> Refusal:
        state = self._game.state
        seat = self._agents[turn.agent].seat
        return Refusal(day=state.day, phase=state.phase, round=turn.round, turn=key, seat=seat, reason=reason)

    def _overflow(self, turn: Turn) -> Receipt:
        """Ask again with a shorter prompt; one that cannot be shorter fails when it is rendered."""
        limit = self._windows[self._agents[turn.agent].seat] = shorter_than(self.prompt(turn))
        reason = f"the prompt does not fit the engine's context; it is asked again with about {limit} tokens"
        return Receipt(kind=ReceiptKind.CORRECTION, detail=reason)

    def record(self) -> JsonObject:
        """The cast, every event with its audience, every act, and the truth about them."""
        with self.catalogue.in_force():
            return as_json(self._hindsight().record)

    def fingerprint(self) -> str:
        """SHA-256 of the state, the log, the acts and the turns under way."""
        whole = {**self._game.as_json(), "asked": self._pending(), "windows": sorted(self._windows.items())}
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=sorted).encode()).hexdigest()


def _said(tried: Tried, asking: Asking) -> tuple[Message, ...]:
    """A reply as its player finds it in the next prompt, and what the game said to it."""
    detail = tried.receipt.detail
    if tried.receipt.kind is ReceiptKind.OBSERVATION:
        answer = f"<{OBSERVATION_TAG}>{detail}</{OBSERVATION_TAG}>"
    elif tried.receipt.cause is not None:
        answer = asking.correction(detail)
    else:  # The prompt was too long: there is no reply.
        return ()
    said = disarm(tried.reply.text, ACTS)
    return (Message(role="assistant", content=said), Message(role="user", content=answer))
