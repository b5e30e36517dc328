"""A game as a Conversation: turns go out, replies come in, the rules decide between.

This file holds the dialogue with one seat until it has chosen: prompts, tool requests and their answers, corrections.
`game_loop` turns its choice into moves. Whatever is asked of a game, its own catalogue of roles is then in force.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from mac_runner.config import RetryConfig
from mac_runner.environments.dialogue import Dialogue, Tried
from mac_runner.environments.reading import Cause, Problem
from mac_runner.environments.town_of_salem.counts import reply_counts
from mac_runner.environments.town_of_salem.game_loop import GameLoop, OpenTurn
from mac_runner.environments.town_of_salem.hindsight import (
    Hindsight,
    Refusal,
    hindsight_of,
    outcome_of,
    record_of,
)
from mac_runner.environments.town_of_salem.model.events import Events
from mac_runner.environments.town_of_salem.model.state import GameState
from mac_runner.environments.town_of_salem.roles.catalogue import catalogue
from mac_runner.environments.town_of_salem.rules.acts import Act
from mac_runner.environments.town_of_salem.seat.asking import Asking
from mac_runner.environments.town_of_salem.seat.knowledge import GameLog, view_of
from mac_runner.environments.town_of_salem.seat.prompts import (
    PLAIN,
    Context,
    Prompts,
    correction_text,
    observation_text,
    shorter_than,
)
from mac_runner.environments.town_of_salem.seat.replies import Chosen, read
from mac_runner.environments.town_of_salem.seat.tools import TOOL_CALLS_PER_TURN_MAX, observe
from mac_runner.environments.town_of_salem.settings import GameLatency
from mac_runner.types import JsonObject, Message, Prompt, Receipt, ReceiptKind, Reply, Task, Turn

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
    @_knows_its_roles
    def outcome(self) -> JsonObject | None:
        """None while the game goes on, then its ending and how each player fared."""
        if self._outcome is None and self._game.state.result is not None:
            seen = self._hindsight()
            counts = [reply_counts(self._replies[name], self._waits[name]) for name in self._agents]
            self._outcome = outcome_of(self._game.state, self._task, self._game.log, seen, counts)
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

    @_knows_its_roles
    def prompt(self, turn: Turn) -> Prompt:
        """The rules, the record, what the seat knows and is asked, and this turn so far."""
        seat = self._agents[turn.agent].seat
        asking = self._asking[seat]
        tried = self._tried.get(turn.agent, ())
        observed = tuple([each.receipt.detail for each in tried if each.receipt.kind is ReceiptKind.OBSERVATION])
        return self._context.prompt(
            view_of(self._game.state, self._game.log, seat, observed),
            [message for each in tried for message in _said(each, asking)],
            asking=asking,
            may_ask=turn.step < TOOL_CALLS_PER_TURN_MAX,
            tokens_max=self._windows.get(seat),
        )

    @_knows_its_roles
    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Answer a tool request, ask for a correction, or take the act (`wait` when no corrections are left)."""
        self._open = None
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

    @_knows_its_roles
    def record(self) -> JsonObject:
        """The cast, every event with its audience, every act, and the truth about them."""
        return record_of(self._game.state, self._game.log, self._task, self._game.acts, self._hindsight())

    def fingerprint(self) -> str:
        """SHA-256 of the state, the log, the acts and the turns under way."""
        whole = {**self._game.as_json(), "asked": self._pending(), "windows": sorted(self._windows.items())}
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=sorted).encode()).hexdigest()


def _said(tried: Tried, asking: Asking) -> tuple[Message, ...]:
    """A reply as its player finds it in the next prompt, and what the game said to it."""
    detail = tried.receipt.detail
    if tried.receipt.kind is ReceiptKind.OBSERVATION:
        answer = observation_text(detail)
    elif tried.receipt.cause is not None:
        answer = correction_text(detail, asking)
    else:  # The prompt was too long: there is no reply.
        return ()
    return (Message(role="assistant", content=tried.reply.text), Message(role="user", content=answer))
