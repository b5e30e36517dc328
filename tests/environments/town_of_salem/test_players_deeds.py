"""What the heuristic player does in each role: nobody idles where acting is always better, nor acts where it is not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from mac_runner.environments.town_of_salem.testing import (
    POLICIES,
    ROLES,
    TARGET,
    Event,
    EventKind,
    GameLog,
    Phase,
    SeatView,
    accuse,
    claim,
    private,
    public,
    understand,
    view_of,
)
from tests.environments.town_of_salem.table import Table
from tests.environments.town_of_salem.test_nights import Case, listed
from tests.tiers import first

DEEDS: Mapping[str, list[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("deeds.yaml").read_text(encoding="utf-8")
)
COMPANY = ("sheriff", "doctor", "escort", "lookout", "godfather", "mafioso", "framer", "survivor", "vampire")

# What each role does every night in which it can, in a town where one of the Town's Sheriffs is dead.
NIGHTLY = {
    "sheriff": "interrogate",
    "investigator": "investigate",
    "lookout": "watch",
    "spy": "bug",
    "doctor": "heal",
    "bodyguard": "guard",
    "vampire hunter": "check",
    "escort": "block",
    "retributionist": "raise",
    "godfather": "kill",
    "mafioso": "kill",
    "framer": "frame",
    "janitor": "clean",
    "forger": "forge",
    "disguiser": "disguise",
    "blackmailer": "blackmail",
    "consigliere": "look_into",
    "consort": "block",
    "amnesiac": "remember",
    "witch": "control",
    "arsonist": "douse",
    "serial killer": "stab",
    "werewolf": "rampage",
    "vampire": "bite",
}
# Who acts at night only when there is a reason to, or has nothing to do at night.
WITH_REASON = {
    "jailor",
    "veteran",
    "vigilante",
    "mayor",
    "medium",
    "transporter",
    "survivor",
    "executioner",
    "jester",
}


def town_of(role: str) -> Table:
    """A table at which `role` sits first, with company of every kind and one dead Sheriff."""
    company = [other for other in COMPANY if other != role or not ROLES[role].is_unique]
    return Table((role, "sheriff", *company))


def deed(table: Table, *heard: Event, seat: int = 0, seed: int = 1) -> tuple[str, str]:
    """The verb and what it is aimed at that the heuristic player in a seat chooses after `heard`."""
    view = seen(table, *heard, seat=seat)
    reply = POLICIES["heuristic"](view, Random(seed))
    act = re.sub(r"<(thinking|will|death_note)>.*?</\1>", "", reply).strip()
    found = re.match(r'<(\w+)(?: to="(\w+)")?[^>]*?(?:/>|>(.*)</)', act)
    assert found is not None, reply
    return found[1], found[2] or found[3] or ""


def seen(table: Table, *heard: Event, seat: int = 0) -> SeatView:
    log = GameLog(len(table.state.players))
    log.append((*table.events, *heard))
    return view_of(table.state, log, seat, ("the card",))


def says(table: Table, who: str, text: str) -> Event:
    return public(table.state, EventKind.SPEECH, player=table.name(who), text=text)


def finds(table: Table, about: str, finding: str) -> Event:
    return private(table.state, EventKind.RESULT, (0,), about=table.name(about), finding=finding)


class Doing(Case):
    """A case of `deeds.yaml` at its table."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        seats = setup.get("seats") or ", ".join(player.dealt for player in town_of(setup["town"]).state.players)
        super().__init__({"seats": seats})
        self.heard: list[Event] = []

    def line(self, told: Mapping[str, Any]) -> None:
        """Follow a line, of which the words come first."""
        self.heard = [finds(self.table, about, finding) for about, finding in told.get("finds", {}).items()]
        for who, said in told.get("say", {}).items():
            kind, _, role = said.partition(" ")
            words = claim(role) if kind == "claims" else accuse([self.table.name(role)])
            self.heard.append(says(self.table, who, words))
        for key, value in told.items():
            if key not in ("town", "finds", "say"):
                self.follow(key, value)

    def look(self, key: str, value: Any) -> Any:
        if key not in ("does", "verb", "claim"):
            return super().look(key, value)
        verb, aim = deed(self.table, *self.heard)
        if key == "claim":
            return understand(aim).claims or "none"
        dealt = {player.name: player.dealt for player in self.table.state.players}
        shown = "" if verb == "speak" or key == "verb" else ", ".join(dealt.get(name, name) for name in listed(aim))
        return f"{verb} {shown}".strip()


def test_heuristic_players_do_what_their_role_is_for(subtests: pytest.Subtests) -> None:
    for title, lines in DEEDS.items():
        with subtests.test(title):
            case = Doing(lines[0])
            for told in lines:
                case.line(told)


def test_every_role_is_in_one_of_the_two_tables() -> None:
    assert NIGHTLY.keys() | WITH_REASON == ROLES.keys()
    assert not NIGHTLY.keys() & WITH_REASON


@pytest.mark.parametrize("seed", first(2, range(5), tier="ci", rest="nightly"))
@pytest.mark.parametrize("role", NIGHTLY)
def test_no_role_idles_where_acting_is_always_better(role: str, seed: int) -> None:
    table = town_of(role)
    table.night({"mafioso": ("kill", "sheriff 2")}, day=1)
    table.go_to(Phase.NIGHT, day=2)
    verb, target = deed(table, seed=seed)

    assert verb == NIGHTLY[role]
    assert target


@pytest.mark.parametrize("role", sorted(WITH_REASON - {"survivor"}))
def test_role_without_a_reason_harms_nobody(role: str) -> None:
    table = town_of(role)
    table.go_to(Phase.NIGHT, day=2)
    verb, _ = deed(table)

    assert verb in ("wait", "alert")


def test_veteran_goes_on_alert_once_known() -> None:
    table = town_of("veteran")
    table.go_to(Phase.NIGHT, day=1)
    known = says(table, "veteran", claim("Veteran"))

    assert all(deed(table, known, seed=seed)[0] == "alert" for seed in range(10))
    assert any(deed(table, seed=seed)[0] == "wait" for seed in range(10))


def test_jester_claims_what_cannot_be_true() -> None:
    table = town_of("jester")
    table.night(day=1)
    table.go_to(Phase.DISCUSSION, day=2)
    # There are two Sheriffs on the list, and one Doctor.
    claims = says(table, "sheriff", claim("Sheriff")), says(table, "doctor", claim("Doctor"))

    deeds = [deed(table, *claims, seed=seed) for seed in range(10)]
    assert {(verb, understand(words).claims) for verb, words in deeds} == {("speak", "Doctor")}


def test_executioner_accuses_his_target_as_one_who_could_know() -> None:
    table = town_of("executioner")
    table.night(day=1)
    table.go_to(Phase.DISCUSSION, day=2)
    quarry = table.player("executioner").quarry
    assert quarry is not None
    verb, words = deed(table)

    assert verb == "speak"
    assert understand(words).accuses == (table.name(quarry),)
    assert understand(words).claims in ("Sheriff", "Lookout")


def test_escort_leaves_alone_who_is_as_good_as_caught_while_a_serial_killer_may_live() -> None:
    """One who is blocked kills the blocker; without such a one the worst is kept busy."""
    for list_of_roles, is_spared in ((("escort", "serial killer", *COMPANY), True), (("escort", *COMPANY), False)):
        table = Table(list_of_roles)
        table.go_to(Phase.NIGHT, day=1)
        blocked = {deed(table, finds(table, "mafioso", "suspicious"), seed=seed)[1] for seed in range(30)}

        assert (table.name("mafioso") not in blocked) is is_spared
        assert is_spared is (len(blocked) > 1)


def test_mafia_kills_whom_its_leader_named_last() -> None:
    table = town_of("godfather")
    table.go_to(Phase.NIGHT, day=1)
    team = [table.seat(who) for who in ("godfather", "mafioso", "framer")]

    def named(who: str, whom: str) -> Event:
        said = {"channel": "mafia", "player": table.name(who), "text": TARGET.wordings[0].format(name=table.name(whom))}
        return private(table.state, EventKind.CHAT, team, **said)

    chat = named("mafioso", "doctor"), named("godfather", "escort"), named("framer", "lookout")
    for who in ("godfather", "mafioso"):
        assert deed(table, *chat, seat=table.seat(who)) == ("kill", table.name("escort"))
