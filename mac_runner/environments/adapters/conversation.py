"""The Conversation contract over one game of another library.

Each move is a round of its own. A reply without a legal move is asked for again in the same round.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final

from mac_runner.environments.adapters.game import Asked, Game, GameView, Heard
from mac_runner.environments.base import exhausted
from mac_runner.environments.markup import after_thoughts, opens_thought
from mac_runner.types import (
    REPLY_CHARS_MAX,
    FinishReason,
    JsonObject,
    JsonValue,
    Message,
    Prompt,
    Receipt,
    ReceiptKind,
    Reply,
    Task,
    Turn,
    WhenExhausted,
)

OVERFLOW: Final = "what the player has read has outgrown the context of the engine; use a larger one, or a shorter game"
EMPTY: Final = "there was nothing outside your thoughts"
_DETAIL_CHARS_MAX: Final = 200
_MARKER: Final = re.compile(r"<(?=[/|｜]?[A-Za-z_|｜])|(?<=[|｜])>")
"""What begins or ends a tag: chat templates and private thoughts are written in them, moves of games are not."""
_BRACKETED: Final = re.compile(r"\[(/?(?:INST|SYS|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|gMASK|sop))\]")


class GameConversation:
    """One game from its first move to its end, or to `moves_max`."""

    def __init__(
        self,
        game: Game,
        task: Task,
        *,
        kind: str,
        name: str,
        moves_max: int,
        corrections_max: int,
        when_exhausted: WhenExhausted,
    ) -> None:
        self._game = game
        self._agents = task.agents
        self._kind = kind
        self._name = name
        self._moves_max = moves_max
        self._corrections_max = corrections_max
        self._when_exhausted = when_exhausted
        self._round = 0
        self._refusals: list[str] = []
        self._is_silent = False
        self._invalid = dict.fromkeys(range(len(task.agents)), 0)
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
        agent = self._agents[asked.player]
        return (
            Turn(
                round=self._round,
                agent=agent.agent_id,
                model=agent.model,
                place=asked.player,
                attempt=len(self._refusals),
            ),
        )

    def prompt(self, turn: Turn) -> Prompt:
        """The rules, and what the player has read or sees."""
        asked = self._asked()
        text = asked.text
        if self._is_silent:
            text = f"{text}\n\nYour last reply could not be used: {EMPTY}. Try again."
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

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Make the move; ask again, or let the default happen, where there is none in the reply."""
        if reply.finish_reason is FinishReason.OVERFLOW:
            return Receipt(kind=ReceiptKind.FAILURE, detail=OVERFLOW)
        player = self._asked().player
        may_correct = len(self._refusals) < self._corrections_max
        said = _words(reply.text)
        if said is None and may_correct:
            self._is_silent = True
            self._refusals.append(EMPTY)
            self._digest.update(b"\x1fempty")
            return Receipt(kind=ReceiptKind.CORRECTION, detail=EMPTY, cause="empty")
        move = self._game.play_default() if said is None else self._game.play(said, may_correct=may_correct)
        refusal, cause = (EMPTY, "empty") if said is None else (move.refusal, "invalid_move")
        self._digest.update(json.dumps([player, said, list(move)]).encode("ascii"))
        if refusal is None:
            self._next_round(turn)
            return Receipt(kind=ReceiptKind.ACT, detail=move.detail[:_DETAIL_CHARS_MAX])
        if move.is_asked_again and said is not None:
            self._is_silent = False
            self._refusals.append(refusal)
            self._invalid[player] += 1
            self._take_in(turn)
            return Receipt(kind=ReceiptKind.CORRECTION, detail=refusal, cause=cause)
        receipt = exhausted(turn, self._when_exhausted, default=move.detail, reason=refusal, cause=cause)
        if receipt.kind is not ReceiptKind.FAILURE:
            self._invalid[player] += 1
            self._next_round(turn)
        return receipt

    def record(self) -> JsonObject:
        """Who took part as which player, and what players were shown."""
        return {
            "game": self._name,
            "participants": [
                {"agent": agent.agent_id, "definition": agent.definition, "player": player}
                for player, agent in enumerate(self._agents)
            ],
            "events": [dict(event) for event in self._events],
        }

    def fingerprint(self) -> str:
        """Digest of all replies and of all that players were shown."""
        digest = self._digest.copy()
        asked = self._game.asked
        state = [self._round, self._refusals, self._is_silent, None if asked is None else list(asked), self._outcome]
        digest.update(json.dumps(state).encode("ascii"))
        return digest.hexdigest()

    def _asked(self) -> Asked:
        asked = self._game.asked
        assert asked is not None, "a turn of a game that has ended"
        return asked

    def _next_round(self, turn: Turn) -> None:
        self._round += 1
        self._refusals = []
        self._is_silent = False
        self._take_in(turn)

    def _take_in(self, turn: Turn | None = None) -> None:
        """What players were shown after a turn becomes events; a game that has ended gets its outcome."""
        for heard in self._game.heard():
            self._events.append(self._event(heard, turn))
            self._digest.update(json.dumps([heard.text, sorted(heard.players), heard.sender]).encode("ascii"))
        if self._game.asked is None or self._round >= self._moves_max:
            self._outcome = self._ended()

    def _event(self, heard: Heard, turn: Turn | None) -> JsonObject:
        everyone = len(heard.players) == len(self._agents)
        audience: JsonValue = "all" if everyone else [self._agents[player].agent_id for player in sorted(heard.players)]
        said_by = None if heard.sender is None else self._agents[heard.sender].agent_id
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
        is_decided = best > min(rewards.values(), default=0.0) if len(self._agents) > 1 else best >= 1
        won = {player: is_decided and rewards.get(player) == best for player in range(len(self._agents))}
        outcome: JsonObject = {
            "kind": self._kind,
            "game": self._name,
            "winners": [self._agents[player].agent_id for player, has_won in won.items() if has_won],
            "reason": result.reason,
            "moves": self._round,
            "is_cut_short": self._game.asked is not None,
            **result.more,
            "rewards": self._named(rewards),
            "won": self._named(won),
            "invalid_moves": self._named(self._invalid),
        }
        outcome.update({name: self._named(values) for name, values in result.by_player.items()})
        return outcome

    def _named(
        self, values: dict[int, bool] | dict[int, int] | dict[int, float] | dict[int, bool | int | float | str]
    ) -> JsonObject:
        return {self._agents[player].agent_id: value for player, value in values.items()}


def _words(text: str) -> str | None:
    """What a reply says beside private thoughts, without what a chat template could take for its own; None: nothing."""
    said = after_thoughts(text[:REPLY_CHARS_MAX].strip()).strip()
    if not said or opens_thought(said):
        return None
    plain = "".join(char for char in said if char in "\n\t" or char.isprintable())
    return _BRACKETED.sub(r"(\1)", _MARKER.sub("‹", plain)).strip() or None
