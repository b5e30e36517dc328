"""Roles, and lists of them: the named ones and those a user writes; no code outside the roles names a role."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mac_runner.environments import town_of_salem
from mac_runner.environments.town_of_salem.testing import (
    LOBBIES,
    NAMES,
    ROLES,
    EventKind,
    Faction,
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
    *("lookout", "serial killer", "classic town killing", "jester", "classic random town"),
)


def test_catalogue_has_the_roles_and_the_lists_of_the_base_game() -> None:
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
    assert {n: LOBBIES[f"classic-{n}"] for n in range(7, 16)} == {n: OFFICIAL[:n] for n in range(7, 16)}
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


def test_lists_hold_what_they_may_over_time_and_somebody_is_always_opposed() -> None:
    classic = {role for seed in range(300) for role in deal(LOBBIES["classic-15"], seed)}
    assert "vampire hunter" not in classic
    assert {"veteran", "vigilante", "mayor", "spy"} <= classic
    dealt = [deal(("any",) * 8, seed) for seed in range(300)]
    assert all(len({ROLES[role].group for role in roles} - {None}) > 1 for roles in dealt)
    assert {role for roles in dealt for role in roles} == set(ROLES)


def test_slots_are_public_and_what_became_of_them_is_not() -> None:
    slots = LOBBIES["ranked-15"]
    state, opening = new_game(seed=3, names=NAMES[:15], roles=deal(slots, 3), lobby=slots, options=Options())
    start = next(event for event in opening if event.kind is EventKind.GAME_START)

    assert state.lobby == slots
    assert start.data["lobby"] == list(slots)
    # The roles that players may turn into are in play.
    in_play = {role.id for role in roles_in_play(("executioner", "framer", "vampire hunter"))}
    assert in_play == {"executioner", "jester", "framer", "mafioso", "godfather", "vampire hunter", "vigilante"}


UNPLAYABLE: list[tuple[str | list[str], str]] = [
    ("classic-99", "there are: classic-7"),
    (["sheriff", "wizard", "godfather"], "unknown roles: wizard"),
    (["jailor", "jailor", "godfather"], "one at most of: jailor"),
    (["sheriff", "godfather"], "3 to 20 players"),
    (["sheriff"] * 20 + ["godfather"], "3 to 20 players"),
    (["sheriff", "doctor", "jester"], "nobody opposes anybody"),
    (["town support", "random-town", "doctor"], "nobody opposes anybody"),
    (["sheriff", "mafia killing", "mafia killing", "mafioso"], "more unique roles than there are"),
    (["sheriff", "random wizard", "godfather"], "slots filled by lot: any"),
]


def test_list_that_cannot_be_played_is_refused_with_the_reason_and_others_taken_however_they_are_spelt() -> None:
    for lobby, why in UNPLAYABLE:
        with pytest.raises(ConfigError, match=why) as refusal:
            role_list(lobby)
        assert refusal.value.key == ("game", "lobby")
    assert role_list(["Sheriff", " DOCTOR", "godfather"]) == ("sheriff", "doctor", "godfather")


def test_roles_say_what_they_are_and_no_name_is_part_of_another_or_of_a_role() -> None:
    words = [*NAMES, *(role.name for role in ROLES.values()), "Medium", "Jailor"]
    for name in NAMES:
        assert [word for word in words if name.casefold() in word.casefold()] == [name]
    for key, role in ROLES.items():
        assert role.id == key
        assert role.card_text(tuple(ROLES.values()), Options()).endswith("."), key
        assert role.goal.endswith("."), key


PACKAGE = Path(town_of_salem.__file__).parent
RULEBOOK = {"rules/lobbies.py", "seat/texts.py"}
"""The line-ups of the named lobbies, and the sentences that players read: data, which decides nothing."""
ROLE_NAMES = {role.name for role in ROLES.values()} - {faction.title() for faction in Faction}
"""The Vampires are a faction too, and factions may be named."""
NAME = re.compile(rf"\b(?:{'|'.join(re.escape(name).replace(chr(92) + ' ', '[ _]') for name in ROLE_NAMES)})s?\b", re.I)


def strings(tree: ast.Module) -> Iterator[str]:
    """The literals of a module but for its docstrings, and the names that it imports."""
    documented = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented:
            yield node.value
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield " ".join((getattr(node, "module", None) or "", *(alias.name for alias in node.names)))


def test_no_code_outside_the_roles_names_a_role() -> None:
    found = {
        (name, role.lower())
        for path in sorted(PACKAGE.rglob("*.py"))
        if (name := path.relative_to(PACKAGE).as_posix()) not in RULEBOOK and not name.startswith("roles/")
        for text in strings(ast.parse(path.read_text(encoding="utf-8")))
        for role in NAME.findall(text)
    }

    assert not found


def test_names_of_roles_are_found_in_literals_and_imports() -> None:
    code = """
from mac_runner.environments.town_of_salem.roles.serial_killer import ROLE
def lie():
    'Sheriff'
    return {'Jailor': 'vampire hunter'}.get('doctored')
"""
    named = {role.lower() for text in strings(ast.parse(code)) for role in NAME.findall(text)}

    assert named == {"serial_killer", "jailor", "vampire hunter"}
