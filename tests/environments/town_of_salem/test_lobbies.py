"""Role lists: the named ones and those a user writes."""

from __future__ import annotations

import pytest

from mac_runner.environments.town_of_salem.lobbies import LOBBIES, NAMES, role_list
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.errors import ConfigError
from tests.environments.town_of_salem.table import ELEVEN


def test_classic_lists_are_the_first_entries_of_the_official_one() -> None:
    assert {name: list(roles) for name, roles in LOBBIES.items()} == {
        f"classic-{n}": list(ELEVEN[:n]) for n in (7, 8, 9, 10)
    }


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


@pytest.mark.parametrize("role", ELEVEN)
def test_role_says_what_it_is(role: str) -> None:
    entry = ROLES[role]

    assert entry.id == role
    assert entry.card.endswith(".")
    assert entry.goal.endswith(".")
