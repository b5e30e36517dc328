"""The truth about claims and trials in the record of a game."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mac_runner.environments.town_of_salem.claims import role_claims, trials
from mac_runner.environments.town_of_salem.events import EventKind, public
from mac_runner.environments.town_of_salem.players import POLICIES
from tests.environments.town_of_salem.table import ELEVEN, Table, open_game, play


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("I am the Sheriff.", ["true"]),
        ("I'm a Doctor", ["false"]),
        ("I am not the Doctor.", []),
        ("Am I the Sheriff?", []),
    ],
)
def test_role_claim_is_weighed_against_the_role_held(text: str, verdicts: list[str]) -> None:
    state = Table(ELEVEN).state
    said = public(state, EventKind.SPEECH, player=state.players[0].name, text=text)

    claims = role_claims([said], state.players)

    assert [claim["verdict"] for claim in claims if isinstance(claim, dict)] == verdicts


def test_role_claim_of_one_who_changed_roles_is_left_open() -> None:
    state = Table(ELEVEN).state
    said = public(state, EventKind.SPEECH, player=state.players[0].name, text="I am the Sheriff.")
    changed = (replace(state.players[0], dealt="amnesiac"), *state.players[1:])

    (claim,) = role_claims([said], changed)

    assert isinstance(claim, dict)
    assert claim["verdict"] == "undecidable"


def test_record_lists_trials_and_claims() -> None:
    game = open_game(ELEVEN, seed=5)
    play(game, POLICIES["heuristic"], seed=5)
    record = game.record()

    assert record["trials"] == trials(game.log.events)
    assert record["claims"] == role_claims(game.log.events, game.state.players)
    assert record["claims"]


def test_trial_is_told_with_its_ballots() -> None:
    state = Table(ELEVEN).state
    judged = public(state, EventKind.BALLOTS, guilty=["Abel"], innocent=[], abstain=["Elias"])
    verdict = public(state, EventKind.VERDICT, accused="Caleb", is_guilty=True)

    assert trials([judged, verdict]) == [
        {"day": 1, "accused": "Caleb", "guilty": ["Abel"], "innocent": [], "abstain": ["Elias"], "verdict": "guilty"}
    ]
