"""Each event of a game names the turn whose act made it; what the rules do by themselves is of no turn."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.bots import POLICIES
from tests.environments.town_of_salem.table import ELEVEN, open_game, play

MADE_BY_THE_RULES = {"game_start", "role_card", "day_start", "night_start", "voting_start", "death", "game_end"}


def test_what_a_player_did_is_of_its_turn_and_what_the_rules_do_of_none() -> None:
    game = open_game(ELEVEN, seed=5)
    answered = {record.turn.key: record.turn.agent for record in play(game, POLICIES["heuristic"], seed=5)}
    events = game.record()["events"]
    assert isinstance(events, list)
    kinds: set[str] = set()
    for event in events:
        assert isinstance(event, dict)
        data, kind, turn = event["data"], str(event["kind"]), event["turn"]
        assert isinstance(data, dict)
        kinds.add(kind)
        if kind in ("speech", "vote", "unvote"):
            assert answered[str(turn)] == data["player"]
        elif kind in MADE_BY_THE_RULES:
            assert turn is None, kind
        else:
            assert turn is None or turn in answered

    assert kinds >= {"speech", "vote", "death", "trial", "chat"}
