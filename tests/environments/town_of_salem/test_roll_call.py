"""What the role list says of the claims."""

from __future__ import annotations

import pytest

from mac_runner.environments.town_of_salem.bots.beliefs import Room, chances_of_lie
from mac_runner.environments.town_of_salem.game.lobbies import LOBBIES


def test_claims_within_the_list_are_no_lies() -> None:
    room = Room(("sheriff", "doctor", "godfather"), known=())

    assert chances_of_lie(room, {"Abel": "Sheriff", "Beatrice": "Doctor"}) == {"Abel": 0.0, "Beatrice": 0.0}


def test_two_who_claim_the_one_slot_share_the_doubt() -> None:
    room = Room(("sheriff", "doctor", "godfather"), known=())

    assert chances_of_lie(room, {"Abel": "Sheriff", "Beatrice": "Sheriff"}) == {"Abel": 0.5, "Beatrice": 0.5}


def test_claim_to_a_role_that_is_known_to_be_filled_is_a_lie() -> None:
    room = Room(("sheriff", "doctor", "godfather"), known=("Sheriff",))

    assert chances_of_lie(room, {"Abel": "Sheriff"}) == {"Abel": 1.0}


def test_drawn_slot_has_room_for_one_claim_of_all_beyond_the_named_slots() -> None:
    room = Room(("sheriff", "doctor", "random town", "godfather"), known=())
    pair = {"Abel": "Sheriff", "Beatrice": "Sheriff"}

    assert chances_of_lie(room, pair) == {"Abel": 0.0, "Beatrice": 0.0}
    chances = chances_of_lie(room, {**pair, "Caleb": "Doctor", "Dorothea": "Doctor"})
    assert chances == dict.fromkeys(("Abel", "Beatrice", "Caleb", "Dorothea"), 0.25)


def test_drawn_slot_has_no_room_for_what_it_cannot_hold() -> None:
    room = Room(("sheriff", "town protective", "godfather"), known=())

    assert chances_of_lie(room, {"Abel": "Bodyguard", "Beatrice": "Escort"}) == {"Abel": 0.0, "Beatrice": 1.0}


def test_known_role_fills_a_drawn_slot_when_no_slot_names_it() -> None:
    room = Room(("sheriff", "random town", "godfather"), known=("Escort",))

    assert chances_of_lie(room, {"Abel": "Spy"}) == {"Abel": 1.0}


@pytest.mark.parametrize("lobby", LOBBIES)
def test_chances_add_up_to_the_claims_there_is_no_room_for(lobby: str) -> None:
    """However the claims fall: as many lies as claims beyond the room, each chance between none and certainty."""
    room = Room(LOBBIES[lobby], known=())
    claims = {f"{role} {number}": role for role in ("Sheriff", "Doctor", "Escort", "Mayor") for number in range(2)}
    chances = chances_of_lie(room, claims)

    assert all(0 <= chance <= 1 for chance in chances.values())
    assert sum(chances.values()) >= len(claims) - sum(room.named[role] for role in set(claims.values())) - len(
        room.drawn
    )
