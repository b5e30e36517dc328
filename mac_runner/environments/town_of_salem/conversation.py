"""A game as a Conversation: turns go out, replies come in, the rules decide between.

This file holds the dialogue with one seat until it has chosen: prompts, tool requests and their answers, corrections.
`game_loop` turns its choice into moves. Whatever is asked of a game, its own catalogue of roles is then in force.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from mac_runner.environments.base import exhausted
from mac_runner.environments.town_of_salem.counts import ReplyCounts
from mac_runner.environments.town_of_salem.game_loop import GameLoop, OpenTurn
from mac_runner.environments.town_of_salem.model.events import Events
from mac_runner.environments.town_of_salem.model.state import GameState
from mac_runner.environments.town_of_salem.record.game_record import (
    Hindsight,
    Refusal,
    hindsight_of,
    outcome_of,
    record_of,
)
from mac_runner.environments.town_of_salem.roles.catalogue import catalogue
from mac_runner.environments.town_of_salem.rules.acts import Act
from mac_runner.environments.town_of_salem.seat.asking import Asking
from mac_runner.environments.town_of_salem.seat.context import Context, shorter_than
from mac_runner.environments.town_of_salem.seat.knowledge import GameLog, view_of
from mac_runner.environments.town_of_salem.seat.prompts import PLAIN, correction_text, observation_text
from mac_runner.environments.town_of_salem.seat.replies import Cause, Chosen, Problem, ToolRequest, read
from mac_runner.environments.town_of_salem.seat.tools import TOOL_CALLS_PER_TURN_MAX, observe
from mac_runner.environments.town_of_salem.settings import GameLatency
from mac_runner.types import (
    FinishReason,
    JsonObject,
    Message,
    Prompt,
    Receipt,
    ReceiptKind,
    Reply,
    Task,
    Turn,
    WhenExhausted,
)

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.seat.template import GameTemplate


_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def _knows_its_roles(
    method: Callable[Concatenate[Game, _Given], _Found],
) -> Callable[Concatenate[Game, _Given], _Found]:
    """Decorator: the catalogue of the game is in force."""

    @wraps(method)
    def call(game: Game, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        with game.catalogue.in_force():
            return method(game, *args, **kwargs)

    return call


@dataclass(slots=True)
class _Asked:
    """How far a seat has come in its turn."""

    step: int = 0
    attempt: int = 0
    """Corrections and overflows together."""
    overflows: int = 0
    took_ms: int = 0
    """By the latency model."""
    thread: list[Message] = field(default_factory=list)
    """The messages since the seat was first asked."""
    observations: tuple[str, ...] = ()
    refused: list[Refusal] = field(default_factory=list)
    """Replies that could not be used."""


class Game:
    """One game of Town of Salem; see `environments.base.Conversation` for the contract."""

    def __init__(
        self,
        *,
        task: Task,
        state: GameState,
        opening: Events,
        max_retries: int,
        when_exhausted: WhenExhausted = "pass",
        latency: GameLatency | None = None,
        context_tokens_max: int | None = None,
        asking: Mapping[str, Asking] | None = None,
        template: GameTemplate | None = None,
    ) -> None:
        """`asking` says by agent definition how its players are asked; the others are asked as usual.

        The catalogue in force is that of the game from now on.
        """
        self.catalogue = catalogue()
        self._task = task
        self._context = Context(tokens_max=context_tokens_max, template=template)
        self._asking = [(asking or {}).get(agent.definition, PLAIN) for agent in task.agents]
        self._max_retries = max_retries
        self._when_exhausted = when_exhausted
        self._seats = {agent.agent_id: agent.seat for agent in task.agents}
        self._asked: dict[int, _Asked] = {}
        # By seat: the order in which seats learn of their limits must not show in a prompt.
        self._windows: dict[int, int] = {}
        self._latency = latency or GameLatency()
        self._open: tuple[Turn, ...] | None = None
        self._game = GameLoop(state, opening)
        self._replies = ReplyCounts(len(state.players))
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
    @_knows_its_roles
    def outcome(self) -> JsonObject | None:
        """None while the game goes on, then its ending and how each player fared."""
        if self._outcome is None and self._game.state.result is not None:
            seen = self._hindsight()
            self._outcome = outcome_of(self._game.state, self._task, self._game.log, seen, self._replies.by_seat)
        return self._outcome

    def _hindsight(self) -> Hindsight:
        """What is known by now; kept once the game is over."""
        game = self._game
        seen = self._seen or hindsight_of(game.state, game.log.events, game.acts, game.dusks)
        if game.state.result is not None:
            self._seen = seen
        return seen

    @property
    def rounds_completed(self) -> int:
        """Rounds before the open one."""
        return self._game.state.round

    @_knows_its_roles
    def turns(self) -> tuple[Turn, ...]:
        """One turn for each seat that has not answered; in a sequential round each waits for the one before.

        Under information lag there is one per slot, and each is a round of its own, numbered as they start.
        """
        if self._open is None:
            self._open = tuple([self._turn(turn) for turn in self._game.open_turns()])
        return self._open

    def _turn(self, open_turn: OpenTurn) -> Turn:
        agent = self._task.agents[open_turn.seat]
        asked = self._asked.get(open_turn.seat) or _Asked()
        return Turn(
            round=open_turn.round,
            agent=agent.agent_id,
            model=agent.model,
            place=open_turn.place,
            step=asked.step,
            attempt=asked.attempt,
            after=frozenset(self._task.agents[seat].agent_id for seat in open_turn.after),
        )

    @_knows_its_roles
    def prompt(self, turn: Turn) -> Prompt:
        """The rules, the record, what the seat knows and is asked, and this turn so far."""
        seat = self._seats[turn.agent]
        asked = self._asked.get(seat)
        view = view_of(self._game.state, self._game.log, seat, asked.observations if asked else ())
        return self._context.prompt(
            view,
            asked.thread if asked else (),
            asking=self._asking[seat],
            may_ask=self._may_ask(asked),
            tokens_max=self._windows.get(seat),
        )

    def _may_ask(self, asked: _Asked | None) -> bool:
        return asked is None or asked.step < TOOL_CALLS_PER_TURN_MAX

    @_knows_its_roles
    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Apply a reply, and count what was made of it."""
        receipt = self._answer(turn, reply)
        self._replies.add(self._seats[turn.agent], reply, receipt)
        return receipt

    def _answer(self, turn: Turn, reply: Reply) -> Receipt:
        """Answer a tool request, ask for a correction, or take the act (`wait` when no corrections are left)."""
        if reply.finish_reason is FinishReason.OVERFLOW:
            return self._shorten(turn)
        self._open = None
        self._game.completion_tokens += reply.tokens.completion
        seat = self._seats[turn.agent]
        asked = self._asked.setdefault(seat, _Asked())
        asked.took_ms += self._latency.generation_ms(reply)
        reading = read(reply, self._game.state, seat)
        if isinstance(reading, ToolRequest):
            if self._may_ask(asked):
                return self._observe(seat, asked, reading, reply)
            reading = Problem(
                Cause.TOO_MANY_TOOLS, f"you have asked tools {TOOL_CALLS_PER_TURN_MAX} times in this turn; now act"
            )
        if isinstance(reading, Problem):
            asked.refused.append(self._refusal(turn, seat, reading.reason))
            if asked.attempt - asked.overflows < self._max_retries:
                asked.attempt += 1
                self._go_on(asked, reply, correction_text(reading.reason, self._asking[seat]))
                return Receipt(kind=ReceiptKind.CORRECTION, detail=reading.reason, cause=reading.cause)
            receipt = exhausted(turn, self._when_exhausted, default="wait", reason=reading.reason, cause=reading.cause)
            if receipt.kind is ReceiptKind.DEFAULT:
                self._take(turn, Chosen(act=Act(seat=seat, verb="wait")), is_default=True)
            return receipt
        self._take(turn, reading)
        return Receipt(kind=ReceiptKind.ACT, detail=reading.act.verb)

    def _take(self, turn: Turn, chosen: Chosen, *, is_default: bool = False) -> None:
        asked = self._asked.pop(chosen.act.seat)
        refused = tuple(asked.refused)
        self._game.take(chosen, turn=turn.key, took_ms=asked.took_ms, is_default=is_default, refused=refused)

    def _refusal(self, turn: Turn, seat: int, reason: str) -> Refusal:
        state = self._game.state
        return Refusal(
            day=state.day, phase=state.phase.value, round=turn.round, turn=turn.key, seat=seat, reason=reason
        )

    def _shorten(self, turn: Turn) -> Receipt:
        """Ask again with a shorter prompt; one that cannot be shorter fails when it is rendered."""
        seat = self._seats[turn.agent]
        self._windows[seat] = limit = shorter_than(self.prompt(turn))
        self._open = None
        asked = self._asked.setdefault(seat, _Asked())
        asked.attempt += 1
        asked.overflows += 1
        reason = f"the prompt does not fit the engine's context; it is asked again with about {limit} tokens"
        return Receipt(kind=ReceiptKind.CORRECTION, detail=reason)

    def _observe(self, seat: int, asked: _Asked, request: ToolRequest, reply: Reply) -> Receipt:
        observation = observe(view_of(self._game.state, self._game.log, seat), request.name, request.argument)
        asked.step += 1
        asked.took_ms += self._latency.tool_ms
        asked.observations = (*asked.observations, observation)
        self._go_on(asked, reply, observation_text(observation))
        return Receipt(kind=ReceiptKind.OBSERVATION, detail=observation)

    def _go_on(self, asked: _Asked, reply: Reply, said: str) -> None:
        asked.thread.append(Message(role="assistant", content=reply.text))
        asked.thread.append(Message(role="user", content=said))

    @_knows_its_roles
    def record(self) -> JsonObject:
        """The cast, every event with its audience, every act, and the truth about them."""
        return record_of(self._game.state, self._game.log, self._task, self._game.acts, self._hindsight())

    def fingerprint(self) -> str:
        """SHA-256 of the state, the log, the acts and the turns under way."""
        asked = {str(seat): asdict(asked) for seat, asked in sorted(self._asked.items())}
        whole = {**self._game.as_json(), "asked": asked, "windows": sorted(self._windows.items())}
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=sorted).encode()).hexdigest()
