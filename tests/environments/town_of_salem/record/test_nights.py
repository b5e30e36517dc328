"""The trace of a night says what was chosen, what came between, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mac_runner.environments.town_of_salem.testing import Phase, night_row, play_out, resolve
from mac_runner.types import JsonObject
from tests.environments.town_of_salem.table import Table, Who

CROWD = ("sheriff", "doctor", "investigator", "mafioso", "godfather")


def objects(value: object) -> list[JsonObject]:
    assert isinstance(value, list)
    return [item for item in value if isinstance(item, dict)]


def trace(table: Table, deeds: Mapping[str, tuple[str, *tuple[Who, ...]]]) -> JsonObject:
    """The trace of the coming night with these deeds."""
    table.go_to(Phase.NIGHT)
    for who, (verb, *targets) in deeds.items():
        table.act(who, verb, *targets)
    return night_row(table.state, play_out(table.state))


def test_night_tells_deeds_visits_and_findings() -> None:
    table = Table(CROWD)
    told = trace(table, {"sheriff": ("interrogate", "mafioso")})
    sheriff, mafioso = table.name("sheriff"), table.name("mafioso")

    assert told["day"] == 1
    assert told["jail"] is None
    assert told["deeds"] == [{"player": sheriff, "role": "Sheriff", "act": "interrogate", "targets": [mafioso]}]
    assert told["visits"] == [{"visitor": sheriff, "house": mafioso}]
    assert told["findings"] == [
        {"player": sheriff, "kind": "result", "data": {"about": mafioso, "finding": "suspicious"}}
    ]
    assert told["deaths"] == []


@pytest.mark.parametrize(
    ("deeds", "defence", "outcome"),
    [
        ({}, "none", "killed"),
        ({"doctor": ("heal", "sheriff")}, "powerful", "survived"),
    ],
)
def test_attack_is_told_with_the_defence_it_met_and_what_came_of_it(
    deeds: dict[str, tuple[str, *tuple[Who, ...]]], defence: str, outcome: str
) -> None:
    table = Table(CROWD)
    told = trace(table, {**deeds, "mafioso": ("kill", "sheriff")})

    assert told["attacks"] == [
        {
            "attacker": table.name("mafioso"),
            "victim": table.name("sheriff"),
            "cause": "mafia",
            "strength": "basic",
            "defence": defence,
            "outcome": outcome,
        }
    ]
    healed = [{"how": "healed", "player": table.name("sheriff"), "by": table.name("doctor")}] if deeds else []
    assert told["protections"] == healed
    assert told["deaths"] == ([] if healed else [table.name("sheriff")])


def test_blocked_controlled_and_moved_are_told_with_who_did_it() -> None:
    table = Table(("escort", "witch", "transporter", *CROWD))
    deeds: dict[str, tuple[str, *tuple[Who, ...]]] = {
        "escort": ("block", "doctor"),
        "witch": ("control", "investigator", "godfather"),
        "transporter": ("swap", "sheriff", "mafioso"),
        "doctor": ("heal", "sheriff"),
        "investigator": ("investigate", "doctor"),
    }
    told = trace(table, deeds)
    name = table.name

    keys = ("how", "players", "by", "was", "now")
    assert [tuple(change[key] for key in keys) for change in objects(told["changes"])] == [
        ("moved", [name("sheriff"), name("mafioso")], name("transporter"), None, None),
        (
            *("controlled", [name("investigator")], name("witch")),
            {"act": "investigate", "targets": [name("doctor")]},
            {"act": "investigate", "targets": [name("godfather")]},
        ),
        ("blocked", [name("doctor")], name("escort"), {"act": "heal", "targets": [name("sheriff")]}, None),
    ]


def test_order_of_the_godfather_is_told_as_what_the_mafioso_did() -> None:
    table = Table(CROWD)
    told = trace(table, {"godfather": ("kill", "sheriff"), "mafioso": ("kill", "doctor")})

    (hand, boss) = objects(told["changes"])
    assert ("sent by" in str(hand["how"]), hand["players"]) == (True, [table.name("mafioso")])
    assert hand["now"] == {"act": "kill", "targets": [table.name("sheriff")]}
    assert (boss["how"], boss["players"], boss["now"]) == ("left to another", [table.name("godfather")], None)


def test_jail_keeps_its_prisoner_and_those_who_come_for_them_out() -> None:
    table = Table(("jailor", *CROWD))
    table.go_to(Phase.GREETING)
    table.act("jailor", "jail", "sheriff")
    told = trace(table, {"doctor": ("heal", "sheriff"), "mafioso": ("kill", "sheriff")})

    assert told["jail"] == {"jailor": table.name("jailor"), "prisoner": table.name("sheriff")}
    assert [change["how"] for change in objects(told["changes"])] == ["jailed"] + ["target in jail"] * 2


def test_bodyguard_who_steps_in_is_told_as_three_attacks() -> None:
    table = Table(("bodyguard", *CROWD))
    told = trace(table, {"bodyguard": ("guard", "sheriff"), "mafioso": ("kill", "sheriff")})
    outcomes = sorted(str(attack["outcome"]).removesuffix(" by a Bodyguard") for attack in objects(told["attacks"]))

    assert outcomes == ["killed", "killed", "met"]


def test_defence_of_a_witch_is_told_as_it_was_when_the_attack_came() -> None:
    """Her shield is spent by the attack, in whichever way that ends."""
    table = Table(("witch", "veteran", *CROWD))
    told = trace(table, {"witch": ("control", "veteran", "sheriff"), "veteran": ("alert",)})
    (attack,) = objects(told["attacks"])

    assert (attack["victim"], attack["defence"], attack["outcome"]) == (table.name("witch"), "basic", "killed")


def test_bitten_player_is_told_as_turned_and_a_framed_one_as_framed() -> None:
    table = Table(("vampire", "framer", *CROWD))
    told = trace(table, {"vampire": ("bite", "doctor"), "framer": ("frame", "sheriff")})
    (attack,) = objects(told["attacks"])

    assert attack["outcome"] == "turned"
    assert told["marks"] == [
        {"player": table.name("sheriff"), "mark": "framed"},
        {"player": table.name("doctor"), "mark": "bitten"},
    ]
    assert told["deaths"] == []


def test_playing_a_night_for_its_trace_changes_nothing() -> None:
    table = Table(("escort", *CROWD))
    trace(table, {"escort": ("block", "doctor"), "doctor": ("heal", "sheriff"), "mafioso": ("kill", "sheriff")})
    before = resolve(table.state)
    night_row(table.state, play_out(table.state))

    assert resolve(table.state) == before


def test_guilt_is_told_of_the_night_it_kills_and_of_no_later_one() -> None:
    table = Table(("vigilante", "jester", "escort", *CROWD))
    table.night(day=1)
    table.night({"vigilante": ("shoot", "escort")}, day=2)
    guilt = trace(table, {})
    table.end_round()
    later = trace(table, {})

    assert [attack["cause"] for attack in objects(guilt["attacks"])] == ["guilt"]
    assert guilt["deaths"] == [table.name("vigilante")]
    assert (guilt["day"], later["day"]) == (3, 4)
    assert later["attacks"] == []
