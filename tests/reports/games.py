"""Games of Town of Salem as the index has them."""

from __future__ import annotations

from mac_runner.types import JsonObject, JsonValue
from tests.kit import index_row


def player(role: str, faction: str, *, won: bool, definition: str = "hero", model: str = "m1") -> JsonObject:
    """A player of an outcome."""
    return {
        "agent": role.title(),
        "definition": definition,
        "model": model,
        "seat": 0,
        "role": role,
        "final_role": role,
        "faction": faction,
        "won": won,
        "alive": won,
        "death": None,
    }


def game(
    index: int, players: list[JsonObject], *winners: str, ending: str = "win", days: int = 5, **more: JsonValue
) -> JsonObject:
    """The index row of a game."""
    outcome: JsonObject = {"kind": "game", "ending": ending, "reason": "", "days": days}
    return index_row(index, {**outcome, "winners": [*winners], "players": [*players]}) | more
