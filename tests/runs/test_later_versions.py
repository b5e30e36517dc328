"""What a later version adds leaves recorded games as they are: what is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mac_runner.clock import SystemClock
from mac_runner.environments.town_of_salem.record import game_record
from mac_runner.runs.testing import repair_all, verify_all
from mac_runner.types import JsonObject
from tests.kit import played

INVESTIGATED = ("investigator", "investigator", "sheriff", "doctor", "godfather", "mafioso", "jester")


def games(lobby: Sequence[str], *, conversations: int = 2) -> JsonObject:
    """Short games of scripted players, with all that tells of roles."""
    return {
        "experiment_metadata": {"experiment_name": "games"},
        "conversation_config": {"environment": "town_of_salem", "conversations": conversations},
        "game": {
            "lobby": [*lobby],
            "discussion": "brief",
            "calendar": {"max_days": 3},
            "tools": ["get_role", "get_attribute"],
        },
        "model_definitions": {
            name: {"backend": "scripted", "scripted_config": {"policy": name}} for name in ("heuristic", "random")
        },
        "agent_definitions": [{"agent_id": name, "role": "player", "model": name} for name in ("heuristic", "random")],
    }


@contextmanager
def silent(_title: str, _steps: int) -> Iterator[Any]:
    yield lambda: None


def findings(run: Path) -> list[str]:
    return [str(found) for verified in verify_all(run, silent) for found in verified.report.findings]


def test_a_measure_added_later_leaves_recorded_games_sound_and_lost_ones_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(games(INVESTIGATED), tmp_path / "run")
    lost = next((run / "transcripts").iterdir())
    before, measure = lost.read_bytes(), game_record.measure
    monkeypatch.setattr(game_record, "measure", lambda *seen: [row + Counter({"loaves": 1}) for row in measure(*seen)])
    assert findings(run) == []
    lost.unlink()
    assert [repaired.is_whole for repaired in repair_all(run, SystemClock())] == [True]
    assert lost.read_bytes() == before
    new = played(games(INVESTIGATED), tmp_path / "new")
    assert b"loaves" in (new / "transcripts" / lost.name).read_bytes()


def test_what_happened_in_a_game_is_compared_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = played(games(INVESTIGATED, conversations=1), tmp_path / "run")
    monkeypatch.setattr(game_record, "has_won", lambda _state, _player: True)
    assert ["different in outcome" in found for found in findings(run)] == [True]
