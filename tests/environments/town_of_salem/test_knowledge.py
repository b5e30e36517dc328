"""Nobody learns what they may not know.

Every private word of a game carries a marker, and `entitlement` says by rules of its own, not by the audiences of the
code under test, who may see it and who may be told what. Every prompt of every turn is searched (`watch`), in its words
and in its view.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from mac_runner.environments.town_of_salem.testing import POLICIES, ROLES, EventKind, Faction, view_of
from tests.environments.town_of_salem.entitlement import MAY_BE_TOLD
from tests.environments.town_of_salem.facts import ALL_ROLES
from tests.environments.town_of_salem.table import ELEVEN, EVENT_KINDS, open_game
from tests.environments.town_of_salem.watch import watch_game
from tests.faults.tier import SCALE
from tests.tiers import first

GAMES = 120 * SCALE


class Met(NamedTuple):
    """Roles dealt, notices told, kinds of words read, and those who read them in another's place."""

    roles: set[str]
    notices: set[str]
    words: set[str]
    ears: set[tuple[str, str]]


@pytest.mark.parametrize("games", first(1, (6, GAMES)))
def test_no_seat_is_shown_what_it_may_not_know(games: int) -> None:
    """By day games are played until everything private was there to be found, at a larger scale all of them."""
    missing = Met({*ALL_ROLES}, set(EVENT_KINDS) - RARE, {*WORDS}, {*EARS})
    for number in range(games):
        watch = watch_game(number)
        kinds = {kind for kind, _ in watch.met}
        assert "thought" not in kinds
        dealt = {player.dealt for player in watch.game.state.players}
        missing = Met(
            missing.roles - dealt, missing.notices - watch.told, missing.words - kinds, missing.ears - watch.met
        )
        if not any(missing) and SCALE == 1:
            break

    assert not any(missing) or games < GAMES, f"no table of `watch.py` deals or tells {missing}"


RARE = {
    *(EventKind.BLACKMAILED_ON_STAND, "haunt_offered", "goal_met", "failed", "cleaned"),
    *("executions_lost", EventKind.REMEMBERED, "block_failed"),
    *("bugged", "doused", EventKind.REVIVED, EventKind.TEAM_JOINED),
}
"""Notices that a hundred games played at random need not hold."""
WORDS = {
    *("speak", "whisper", "will", "death_note", "notes", "forge"),
    *("mafia chat", "vampire chat", "jail chat", "dead chat", "seance chat"),
}
EARS = {
    *(("whisper", "blackmailer"), ("whisper", "spy"), ("mafia chat", "spy"), ("vampire chat", "vampire hunter")),
    *(("dead chat", "medium"), ("jail chat", "jailor")),
}


def test_every_role_and_every_private_notice_has_its_rule() -> None:
    """A notice nobody has thought about cannot go out: the table is complete."""
    assert set(ROLES) == ALL_ROLES, "`facts.py` says which roles there are"
    public = [*EventKind][: [*EventKind].index(EventKind.ROLE_CARD)]

    assert set(MAY_BE_TOLD) == set(EVENT_KINDS) - set(public), "`entitlement.py` says who may be told a notice"


def test_view_tells_the_mafia_its_living_team_and_nobody_else_anything() -> None:
    game = open_game(ELEVEN)
    for player in game.state.players:
        view = view_of(game.state, game.log, player.seat)
        team = {"Godfather", "Framer", "Mafioso"} if player.faction is Faction.MAFIA else set()
        assert set(view.team.values()) == team
        assert view.role.id == player.role
        assert (view.quarry is not None) == (player.role == "executioner")


def test_views_of_two_games_differ_only_in_what_the_seat_may_know() -> None:
    """Two games that differ in the roles of others look the same to a townsman, and to every scripted one."""
    one = open_game(("sheriff", "doctor", "escort", "godfather", "jester"))
    other = open_game(("sheriff", "jester", "godfather", "escort", "doctor"))

    turn = next(turn for turn in one.turns() if turn.agent == one.state.players[0].name)
    assert one.prompt(turn).messages == other.prompt(turn).messages
    assert one.prompt(turn).view == other.prompt(turn).view
    for name, policy in POLICIES.items():
        assert policy(one.prompt(turn).view, Random(4)) == policy(other.prompt(turn).view, Random(4)), name
