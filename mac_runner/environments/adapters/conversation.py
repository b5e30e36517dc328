"""The Conversation contract over one game of another library.

Each move is a round of its own. A reply without a legal move is asked for again in the same round.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Final

from mac_runner.environments.adapters.game import Game, GameView, Heard, Move
from mac_runner.environments.dialogue import Dialogue, Replies
from mac_runner.environments.reading import Cause, Problem, spoken
from mac_runner.spec import RetryConfig
from mac_runner.types import JsonObject, JsonValue, Message, Prompt, ReceiptKind, Reply, Task, Turn

_EMPTY: Final = Problem(Cause.EMPTY, "there was nothing outside your thoughts")
_DETAIL_CHARS_MAX: Final = 200
_MARKER: Final = re.compile(r"<(?=[/|｜]?[A-Za-z_|｜])|(?<=[|｜])>")
"""What begins or ends a tag: chat templates and private thoughts are written in them, moves of games are not."""
_BRACKETED: Final = re.compile(r"\[(/?(?:INST|SYS|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|gMASK|sop))\]")


@dataclass(frozen=True, slots=True)
class _Refused(Problem):
    """Words of which the game could make no legal move, and what it did then."""

    move: Move


class GameConversation(Dialogue[Move]):
    """One game from its first move to its end, or to `moves_max`."""

    too_long = "what the player has read has outgrown the context of the engine; use a larger one, or a shorter game"

    def __init__(self, game: Game, task: Task, *, kind: str, name: str, moves_max: int, retry: RetryConfig) -> None:
        super().__init__(task, retry)
        self._game = game
        self._kind = kind
        self._name = name
        self._moves_max = moves_max
        self._round = 0
        self._events: list[JsonObject] = []
        self._outcome: JsonObject | None = None
        self._digest = hashlib.sha256(f"{kind} {name} {task.seed}".encode())
        self._take_in()

    @property
    def outcome(self) -> JsonObject | None:
        """Who won, the reward of each agent and why the game ended; None while it runs."""
        return self._outcome

    @property
    def rounds_completed(self) -> int:
        """Moves so far."""
        return self._round

    def turns(self) -> tuple[Turn, ...]:
        """That of the player to move."""
        if self._outcome is not None or (asked := self._game.asked) is None:
            return ()
        agent = self._task.agents[asked.player]
        return (self._turn(agent.agent_id, round=self._round, place=asked.player),)

    def prompt(self, turn: Turn) -> Prompt:
        """The rules, and what the player has read or sees."""
        asked = self._game.asked
        assert asked is not None, "a turn of a game that has ended"
        text = asked.text
        if self._was_empty():
            text = f"{text}\n\nYour last reply could not be used: {_EMPTY.reason}. Try again."
        return Prompt(
            messages=(Message(role="system", content=asked.rules), Message(role="user", content=text)),
            view=GameView(
                game=self._name,
                player=asked.player,
                rules=asked.rules,
                text=text,
                options=asked.options,
                attempt=turn.attempt,
            ),
            choices=asked.choices,
        )

    def _read(self, turn: Turn, reply: Reply) -> Move | Problem:
        """The move that the words make; the game may refuse it and ask the player again."""
        said = _words(reply)
        may_correct = super()._may_correct(turn, _EMPTY)
        if said is None:
            if may_correct:
                self._digest.update(b"\x1fempty")
            return _EMPTY
        move = self._moved(turn, said, self._game.play(said, may_correct=may_correct))
        if move.refusal is None:
            return move
        if move.is_asked_again:
            self._take_in(turn)
        return _Refused(Cause.INVALID_MOVE, move.refusal, move)

    def _may_correct(self, turn: Turn, problem: Problem) -> bool:
        return problem.move.is_asked_again if isinstance(problem, _Refused) else super()._may_correct(turn, problem)

    def _apply(self, turn: Turn, found: Move) -> str:
        self._next_round(turn)
        return found.detail[:_DETAIL_CHARS_MAX]

    def _default(self, turn: Turn, problem: Problem) -> str:
        move = problem.move if isinstance(problem, _Refused) else self._moved(turn, None, self._game.play_default())
        self._next_round(turn)
        return move.detail

    def _moved(self, turn: Turn, said: str | None, move: Move) -> Move:
        self._digest.update(json.dumps([turn.place, said, list(move)]).encode("ascii"))
        return move

    def record(self) -> JsonObject:
        """Who took part as which player, and what players were shown."""
        return {
            "game": self._name,
            "participants": [
                {"agent": agent.agent_id, "definition": agent.definition, "player": player}
                for player, agent in enumerate(self._task.agents)
            ],
            "events": [dict(event) for event in self._events],
        }

    def fingerprint(self) -> str:
        """Digest of all replies and of all that players were shown."""
        digest = self._digest.copy()
        asked = self._game.asked
        asked_now = None if asked is None else list(asked)
        state = [self._round, [*self._pending().items()], self._was_empty(), asked_now, self._outcome]
        digest.update(json.dumps(state).encode("ascii"))
        return digest.hexdigest()

    def _was_empty(self) -> bool:
        """Whether the last reply had no words, of which the game knows nothing."""
        return any(tried[-1].receipt.cause == _EMPTY.cause for tried in self._tried.values())

    def _next_round(self, turn: Turn) -> None:
        self._round += 1
        self._take_in(turn)

    def _take_in(self, turn: Turn | None = None) -> None:
        """What players were shown after a turn becomes events; a game that has ended gets its outcome."""
        for heard in self._game.heard():
            self._events.append(self._event(heard, turn))
            self._digest.update(json.dumps([heard.text, sorted(heard.players), heard.sender]).encode("ascii"))
        if self._game.asked is None or self._round >= self._moves_max:
            self._outcome = self._ended()

    def _event(self, heard: Heard, turn: Turn | None) -> JsonObject:
        everyone = len(heard.players) == len(self._task.agents)
        audience: JsonValue = (
            "all" if everyone else [self._task.agents[player].agent_id for player in sorted(heard.players)]
        )
        said_by = None if heard.sender is None else self._task.agents[heard.sender].agent_id
        return {
            "when": f"Move {self._round}" if self._round else "Start",
            "turn": None if turn is None else turn.key,
            "audience": audience,
            "text": heard.text if said_by is None else f"{said_by}: {heard.text}",
            "data": {"kind": heard.kind, "agent": said_by},
        }

    def _ended(self) -> JsonObject:
        result = self._game.result()
        rewards = {player: float(reward) for player, reward in sorted(result.rewards.items())}
        best = max(rewards.values(), default=0.0)
        is_decided = best > min(rewards.values(), default=0.0) if len(self._task.agents) > 1 else best >= 1
        won = {player: is_decided and rewards.get(player) == best for player in range(len(self._task.agents))}
        outcome: JsonObject = {
            "kind": self._kind,
            "game": self._name,
            "winners": [self._task.agents[player].agent_id for player, has_won in won.items() if has_won],
            "reason": result.reason,
            "moves": self._round,
            "is_cut_short": self._game.asked is not None,
            **result.more,
            "rewards": self._named(rewards),
            "won": self._named(won),
            "invalid_moves": {name: _invalid(replies) for name, replies in self._replies.items()},
        }
        outcome.update({name: self._named(values) for name, values in result.by_player.items()})
        return outcome

    def _named(self, values: dict[int, bool] | dict[int, float] | dict[int, bool | int | float | str]) -> JsonObject:
        return {self._task.agents[player].agent_id: value for player, value in values.items()}


def _invalid(replies: Replies) -> int:
    """How many of a player's replies the game refused, or had to do without."""
    return replies.counts[ReceiptKind.CORRECTION, Cause.INVALID_MOVE] + replies.of(ReceiptKind.DEFAULT)


def _words(reply: Reply) -> str | None:
    """What a reply says beside private thoughts, without what a chat template could take for its own; None: nothing."""
    said = spoken(reply, may_be_object=False)
    if isinstance(said, Problem):
        return None
    plain = "".join(char for char in said if char in "\n\t" or char.isprintable())
    return _BRACKETED.sub(r"(\1)", _MARKER.sub("‹", plain)).strip() or None
