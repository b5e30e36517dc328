"""What the heuristic player does in each role: nobody idles where acting is always better, nor acts where it is not."""

from __future__ import annotations

import re
from random import Random

import pytest

from mac_runner.environments.town_of_salem.bots import POLICIES
from mac_runner.environments.town_of_salem.bots.night_talk import TARGET
from mac_runner.environments.town_of_salem.bots.statements import accuse, claim, understand
from mac_runner.environments.town_of_salem.game.events import Event, EventKind, private, public
from mac_runner.environments.town_of_salem.game.state import Phase
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.view.knowledge import GameLog, SeatView, view_of
from tests.environments.town_of_salem.table import Table

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


def test_every_role_is_in_one_of_the_two_tables() -> None:
    assert NIGHTLY.keys() | WITH_REASON == ROLES.keys()
    assert not NIGHTLY.keys() & WITH_REASON


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(5))
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


def test_jailor_executes_whom_the_evidence_speaks_against_and_nobody_else() -> None:
    for finding, expected in (("suspicious", "execute"), ("not suspicious", "wait")):
        table = town_of("jailor")
        table.night(day=1)
        table.act("jailor", "jail", "mafioso")
        table.go_to(Phase.NIGHT, day=2)

        assert deed(table, finds(table, "mafioso", finding))[0] == expected


def test_jailor_locks_up_the_worst_of_those_he_may_execute() -> None:
    table = town_of("jailor")
    table.night(day=1)
    table.go_to(Phase.DISCUSSION, day=2)

    assert deed(table, finds(table, "framer", "suspicious")) == ("jail", table.name("framer"))


def test_jailor_locks_up_nobody_unknown_where_a_prisoner_could_kill_him() -> None:
    table = Table(("jailor", "serial killer", *COMPANY))

    assert deed(table)[0] == "speak"


def test_jailor_does_not_say_what_he_is_unless_accused() -> None:
    table = town_of("jailor")
    table.night(day=1)
    table.act("jailor", "jail", "doctor")
    table.go_to(Phase.DISCUSSION, day=4)
    table.act("jailor", "jail", "doctor")
    table.end_round()
    accused = says(table, "doctor", accuse([table.name("jailor")]))

    assert understand(deed(table)[1]).claims is None
    assert understand(deed(table, accused)[1]).claims == "Jailor"


def test_vigilante_shoots_who_is_caught_in_a_lie() -> None:
    table = town_of("vigilante")
    table.go_to(Phase.NIGHT, day=2)
    lie = says(table, "mafioso", claim("Doctor")), says(table, "framer", claim("Bodyguard"))

    assert deed(table)[0] == "wait"
    assert deed(table, *lie) == ("shoot", table.name("framer"))


def test_veteran_goes_on_alert_once_known() -> None:
    table = town_of("veteran")
    table.go_to(Phase.NIGHT, day=1)
    known = says(table, "veteran", claim("Veteran"))

    assert all(deed(table, known, seed=seed)[0] == "alert" for seed in range(10))
    assert any(deed(table, seed=seed)[0] == "wait" for seed in range(10))


def test_survivor_puts_on_a_vest_when_few_are_left() -> None:
    table = Table(("survivor", "sheriff", "doctor", "godfather", "mafioso"))
    table.go_to(Phase.NIGHT, day=1)

    assert deed(table) == ("vest", "")


def test_mayor_shows_himself_on_the_third_day() -> None:
    table = town_of("mayor")
    table.go_to(Phase.DISCUSSION, day=3)

    assert deed(table)[0] == "reveal"


def test_dead_medium_calls_whom_she_trusts() -> None:
    table = town_of("medium")
    table.night({"mafioso": ("kill", "medium")}, day=1)

    assert deed(table, finds(table, "escort", "not suspicious")) == ("seance", table.name("escort"))


def test_transporter_puts_the_worst_in_the_place_of_one_who_knows() -> None:
    table = town_of("transporter")
    table.go_to(Phase.NIGHT, day=1)
    heard = says(table, "lookout", claim("Lookout")), finds(table, "mafioso", "suspicious")
    verb, swapped = deed(table, *heard)

    assert verb == "swap"
    assert swapped == f"{table.name('lookout')}, {table.name('mafioso')}"


def test_lynched_jester_haunts_somebody() -> None:
    table = town_of("jester")
    table.night(day=1)
    table.lynch("jester")
    table.go_to(Phase.NIGHT)

    assert deed(table)[0] == "haunt"


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


@pytest.mark.parametrize("role", ["mafioso", "serial killer", "witch", "vampire"])
def test_whoever_wins_by_the_towns_losing_judges_outsiders_guilty_and_their_own_innocent(role: str) -> None:
    table = Table((role, "doctor", "sheriff", "escort", "godfather"))
    table.night(day=1)
    table.accuse("doctor")
    table.go_to(Phase.JUDGEMENT)

    assert deed(table) == ("ballot", "guilty")
    if role == "mafioso":
        table = Table((role, "doctor", "sheriff", "escort", "godfather"))
        table.night(day=1)
        table.accuse("godfather")
        table.go_to(Phase.JUDGEMENT)
        assert deed(table) == ("ballot", "innocent")


def test_nobody_says_the_same_twice_a_day() -> None:
    table = town_of("doctor")
    table.night(day=1)
    table.go_to(Phase.DISCUSSION, day=3)
    accused = says(table, "escort", accuse([table.name("doctor")]))

    verb, words = deed(table, accused)
    assert (verb, understand(words).claims) == ("speak", "Doctor")
    assert deed(table, accused, says(table, "doctor", claim("Doctor"))) == ("wait", "")
