"""What follows a death: promotions, conversions, hauntings, goals met, the end of the game."""

from __future__ import annotations

import pytest

from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.rules import IllegalActError
from mac_runner.environments.town_of_salem.game.state import Options, Phase
from mac_runner.environments.town_of_salem.game.victory import check, has_won
from tests.environments.town_of_salem.table import ELEVEN, Table, Who

CLASSIC = ELEVEN[:10]


def test_mafioso_takes_a_dead_godfathers_place_and_then_looks_innocent() -> None:
    table = Table(CLASSIC)
    table.night(day=1)
    table.lynch("godfather")
    table.night({"sheriff": ("interrogate", "mafioso")})

    assert table.player("mafioso").role == "godfather"
    assert table.told("mafioso", EventKind.CONVERTED) == [{"role": "Godfather"}]
    changed = [{"player": table.name("mafioso"), "role": "Godfather"}]
    assert table.told("framer", EventKind.TEAM_CHANGED) == changed
    assert table.told("sheriff", EventKind.TEAM_CHANGED) == []
    assert table.findings("sheriff") == ["not suspicious"]


def test_another_member_becomes_mafioso_when_both_killers_are_dead() -> None:
    table = Table((*CLASSIC, "framer"))
    table.night(day=1)
    table.bury("mafioso")
    table.lynch("godfather")

    roles = sorted((table.player("framer").role, table.player("framer 2").role))
    assert roles == ["framer", "mafioso"]


def test_new_mafioso_does_not_become_godfather_without_another_death_of_one() -> None:
    table = Table(("sheriff", "doctor", "escort", "medium", "godfather", "framer"))
    table.night(day=1)
    table.lynch("godfather")
    for _ in range(2):
        table.night()

    assert table.player("framer").role == "mafioso"


def test_mafioso_of_a_game_without_a_godfather_stays_one() -> None:
    table = Table(("sheriff", "doctor", "escort", "medium", "mafioso"))
    table.night(day=1)
    table.night()

    assert table.player("mafioso").role == "mafioso"


def test_last_of_the_mafia_to_be_promoted_is_announced_to_nobody() -> None:
    table = Table(("sheriff", "doctor", "escort", "medium", "godfather", "mafioso"))
    table.night(day=1)
    table.lynch("godfather")

    assert table.told("mafioso", EventKind.CONVERTED) == [{"role": "Godfather"}]
    assert all(event.audience != frozenset() for event in table.events)


def test_promoted_player_loses_the_old_ability() -> None:
    table = Table(("sheriff", "doctor", "escort", "medium", "godfather", "framer"))
    table.night(day=1)
    table.lynch("godfather")
    table.go_to(Phase.NIGHT)

    with pytest.raises(IllegalActError, match="cannot be chosen"):
        table.act("framer", "frame", "sheriff")
    table.act("framer", "kill", "sheriff")


def executioner_after(quarry: str) -> Table:
    """A game whose Executioner wants `quarry`; the list leaves him no other choice."""
    return Table(("executioner", quarry, "jailor", "godfather", "mafioso", "jester"))


def test_executioner_whose_quarry_is_lynched_has_won_and_the_game_goes_on() -> None:
    table = executioner_after("sheriff")
    table.night(day=1)
    table.lynch("sheriff")

    assert table.told("executioner", EventKind.QUARRY) == [{"target": table.name("sheriff")}]
    assert table.player("executioner").has_met_goal
    assert table.told("executioner", EventKind.GOAL_MET) == [{}]
    assert table.state.result is None


def test_executioner_keeps_the_win_when_he_dies_later() -> None:
    table = executioner_after("sheriff")
    table.night(day=1)
    table.lynch("sheriff")
    table.night()
    table.lynch("executioner")

    assert has_won(table.state, table.player("executioner"))


def test_dead_executioner_wins_nothing_by_a_later_lynch() -> None:
    table = executioner_after("sheriff")
    table.night(day=1)
    table.lynch("executioner")
    table.night()
    table.lynch("sheriff")

    assert not table.player("executioner").has_met_goal


def test_executioner_whose_quarry_is_killed_becomes_a_jester_without_defence() -> None:
    table = executioner_after("sheriff")
    table.night({"mafioso": ("kill", "sheriff")})

    assert table.player("executioner").role == "jester"
    assert table.player("executioner").quarry is None
    assert table.told("executioner", EventKind.CONVERTED) == [{"role": "Jester"}]

    table.night({"mafioso": ("kill", "executioner")})
    assert not table.is_alive("executioner")


def test_converted_executioner_wins_as_a_jester_does() -> None:
    table = executioner_after("sheriff")
    table.night({"mafioso": ("kill", "sheriff")})
    table.lynch("executioner")

    assert table.player("executioner").has_met_goal
    assert table.told("executioner", EventKind.HAUNT_OFFERED)


def test_executioner_without_possible_quarry_starts_as_a_jester() -> None:
    table = Table(("executioner", "jailor", "godfather"))

    assert table.player("executioner").role == "jester"
    assert table.told("executioner", EventKind.ROLE_CARD) == [{"role": "Jester"}]


@pytest.mark.parametrize("seed", range(12))
def test_executioners_quarry_is_of_the_town_and_never_the_jailor(seed: int) -> None:
    table = Table(CLASSIC, seed=seed)

    quarry = table.player("executioner").quarry
    assert quarry is not None
    assert table.player(quarry).faction == "town"
    assert table.player(quarry).role != "jailor"


JESTERS = ("sheriff", "doctor", "medium", "escort", "godfather", "jester", "investigator")


def test_lynched_jester_has_won_and_haunts_through_a_heal() -> None:
    table = Table(JESTERS)
    table.night(day=1)
    table.lynch("jester")
    table.night({"jester": ("haunt", "sheriff"), "doctor": ("heal", "sheriff")})

    assert table.player("jester").has_met_goal
    assert not table.is_alive("sheriff")
    assert table.shown(EventKind.DEATH)[-1]["causes"] == ["jester"]
    assert table.state.result is None


def test_haunting_is_offered_among_those_who_did_not_say_innocent() -> None:
    table = Table(JESTERS)
    table.night(day=1)
    table.lynch("jester", {"sheriff": "innocent", "doctor": "abstain"})

    others = [table.name(role) for role in ("doctor", "medium", "escort", "godfather", "investigator")]
    assert table.told("jester", EventKind.HAUNT_OFFERED) == [{"candidates": others}]
    table.go_to(Phase.NIGHT)
    with pytest.raises(IllegalActError, match="must name one of"):
        table.act("jester", "haunt", "sheriff")
    table.act("jester", "haunt", "doctor")


def test_haunt_pool_may_be_the_guilty_alone() -> None:
    table = Table(JESTERS, options=Options(haunt_pool="guilty"))
    table.night(day=1)
    table.lynch("jester", {"sheriff": "innocent", "doctor": "abstain"})

    others = [table.name(role) for role in ("medium", "escort", "godfather", "investigator")]
    assert table.told("jester", EventKind.HAUNT_OFFERED) == [{"candidates": others}]


@pytest.mark.parametrize("seed", range(12))
def test_jester_who_chooses_nobody_takes_one_who_voted_guilty(seed: int) -> None:
    table = Table(JESTERS, seed=seed)
    table.night(day=1)
    silent: dict[Who, str] = dict.fromkeys(("doctor", "sheriff", "godfather", "investigator"), "abstain")
    table.lynch("jester", silent)
    table.night()

    last = table.shown(EventKind.DEATH)[-1]
    assert last["causes"] == ["jester"]
    assert last["player"] in (table.name("medium"), table.name("escort"))


def test_haunting_reaches_into_the_jail_and_is_over_after_one_night() -> None:
    table = Table((*JESTERS, "jailor"))
    table.night(day=1)
    table.act("jailor", "jail", "sheriff")
    table.lynch("jester")
    table.night({"jester": ("haunt", "sheriff")})

    assert not table.is_alive("sheriff")
    table.go_to(Phase.NIGHT)
    assert table.seat("jester") not in table.state.order


def test_town_wins_when_the_last_of_the_mafia_is_dead_whatever_jesters_live() -> None:
    table = Table(("sheriff", "doctor", "jester", "godfather"))
    table.night(day=1)
    table.lynch("godfather")

    assert table.state.phase is Phase.OVER
    assert table.state.result is not None
    assert table.state.result.winners == ("town",)
    assert [has_won(table.state, player) for player in table.state.players] == [True, True, False, False]


def test_mafia_wins_when_the_last_of_the_town_is_dead() -> None:
    table = Table(("sheriff", "doctor", "executioner", "godfather"))
    table.bury("doctor")
    table.night({"godfather": ("kill", "sheriff")})

    assert table.state.result is not None
    assert table.state.result.winners == ("mafia",)


def test_one_of_the_mafia_and_one_of_the_town_play_on() -> None:
    table = Table(("sheriff", "doctor", "medium", "godfather"))
    table.bury("doctor")
    table.night({"godfather": ("kill", "medium")})

    assert len(table.state.living) == 2
    assert table.state.result is None


def test_mafia_parity_ends_the_game_early_when_it_is_asked_for() -> None:
    table = Table(("sheriff", "doctor", "medium", "godfather"), options=Options(mafia_parity=True))
    table.bury("doctor")
    table.night({"godfather": ("kill", "medium")})

    assert table.state.result is not None
    assert table.state.result.winners == ("mafia",)


@pytest.mark.parametrize("member", ["godfather", "mafioso", "framer"])
def test_escort_alone_with_one_of_the_mafia_is_given_to_the_mafia(member: str) -> None:
    table = Table(("escort", member, "doctor"))
    assert check(table.state) is None

    table.bury("doctor")
    result = check(table.state)
    assert result is not None
    assert (result.ending, result.winners) == ("win", ("mafia",))


def test_only_neutrals_left_is_a_draw() -> None:
    table = Table(("sheriff", "jester", "godfather", "executioner"))
    table.bury("sheriff", "godfather")

    result = check(table.state)
    assert result is not None
    assert result.ending == "draw"


def test_two_quiet_days_and_nights_after_the_seventh_day_are_a_draw() -> None:
    table = Table(CLASSIC)
    while table.state.result is None:
        table.end_round()

    assert table.state.day == 9
    assert table.state.result.ending == "draw"


def test_death_breaks_the_quiet() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.NIGHT, day=8)
    table.night({"mafioso": ("kill", "sheriff")})
    assert table.state.quiet_cycles == 0

    table.night()
    table.lynch("escort")
    table.night()
    assert table.state.quiet_cycles == 0
    while table.state.result is None:
        table.end_round()
    assert table.state.day == 13


def test_game_is_stopped_after_the_last_day_it_may_have() -> None:
    table = Table(CLASSIC, options=Options(max_days=3))
    while table.state.result is None:
        table.end_round()

    assert table.state.day == 4
    assert table.state.result.ending == "capped"
    assert table.state.result.winners == ()


def test_finished_game_takes_no_more_moves() -> None:
    table = Table(("sheriff", "doctor", "jester", "godfather"))
    table.night(day=1)
    table.lynch("godfather")

    with pytest.raises(IllegalActError):
        table.act("sheriff", "wait")
