"""What happens in a night: heals, blocks, the jail, the Mafia's chain of command, findings."""

from __future__ import annotations

import pytest

from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.rules import IllegalActError
from mac_runner.environments.town_of_salem.game.state import Options, Phase
from tests.environments.town_of_salem.table import ELEVEN, Table

CLASSIC = ELEVEN[:10]
SMALL = ("sheriff", "doctor", "escort", "godfather", "mafioso", "medium")


def test_healed_player_survives_a_kill_and_both_they_and_the_doctor_are_told() -> None:
    table = Table(CLASSIC)
    table.night({"godfather": ("kill", "sheriff"), "doctor": ("heal", "sheriff")})

    assert table.is_alive("sheriff")
    assert table.told("sheriff", EventKind.ATTACKED) == [{"saved_by": "a Doctor"}]
    assert table.told("doctor", EventKind.PATIENT_ATTACKED) == [{"target": table.name("sheriff")}]
    assert table.told("mafioso", EventKind.DEFENCE_TOO_STRONG) == [{"target": table.name("sheriff")}]
    assert table.shown(EventKind.NO_DEATH)


def test_one_who_dies_of_another_attack_is_not_told_that_he_was_saved() -> None:
    table = Table(("sheriff", "doctor", "jester", "godfather", "escort", "medium", "investigator"))
    table.night(day=1)
    table.lynch("jester")
    table.night(
        {"doctor": ("heal", "sheriff"), "godfather": ("kill", "sheriff"), "jester": ("haunt", "sheriff")},
    )

    assert not table.player("sheriff").alive
    assert table.told("sheriff", EventKind.ATTACKED) == []
    assert table.told("doctor", EventKind.PATIENT_ATTACKED) == [{"target": table.name("sheriff")}]


def test_heal_of_somebody_nobody_attacks_is_not_commented_on() -> None:
    table = Table(CLASSIC)
    table.night({"godfather": ("kill", "sheriff"), "doctor": ("heal", "escort")})

    assert not table.is_alive("sheriff")
    assert table.told("doctor", EventKind.PATIENT_ATTACKED) == []


def test_doctor_may_heal_himself_once() -> None:
    table = Table(CLASSIC)
    table.night({"godfather": ("kill", "doctor"), "doctor": ("heal", "doctor")})
    assert table.is_alive("doctor")
    table.go_to(Phase.NIGHT)

    with pytest.raises(IllegalActError, match="must name one of"):
        table.act("doctor", "heal", "doctor")


def test_self_heal_of_a_blocked_doctor_is_not_spent() -> None:
    table = Table(CLASSIC)
    table.night({"doctor": ("heal", "doctor"), "escort": ("block", "doctor")})
    table.go_to(Phase.NIGHT)

    table.act("doctor", "heal", "doctor")
    assert table.state.deeds


def test_basic_attack_does_not_kill_one_with_a_defence_of_their_own() -> None:
    table = Table(CLASSIC)
    table.night({"mafioso": ("kill", "executioner")})

    assert table.is_alive("executioner")
    assert table.told("executioner", EventKind.ATTACKED) == [{"saved_by": "your own defence"}]


def test_executions_kill_through_every_defence() -> None:
    table = Table(CLASSIC)
    table.night(day=1)
    table.act("jailor", "jail", "godfather")
    table.night({"jailor": ("execute",), "doctor": ("heal", "godfather")})

    assert not table.is_alive("godfather")
    assert table.player("godfather").death is not None
    assert table.shown(EventKind.DEATH)[-1]["causes"] == ["jailor"]
    assert table.player("jailor").uses["execute"] == 2


def test_blocked_jailor_executes_nobody_and_the_prisoner_is_still_safe() -> None:
    table = Table(CLASSIC)
    table.night(day=1)
    table.act("jailor", "jail", "sheriff")
    table.night({"jailor": ("execute",), "escort": ("block", "jailor"), "godfather": ("kill", "sheriff")})

    assert table.is_alive("sheriff")
    assert table.told("jailor", EventKind.BLOCKED)
    assert table.player("jailor").uses["execute"] == 3


def test_execution_on_the_first_night_is_refused() -> None:
    table = Table(CLASSIC)
    table.act("jailor", "jail", "sheriff")
    table.go_to(Phase.NIGHT)

    assert table.state.prisoner == table.seat("sheriff")
    with pytest.raises(IllegalActError, match="it is not your turn"):
        table.act("jailor", "execute")


def test_execution_of_the_town_costs_all_later_ones() -> None:
    table = Table(CLASSIC)
    table.night(day=1)
    table.act("jailor", "jail", "sheriff")
    table.night({"jailor": ("execute",)})
    table.act("jailor", "jail", "godfather")
    table.go_to(Phase.NIGHT)

    assert not table.is_alive("sheriff")
    assert table.told("jailor", EventKind.EXECUTIONS_LOST) == [{"target": table.name("sheriff")}]
    assert table.player("jailor").uses["execute"] == 0
    assert table.seat("jailor") not in table.state.order


def test_prisoner_cannot_act_and_visitors_are_told_that_nothing_happened() -> None:
    table = Table(CLASSIC)
    table.act("jailor", "jail", "mafioso")
    table.go_to(Phase.NIGHT)
    assert table.seat("mafioso") not in table.state.order

    table.night({"sheriff": ("interrogate", "mafioso"), "escort": ("block", "mafioso")})
    for visitor in ("sheriff", "escort"):
        assert table.told(visitor, EventKind.TARGET_JAILED) == [{"target": table.name("mafioso")}]
    assert table.findings("sheriff") == []
    assert table.told("mafioso", EventKind.BLOCK_RESISTED)


def test_escorts_block_holds_against_all_but_escorts() -> None:
    table = Table((*SMALL, "escort"))
    table.night(
        {"escort": ("block", "sheriff"), "escort 2": ("block", "escort"), "sheriff": ("interrogate", "mafioso")}
    )

    assert table.findings("sheriff") == []
    assert table.told("sheriff", EventKind.BLOCKED)
    assert table.told("escort 2", EventKind.BLOCK_FAILED) == [{"target": table.name("escort")}]
    assert table.told("escort", EventKind.BLOCK_RESISTED)


def test_framed_townsman_is_suspicious_and_shows_the_framers_list_for_one_night() -> None:
    table = Table(CLASSIC)
    deeds = {"sheriff": ("interrogate", "escort"), "investigator": ("investigate", "escort")}
    table.night({**deeds, "framer": ("frame", "escort")})
    table.night({"sheriff": ("interrogate", "escort"), "investigator": ("investigate", "escort")})

    assert table.findings("sheriff") == ["suspicious", "not suspicious"]
    assert table.findings("investigator") == ["a Framer, Vampire or Jester", "an Escort, Transporter or Consort"]


@pytest.mark.parametrize("role", ELEVEN)
def test_sheriff_finds_the_mafia_but_not_its_godfather(role: str) -> None:
    table = Table(("sheriff", *ELEVEN))
    table.night({"sheriff": ("interrogate", "sheriff 2" if role == "sheriff" else role)})

    is_found = role in ("mafioso", "framer")
    assert table.findings("sheriff") == ["suspicious" if is_found else "not suspicious"]


@pytest.mark.parametrize("role", ELEVEN)
def test_investigator_learns_a_list_with_the_true_role_in_it(role: str) -> None:
    table = Table(("investigator", *ELEVEN))
    table.night({"investigator": ("investigate", "investigator 2" if role == "investigator" else role)})

    (finding,) = table.findings("investigator")
    assert role.title() in finding
    assert finding.count(",") == 1
    assert " or " in finding


def test_typed_sheriff_learns_what_kind_of_guilty() -> None:
    table = Table(CLASSIC, options=Options(sheriff="typed"))
    table.night({"sheriff": ("interrogate", "mafioso")})
    table.night({"sheriff": ("interrogate", "escort"), "framer": ("frame", "escort")})
    table.night({"sheriff": ("interrogate", "godfather")})

    assert table.findings("sheriff") == ["a member of the mafia", "a member of the mafia", "not suspicious"]


def test_finding_of_one_who_dies_that_night_is_still_made() -> None:
    table = Table(CLASSIC)
    table.night({"sheriff": ("interrogate", "mafioso"), "mafioso": ("kill", "sheriff")})

    assert not table.is_alive("sheriff")
    assert table.findings("sheriff") == ["suspicious"]


def test_mafioso_carries_out_the_godfathers_choice() -> None:
    table = Table(CLASSIC)
    table.night({"godfather": ("kill", "sheriff"), "mafioso": ("kill", "doctor")})

    assert not table.is_alive("sheriff")
    assert table.is_alive("doctor")


def test_mafia_makes_one_kill_a_night_by_the_mafiosos_choice_when_the_godfather_makes_none() -> None:
    table = Table(CLASSIC)
    table.night({"mafioso": ("kill", "doctor")})

    assert not table.is_alive("doctor")
    assert len(table.shown(EventKind.DEATH)) == 1


def test_mafioso_chooses_himself_when_the_godfather_is_in_jail() -> None:
    table = Table(CLASSIC)
    table.act("jailor", "jail", "godfather")
    table.night({"mafioso": ("kill", "doctor")})

    assert not table.is_alive("doctor")


def test_mafioso_chooses_himself_when_the_godfather_is_blocked() -> None:
    table = Table(CLASSIC)
    table.night({"godfather": ("kill", "sheriff"), "mafioso": ("kill", "doctor"), "escort": ("block", "godfather")})

    assert table.is_alive("sheriff")
    assert not table.is_alive("doctor")


@pytest.mark.parametrize("hindrance", ["blocked", "jailed"])
def test_godfather_kills_in_person_when_the_mafioso_cannot(hindrance: str) -> None:
    """The one who kills is the one whose note is found and who learns of a defence too strong."""
    table = Table(CLASSIC)
    table.act("godfather", "death_note", text="from the boss")
    table.act("mafioso", "death_note", text="from the hand")
    if hindrance == "jailed":
        table.act("jailor", "jail", "mafioso")
        table.night({"godfather": ("kill", "sheriff")})
    else:
        table.night({"godfather": ("kill", "sheriff"), "mafioso": ("kill", "doctor"), "escort": ("block", "mafioso")})

    (death,) = table.shown(EventKind.DEATH)
    assert death["player"] == table.name("sheriff")
    assert death["death_notes"] == ["from the boss"]


def test_godfather_with_a_working_mafioso_is_at_nobodys_house() -> None:
    """Only the hand that kills learns that the target was in jail: he went there, his Godfather did not."""
    table = Table(CLASSIC)
    table.act("jailor", "jail", "sheriff")
    table.night({"godfather": ("kill", "sheriff")})

    assert table.told("mafioso", EventKind.TARGET_JAILED)
    assert not table.told("godfather", EventKind.TARGET_JAILED)


def test_killer_who_dies_that_night_still_kills() -> None:
    table = Table(("jailor", "sheriff", "doctor", "godfather", "mafioso", "jester"))
    table.night(day=1)
    table.lynch("jester", {"mafioso": "guilty"})
    table.night({"mafioso": ("kill", "sheriff"), "jester": ("haunt", "mafioso")})

    assert not table.is_alive("mafioso")
    assert not table.is_alive("sheriff")


def test_everybody_dying_in_one_night_is_a_draw() -> None:
    table = Table(("jailor", "godfather", "mafioso", "jester"))
    table.night(day=1)
    table.act("jailor", "jail", "godfather")
    table.lynch("jester")
    table.night({"jailor": ("execute",), "mafioso": ("kill", "jailor"), "jester": ("haunt", "mafioso")})

    assert table.state.living == ()
    assert table.state.result is not None
    assert table.state.result.ending == "draw"
    assert table.state.result.winners == ()


def test_two_reasons_to_die_are_both_shown() -> None:
    table = Table(("jailor", "sheriff", "doctor", "godfather", "mafioso", "jester"))
    table.night(day=1)
    table.lynch("jester")
    table.night({"mafioso": ("kill", "sheriff"), "jester": ("haunt", "sheriff")})

    assert table.shown(EventKind.DEATH)[-1]["causes"] == ["jester", "mafia"]


def test_mafia_may_not_aim_at_its_own() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.NIGHT)

    for member, verb in (("godfather", "kill"), ("mafioso", "kill"), ("framer", "frame")):
        for other in ("godfather", "mafioso", "framer"):
            with pytest.raises(IllegalActError, match="must name one of"):
                table.act(member, verb, other)


def test_attacker_is_told_whom_they_chose_and_not_whom_they_met() -> None:
    """Nobody learns from their own deed who stood in another's place, who visited, or who the Jailor is."""
    table = Table(("serial killer", "jailor", "doctor", "sheriff", "godfather"))
    table.go_to(Phase.GREETING)
    table.act("jailor", "jail", "serial killer")
    table.night({"doctor": ("heal", "jailor")})

    assert table.told("serial killer", EventKind.DEFENCE_TOO_STRONG) == [{"target": ""}]


def test_swap_is_not_told_to_those_whom_it_led_astray() -> None:
    table = Table(("escort", "transporter", "sheriff", "veteran", "doctor", "godfather"))
    table.night(
        {
            "transporter": ("swap", "sheriff", "veteran"),
            "escort": ("block", "sheriff"),
            "doctor": ("heal", "sheriff"),
            "godfather": ("kill", "sheriff"),
        }
    )

    sheriff = {"target": table.name("sheriff")}
    assert table.told("escort", EventKind.BLOCK_FAILED) == [sheriff]
    assert table.told("doctor", EventKind.PATIENT_ATTACKED) == [sheriff]
    assert table.told("godfather", EventKind.DEFENCE_TOO_STRONG) == [sheriff]
