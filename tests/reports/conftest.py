"""Index rows as the store writes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mac_runner.types import JsonObject, JsonValue

MakePlayer = Callable[..., JsonObject]
MakeRow = Callable[..., JsonObject]


@pytest.fixture
def make_player() -> MakePlayer:
    def make(role: str, faction: str, *, won: bool, definition: str = "hero", model: str = "m1") -> JsonObject:
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

    return make


@pytest.fixture
def make_row() -> MakeRow:
    def make(
        index: int,
        *,
        failure: str | None = None,
        players: list[JsonObject] | None = None,
        winners: tuple[str, ...] = (),
        ending: str = "win",
        days: int = 5,
    ) -> JsonObject:
        listed: list[JsonValue] = [*(players or [])]
        game: JsonObject = {
            "kind": "game",
            "ending": ending,
            "reason": "",
            "winners": list(winners),
            "days": days,
            "players": listed,
        }
        return {
            "task_id": f"task-{index:03}",
            "index": index,
            "status": "finished" if failure is None else "failed",
            "failure": failure,
            "transcript": f"transcripts/task-{index:03}.json",
            "sha256": "0" * 64,
            "size_bytes": 1000,
            "counts": {
                "turns": 10,
                "corrections": 2,
                "defaults": 1,
                "tokens": {"prompt": 100, "completion": 20, "timing": {"cached": 50}},
            },
            "outcome": game if failure is None and players is not None else None,
            "timing": {"wall_s": 1.5},
        }

    return make
