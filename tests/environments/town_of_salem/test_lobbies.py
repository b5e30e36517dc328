"""Role lists: the named ones and those a user writes."""

from __future__ import annotations

from collections import Counter

import pytest

from mac_runner.environments.town_of_salem.testing import (
    LOBBIES,
    NAMES,
    ROLES,
    EventKind,
    Options,
    deal,
    new_game,
    role_list,
    roles_in_play,
    roles_of,
)
from mac_runner.errors import ConfigError
from tests.environments.town_of_salem.table import ELEVEN

OFFICIAL = (
    *ELEVEN[:10],
    "lookout",
    "serial killer",
    "classic town killing",
    "jester",
    "classic random town",
)


@pytest.mark.parametrize("n", range(7, 16))
def test_classic_lists_are_the_first_entries_of_the_official_one(n: int) -> None:
    assert LOBBIES[f"classic-{n}"] == OFFICIAL[:n]


def test_catalogue_has_the_roles_of_the_base_game() -> None:
    by_alignment = Counter(role.alignment.value for role in ROLES.values())

    assert len(ROLES) == 33
    assert by_alignment == {
        "town investigative": 4,
        "town protective": 2,
        "town killing": 4,
        "town support": 5,
        "mafia killing": 2,
        "mafia deception": 4,
        "mafia support": 3,
        "neutral benign": 2,
        "neutral evil": 3,
        "neutral killing": 3,
        "neutral chaos": 1,
    }


def test_unique_roles_are_those_of_the_rules() -> None:
    unique = {role.id for role in ROLES.values() if role.is_unique}

    assert unique == {"jailor", "mayor", "veteran", "retributionist", "godfather", "mafioso", "werewolf"}


@pytest.mark.parametrize("lobby", LOBBIES)
def test_deals_fill_every_slot_with_what_it_may_hold_and_no_unique_role_twice(lobby: str) -> None:
    slots = LOBBIES[lobby]
    dealt: set[tuple[str, str]] = set()
    for seed in range(200):
        roles = deal(slots, seed)
        assert all(role in roles_of(slot) for role, slot in zip(roles, slots, strict=True))
        assert all(count == 1 for role, count in Counter(roles).items() if ROLES[role].is_unique)
        assert deal(slots, seed) == roles
        dealt.update(zip(slots, roles, strict=True))

    # Given time every slot is everything it may be, but for what others hold for good.
    fixed = {slot for slot in slots if slot in ROLES and ROLES[slot].is_unique}
    expected = {(slot, role) for slot in slots for role in roles_of(slot) if slot == role or role not in fixed}
    assert dealt == expected


def test_classic_random_slots_hold_no_vampire_hunter() -> None:
    drawn = {role for seed in range(300) for role in deal(LOBBIES["classic-15"], seed)}

    assert "vampire hunter" not in drawn
    assert {"veteran", "vigilante", "mayor", "spy"} <= drawn


def test_any_slot_may_be_any_role_and_somebody_is_always_opposed() -> None:
    drawn: set[str] = set()
    for seed in range(300):
        roles = deal(("any",) * 8, seed)
        assert len({ROLES[role].group for role in roles} - {None}) > 1
        drawn.update(roles)

    assert drawn == set(ROLES)


def test_slots_are_public_and_what_became_of_them_is_not() -> None:
    slots = LOBBIES["ranked-15"]
    state, opening = new_game(seed=3, names=NAMES[:15], roles=deal(slots, 3), lobby=slots, options=Options())
    start = next(event for event in opening if event.kind is EventKind.GAME_START)

    assert state.lobby == slots
    assert start.data["lobby"] == list(slots)


def test_roles_players_may_turn_into_are_in_play() -> None:
    in_play = {role.id for role in roles_in_play(("executioner", "framer", "vampire hunter"))}

    assert in_play == {"executioner", "jester", "framer", "mafioso", "godfather", "vampire hunter", "vigilante"}


def test_written_list_is_taken_however_its_roles_are_spelt() -> None:
    assert role_list(["Sheriff", " DOCTOR", "godfather"]) == ("sheriff", "doctor", "godfather")


@pytest.mark.parametrize(
    ("lobby", "why"),
    [
        ("classic-99", "there are: classic-7"),
        (["sheriff", "wizard", "godfather"], "unknown roles: wizard"),
        (["jailor", "jailor", "godfather"], "one at most of: jailor"),
        (["sheriff", "godfather"], "3 to 20 players"),
        (["sheriff"] * 20 + ["godfather"], "3 to 20 players"),
        (["sheriff", "doctor", "jester"], "nobody opposes anybody"),
        (["town support", "random-town", "doctor"], "nobody opposes anybody"),
        (["sheriff", "mafia killing", "mafia killing", "mafioso"], "more unique roles than there are"),
        (["sheriff", "random wizard", "godfather"], "slots filled by lot: any"),
    ],
)
def test_list_that_cannot_be_played_is_refused_with_the_reason(lobby: str | list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refusal:
        role_list(lobby)
    assert refusal.value.key == ("game", "lobby")


def test_no_name_is_part_of_another_or_of_a_role() -> None:
    words = [*NAMES, *(role.name for role in ROLES.values()), "Medium", "Jailor"]
    for name in NAMES:
        assert [word for word in words if name.casefold() in word.casefold()] == [name]


@pytest.mark.parametrize("role", ROLES)
def test_role_says_what_it_is(role: str) -> None:
    entry = ROLES[role]

    assert entry.id == role
    assert entry.card_text(tuple(ROLES.values()), Options()).endswith(".")
    assert entry.goal.endswith(".")
