"""The interactions the rules are known by, one test each, numbered as in the list of the rules (section 16)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from mac_runner.environments.town_of_salem.game.acts import Act, offers
from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.rules import EndRound, IllegalActError, apply, validate
from mac_runner.environments.town_of_salem.game.state import GameState, Options, Phase
from mac_runner.environments.town_of_salem.game.victory import has_won
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.base import DOUSED
from tests.environments.town_of_salem.table import Table, Who

# Enough of the Town and a Mafia that no game ends while a vector is played.
CROWD = ("sheriff", "doctor", "investigator", "mafioso", "godfather")


def table_with(*roles: str, options: Options | None = None, day: int = 1) -> Table:
    """A game of these roles beside the crowd, at its first night or at that of `day`."""
    table = Table((*roles, *CROWD), options=options)
    table.go_to(Phase.NIGHT, day=day)
    return table


def jail(table: Table, prisoner: Who) -> None:
    """Have the Jailor hold somebody in the next night."""
    table.go_to(Phase.DISCUSSION)
    table.act("jailor", "jail", prisoner)


def test_01_mafioso_at_a_healed_sheriff_kills_nobody_and_the_doctor_is_told() -> None:
    table = table_with()
    table.night({"mafioso": ("kill", "sheriff"), "doctor": ("heal", "sheriff")})

    assert table.is_alive("sheriff")
    assert table.told("doctor", EventKind.PATIENT_ATTACKED) == [{"target": table.name("sheriff")}]


def test_02_mafioso_at_a_serial_killer_kills_nobody_and_both_are_told() -> None:
    table = table_with("serial killer")
    table.night({"mafioso": ("kill", "serial killer")})

    assert table.is_alive("serial killer")
    assert table.told("serial killer", EventKind.ATTACKED)
    assert table.told("mafioso", EventKind.DEFENCE_TOO_STRONG)


@pytest.mark.parametrize(("victim", "dies"), [("sheriff", False), ("serial killer", True)])
def test_03_werewolf_is_stopped_by_a_heal_and_not_by_basic_defence(victim: str, dies: bool) -> None:
    table = table_with("werewolf", "serial killer", day=2)
    table.night({"werewolf": ("rampage", victim), "doctor": ("heal", "sheriff")})

    assert table.is_alive(victim) != dies


def test_04_execution_kills_a_godfather_and_a_healed_prisoner() -> None:
    for prisoner in ("godfather", "sheriff"):
        table = table_with("jailor")
        jail(table, prisoner)
        table.night({"jailor": ("execute",), "doctor": ("heal", prisoner)})

        assert table.causes(prisoner) == ("jailor",)


def test_05_blocked_jailor_executes_nobody_and_the_prisoner_is_safe() -> None:
    table = table_with("jailor", "escort")
    jail(table, "sheriff")
    table.night({"jailor": ("execute",), "escort": ("block", "jailor"), "mafioso": ("kill", "sheriff")})

    assert table.is_alive("sheriff")


def test_06_execution_on_the_first_night_is_refused() -> None:
    table = Table(("jailor", *CROWD))
    table.act("jailor", "jail", "mafioso")
    table.go_to(Phase.NIGHT)

    with pytest.raises(IllegalActError):
        table.act("jailor", "execute")


def test_07_executing_the_town_costs_all_later_executions() -> None:
    table = table_with("jailor")
    jail(table, "sheriff")
    table.night({"jailor": ("execute",)})
    jail(table, "godfather")
    table.go_to(Phase.NIGHT)

    with pytest.raises(IllegalActError):
        table.act("jailor", "execute")


def test_08_serial_killer_blocked_by_an_escort_kills_escort_and_target_and_soaks_the_will() -> None:
    table = table_with("serial killer", "escort")
    table.act("escort", "will", text="who I visited")
    table.night({"serial killer": ("stab", "sheriff"), "escort": ("block", "serial killer")})

    assert table.causes("escort") == ("serial killer",)
    assert table.causes("sheriff") == ("serial killer",)
    shown = {data["player"]: (data["will"], data["is_bloody"]) for data in table.shown(EventKind.DEATH)}
    assert shown[table.name("escort")] == ("", True)
    assert shown[table.name("sheriff")] == ("", False)


@pytest.mark.parametrize("is_executed", [True, False])
def test_09_jailed_serial_killer_attacks_the_jailor_unless_he_is_executed(is_executed: bool) -> None:
    table = table_with("serial killer", "jailor")
    jail(table, "serial killer")
    table.night({"jailor": ("execute",)} if is_executed else {})

    assert table.is_alive("jailor") == is_executed
    assert table.is_alive("serial killer") != is_executed


def test_10_veteran_on_alert_shoots_visitors_and_survives_basic_attacks() -> None:
    table = table_with("veteran")
    table.night({"veteran": ("alert",), "sheriff": ("interrogate", "veteran"), "mafioso": ("kill", "veteran")})

    assert table.causes("sheriff") == table.causes("mafioso") == ("veteran",)
    assert table.is_alive("veteran")


def test_10_werewolf_and_veteran_on_alert_kill_each_other() -> None:
    table = table_with("veteran", "werewolf", day=2)
    table.night({"veteran": ("alert",), "werewolf": ("rampage", "veteran")})

    assert table.causes("werewolf") == ("veteran",)
    assert table.causes("veteran") == ("werewolf",)


def test_11_transport_sends_attack_and_question_to_the_other_and_a_lookout_sees_who_arrived() -> None:
    table = table_with("transporter", "serial killer", "lookout", "escort", "framer")
    table.night(
        {
            "transporter": ("swap", "escort", "framer"),
            "serial killer": ("stab", "escort"),
            "sheriff": ("interrogate", "escort"),
            "investigator": ("investigate", "framer"),
            "lookout": ("watch", "escort"),
            "doctor": ("heal", "framer"),
        }
    )

    assert table.is_alive("escort")
    assert table.causes("framer") == ("serial killer",)
    assert table.findings("sheriff") == ["suspicious"]
    assert table.findings("investigator") == ["an Escort, Transporter or Consort"]
    # Those arrived at the Escort who had set out for the Framer, and the Transporter was at both.
    (seen,) = table.findings("lookout")
    arrived = {"transporter", "investigator", "doctor"}
    assert set(seen.removeprefix("visited by ").split(" and ")) == {table.name(who) for who in arrived}
    assert table.told("escort", EventKind.TRANSPORTED) == table.told("framer", EventKind.TRANSPORTED) == [{}]


def test_12_transport_with_somebody_in_jail_moves_nobody() -> None:
    table = table_with("transporter", "jailor", "escort")
    jail(table, "escort")
    table.night({"transporter": ("swap", "escort", "sheriff"), "mafioso": ("kill", "sheriff")})

    assert table.causes("sheriff") == ("mafia",)
    assert not table.told("sheriff", EventKind.TRANSPORTED)
    assert table.told("transporter", EventKind.TARGET_JAILED)


def test_13_vigilante_made_to_shoot_the_town_dies_of_guilt_the_night_after() -> None:
    table = table_with("witch", "vigilante", day=2)
    table.night({"witch": ("control", "vigilante", "sheriff")})
    assert table.causes("sheriff") == ("vigilante",)
    assert table.told("vigilante", EventKind.GUILT)
    assert table.is_alive("vigilante")

    table.night({"doctor": ("heal", "vigilante")})
    assert table.causes("vigilante") == ("guilt",)


@pytest.mark.parametrize("puppet", ["transporter", "veteran"])
def test_14_witch_cannot_control_the_immune(puppet: str) -> None:
    table = table_with("witch", puppet)
    table.night({"witch": ("control", puppet, "sheriff")})

    assert table.told("witch", EventKind.CONTROL_FAILED) == [{"target": table.name(puppet)}]
    assert table.told(puppet, EventKind.CONTROL_RESISTED)
    assert not table.told(puppet, EventKind.CONTROLLED)


def test_15_blocked_puppet_does_not_do_what_the_witch_wants() -> None:
    table = table_with("witch", "vigilante", "escort", day=2)
    table.night({"witch": ("control", "vigilante", "sheriff"), "escort": ("block", "vigilante")})

    assert table.is_alive("sheriff")


@pytest.mark.parametrize("is_healed", [True, False])
def test_16_bodyguard_dies_with_the_mafioso_unless_a_doctor_is_with_him(is_healed: bool) -> None:
    table = table_with("bodyguard")
    heal: dict[str, tuple[str, Who]] = {"doctor": ("heal", "bodyguard")} if is_healed else {}
    table.night({"bodyguard": ("guard", "sheriff"), "mafioso": ("kill", "sheriff"), **heal})

    assert table.is_alive("sheriff")
    assert table.causes("mafioso") == ("bodyguard",)
    assert table.causes("bodyguard") == (() if is_healed else ("guarding",))


def test_17_godfather_who_comes_himself_is_killed_by_a_bodyguard() -> None:
    table = table_with("bodyguard")
    table.bury("mafioso")
    table.night({"bodyguard": ("guard", "sheriff"), "godfather": ("kill", "sheriff")})

    assert table.causes("godfather") == ("bodyguard",)
    assert table.is_alive("sheriff")


def test_18_second_attacker_gets_past_one_bodyguard() -> None:
    table = table_with("bodyguard", "serial killer")
    table.night(
        {
            "bodyguard": ("guard", "sheriff"),
            "mafioso": ("kill", "sheriff"),
            "serial killer": ("stab", "sheriff"),
        }
    )

    assert table.causes("sheriff") == ("serial killer",)
    assert table.causes("mafioso") == ("bodyguard",)


def test_19_fire_kills_the_healed_and_the_jailed_and_not_the_arsonist() -> None:
    table = table_with("arsonist", "jailor")
    jail(table, "investigator")
    for who in ("sheriff", "investigator", "arsonist"):
        table.mark(who, DOUSED)
    table.night({"arsonist": ("ignite",), "doctor": ("heal", "sheriff")})

    assert table.causes("sheriff") == table.causes("investigator") == ("arsonist",)
    assert table.is_alive("arsonist")


def test_20_visitor_of_a_jailed_arsonist_is_doused() -> None:
    table = table_with("arsonist", "jailor")
    jail(table, "arsonist")
    table.night({"sheriff": ("interrogate", "arsonist"), "jailor": ("wait",)})

    assert DOUSED in table.player("sheriff").marks
    assert DOUSED not in table.player("jailor").marks
    assert table.told("arsonist", EventKind.VISITED) == [{"visitors": [table.name("sheriff")]}]


def test_21_framed_member_of_the_town_is_suspicious_and_shows_the_framers_list() -> None:
    table = table_with("framer", "escort")
    table.night(
        {
            "framer": ("frame", "escort"),
            "sheriff": ("interrogate", "escort"),
            "investigator": ("investigate", "escort"),
        }
    )

    assert table.findings("sheriff") == ["suspicious"]
    assert table.findings("investigator") == ["a Framer, Vampire or Jester"]


def test_22_godfather_is_not_suspicious_nor_is_a_mafioso_who_became_one() -> None:
    table = table_with()
    table.night({"sheriff": ("interrogate", "godfather")})
    table.lynch("godfather")
    table.night({"sheriff": ("interrogate", "mafioso")})

    assert table.findings("sheriff") == ["not suspicious", "not suspicious"]


def test_23_without_godfather_and_mafioso_another_member_takes_up_the_killing() -> None:
    table = table_with("janitor", "consort")
    table.bury("mafioso")
    table.go_to(Phase.DISCUSSION)
    table.lynch("godfather")

    ranks = sorted(table.player(who).role for who in ("janitor", "consort"))
    assert "mafioso" in ranks
    assert len(set(ranks)) == 2


def test_24_mafioso_chooses_himself_while_the_godfather_is_in_jail() -> None:
    table = table_with("jailor")
    jail(table, "godfather")
    table.night({"mafioso": ("kill", "sheriff")})

    assert table.causes("sheriff") == ("mafia",)


def test_25_godfather_kills_for_a_blocked_mafioso_and_is_seen() -> None:
    table = table_with("escort", "lookout")
    table.night(
        {
            "escort": ("block", "mafioso"),
            "godfather": ("kill", "sheriff"),
            "mafioso": ("kill", "doctor"),
            "lookout": ("watch", "sheriff"),
        }
    )

    assert table.causes("sheriff") == ("mafia",)
    assert table.is_alive("doctor")
    assert table.findings("lookout") == [f"visited by {table.name('godfather')}"]


def executioner_after(quarry: str) -> Table:
    table = Table(("executioner", quarry, "jailor", "godfather", "mafioso", "jester"))
    table.go_to(Phase.NIGHT)
    return table


def test_26_executioner_whose_quarry_is_shot_is_a_jester_without_defence() -> None:
    table = executioner_after("sheriff")
    table.night({"mafioso": ("kill", "sheriff")})
    assert table.player("executioner").role == "jester"

    table.night({"mafioso": ("kill", "executioner")})
    assert not table.is_alive("executioner")


def test_27_executioner_whose_quarry_is_lynched_wins_and_the_game_goes_on() -> None:
    table = executioner_after("sheriff")
    table.go_to(Phase.DISCUSSION)
    table.lynch("sheriff")

    assert has_won(table.state, table.player("executioner"))
    assert table.state.result is None


def test_28_lynched_jester_haunts_through_a_heal() -> None:
    table = table_with("jester")
    table.go_to(Phase.DISCUSSION)
    table.lynch("jester")
    table.night({"jester": ("haunt", "sheriff"), "doctor": ("heal", "sheriff")})

    assert table.causes("sheriff") == ("jester",)


def test_29_revealed_mayor_weighs_three_and_cannot_be_healed() -> None:
    table = table_with("mayor")
    table.go_to(Phase.VOTING)
    table.act("mayor", "reveal")
    table.end_round()
    table.act("mayor", "vote", "mafioso")
    assert table.shown(EventKind.VOTE)[-1]["count"] == 3
    table.act(next(seat for seat in table.state.due if seat != table.seat("mafioso")), "vote", "mafioso")
    table.go_to(Phase.JUDGEMENT)
    for seat in table.state.due:
        table.act(seat, "ballot", choice="guilty" if seat == table.seat("mayor") else "abstain")
    table.end_round()
    assert table.state.phase is Phase.LAST_WORDS

    table.night({"godfather": ("kill", "mayor"), "doctor": ("heal", "mayor")})
    assert table.causes("mayor") == ("mafia",)
    assert table.told("doctor", EventKind.FAILED) == [{"target": table.name("mayor")}]


@pytest.mark.parametrize(("living", "needed"), [(15, 8), (14, 8), (10, 6), (5, 3), (2, 2)])
def test_30_more_than_half_of_the_living_must_vote(living: int, needed: int) -> None:
    table = Table(("godfather", *["sheriff"] * 14))
    table.bury(*range(living, 15))

    assert table.state.votes_needed == needed


def test_31_tie_acquits_and_the_third_acquittal_ends_the_day() -> None:
    table = table_with("escort")
    for _ in range(3):
        assert table.state.phase in (Phase.NIGHT, Phase.DISCUSSION, Phase.VOTING)
        table.judge("mafioso", {"sheriff": "guilty", "doctor": "innocent"}, others="abstain")

    assert table.is_in(Phase.NIGHT_CHAT)
    assert table.is_alive("mafioso")


def test_32_blackmailed_player_cannot_speak_whisper_or_defend_himself_but_votes() -> None:
    table = table_with("blackmailer")
    table.night({"blackmailer": ("blackmail", "sheriff")})
    for verb, whom in (("speak", ()), ("whisper", ("doctor",))):
        with pytest.raises(IllegalActError, match="cannot be chosen"):
            table.act("sheriff", verb, *whom, text="help")
    table.go_to(Phase.VOTING)
    table.act("sheriff", "vote", "doctor")
    table.accuse("sheriff")

    assert table.shown(EventKind.BLACKMAILED_ON_STAND) == [{"accused": table.name("sheriff")}]
    with pytest.raises(IllegalActError, match="cannot be chosen"):
        table.act("sheriff", "speak", text="I am innocent")
    table.night(day=2)
    table.act("sheriff", "speak", text="I can talk again")


def test_33_cleaned_body_shows_nothing_and_the_janitor_learns_all_for_one_use_a_body() -> None:
    table = table_with("janitor")
    table.act("sheriff", "will", text="my findings")
    table.night({"janitor": ("clean", "sheriff")})
    assert table.player("janitor").uses["clean"] == 3

    table.night({"janitor": ("clean", "sheriff"), "mafioso": ("kill", "sheriff")})
    (death,) = table.shown(EventKind.DEATH)
    assert (death["role"], death["will"]) == ("unknown", "")
    told = {"target": table.name("sheriff"), "role": "Sheriff", "legacy": "my findings"}
    assert table.told("janitor", EventKind.CLEANED) == [told]
    assert table.player("janitor").uses["clean"] == 2


def test_34_amnesiac_killed_that_night_dies_an_amnesiac() -> None:
    table = table_with("amnesiac", "escort")
    table.bury("escort")
    table.night({})
    table.night({"amnesiac": ("remember", "escort"), "mafioso": ("kill", "amnesiac")})

    assert table.player("amnesiac").role == "amnesiac"
    assert not table.shown(EventKind.REMEMBERED)


def test_35_town_wins_with_a_jester_left() -> None:
    table = Table(("sheriff", "jester", "doctor", "godfather"))
    table.go_to(Phase.DISCUSSION)
    table.lynch("godfather")

    assert table.state.result is not None
    assert table.state.result.winners == ("town",)


def test_36_mafia_and_town_one_against_one_play_on() -> None:
    table = Table(("sheriff", "doctor", "godfather"))
    table.night({"godfather": ("kill", "doctor")})

    assert table.state.result is None


def test_37_serial_killer_and_survivor_win_together() -> None:
    table = Table(("serial killer", "survivor", "sheriff"))
    table.night({"serial killer": ("stab", "sheriff")})

    assert table.state.result is not None
    assert table.state.result.winners == ("serial killer",)
    assert [has_won(table.state, player) for player in table.state.players] == [True, True, False]


def test_38_everybody_dying_in_one_night_is_a_draw() -> None:
    table = Table(("arsonist", "werewolf", "sheriff"))
    for who in ("sheriff", "werewolf"):
        table.mark(who, DOUSED)
    table.night({"arsonist": ("ignite",), "werewolf": ("rampage", "arsonist")}, day=2)

    assert table.state.living == ()
    assert table.state.result is not None
    assert (table.state.result.ending, table.state.result.winners) == ("draw", ())


def test_39_two_quiet_cycles_from_the_seventh_day_on_are_a_draw_a_survivor_wins() -> None:
    table = Table(("sheriff", "doctor", "godfather", "survivor"))
    while table.state.result is None:
        table.end_round()

    assert (table.state.result.ending, table.state.day) == ("draw", 9)
    assert has_won(table.state, table.player("survivor"))
    assert not has_won(table.state, table.player("sheriff"))


def test_40_witchs_shield_takes_one_attack_and_the_attacker_learns_nothing() -> None:
    table = table_with("witch")
    table.night({"mafioso": ("kill", "witch")})
    assert table.is_alive("witch")
    assert not table.told("mafioso", EventKind.DEFENCE_TOO_STRONG)

    table.night({"mafioso": ("kill", "witch")})
    assert table.causes("witch") == ("mafia",)


def test_41_transported_doctor_who_heals_himself_heals_the_other() -> None:
    table = table_with("transporter", "escort")
    table.night(
        {
            "transporter": ("swap", "doctor", "escort"),
            "doctor": ("heal", "doctor"),
            # Aimed at the Doctor, it reaches the Escort, who is the one healed.
            "mafioso": ("kill", "doctor"),
        }
    )

    assert table.is_alive("escort")
    assert table.is_alive("doctor")
    assert table.told("escort", EventKind.ATTACKED) == [{"saved_by": "a Doctor"}]


def test_42_words_with_the_dead_reach_nobody_else() -> None:
    table = Table(("medium", "escort", *CROWD))
    table.bury("escort")
    table.go_to(Phase.NIGHT_CHAT)
    table.act("medium", "speak", text="who was it?")
    table.act("escort", "speak", text="the Mafia")
    table.act("mafioso", "speak", text="whom next?")

    heard = {event.data["text"]: event.audience for event in table.events if event.kind is EventKind.CHAT}
    with_the_dead = frozenset({table.seat("medium"), table.seat("escort")})
    assert heard["who was it?"] == heard["the Mafia"] == with_the_dead
    assert heard["whom next?"] == frozenset({table.seat("mafioso"), table.seat("godfather")})


@pytest.mark.parametrize("role", ROLES)
def test_43_every_role_may_do_all_it_can_to_everybody(role: str) -> None:
    """One night for each thing a role may do to each other role; the fuzz does it in every state."""
    others = [other for other in ROLES if other != role]
    for company in (others[:16], others[16:]):
        table = Table((role, *company, "sheriff"))
        for day in (1, 2):
            table.go_to(Phase.NIGHT, day=day)
            for act in night_acts(table):
                dawn = end_of_night(apply(table.state, act).state)
                assert dawn.phase in (Phase.DISCUSSION, Phase.OVER)


def night_acts(table: Table) -> Iterator[Act]:
    """Everything seat 0 may do tonight."""
    for offer in offers(table.state, 0) if 0 in table.state.order else ():
        text = "words" if offer.verb == "forge" else ""
        if offer.verb not in ("will", "death_note", "notes"):
            for targets in product(*filter(None, (offer.targets, offer.seconds))):
                yield Act(seat=0, verb=offer.verb, targets=targets, text=text)


def end_of_night(state: GameState) -> GameState:
    state = apply(state, EndRound()).state
    validate(state)
    return state
