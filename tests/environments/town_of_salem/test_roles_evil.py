"""What the Mafia's helpers and the neutrals do beyond the list of known interactions."""

from __future__ import annotations

import pytest

from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.rules import IllegalActError
from mac_runner.environments.town_of_salem.game.state import Faction, Options, Phase
from mac_runner.environments.town_of_salem.game.victory import check, has_won
from mac_runner.environments.town_of_salem.roles.base import DOUSED
from tests.environments.town_of_salem.table import Table

CROWD = ("sheriff", "doctor", "investigator", "mafioso", "godfather")


def table_with(*roles: str, options: Options | None = None, day: int = 1) -> Table:
    table = Table((*roles, *CROWD), options=options)
    table.go_to(Phase.NIGHT, day=day)
    return table


def test_forged_will_is_read_out_in_place_of_the_true_one_and_costs_one_use() -> None:
    table = table_with("forger")
    table.act("sheriff", "will", text="the truth")
    table.act("forger", "forge", "sheriff", text="a lie")
    table.night({"mafioso": ("kill", "sheriff")})

    (death,) = table.shown(EventKind.DEATH)
    assert (death["role"], death["will"]) == ("Sheriff", "a lie")
    assert table.player("forger").uses["forge"] == 2


def test_cleaned_body_shows_no_forged_will_and_no_note() -> None:
    table = table_with("forger", "janitor")
    table.act("mafioso", "death_note", text="regards")
    table.act("forger", "forge", "sheriff", text="a lie")
    table.night({"mafioso": ("kill", "sheriff"), "janitor": ("clean", "sheriff")})

    (death,) = table.shown(EventKind.DEATH)
    assert (death["role"], death["will"], death["death_notes"]) == ("unknown", "", [])


@pytest.mark.parametrize("uses", [0, 2])
def test_janitor_and_forger_have_the_uses_of_the_flags(uses: int) -> None:
    table = Table(("janitor", "forger", *CROWD), options=Options(janitor_uses=uses, forger_uses=uses))

    assert table.player("janitor").uses == {"clean": uses}
    assert table.player("forger").uses == {"forge": uses}


def test_disguised_member_shows_the_copied_role_alive_and_dead() -> None:
    table = table_with("disguiser", "lookout", "veteran")
    table.night(
        {
            "disguiser": ("disguise", "mafioso", "doctor"),
            "investigator": ("investigate", "mafioso"),
            "mafioso": ("kill", "veteran"),
            "lookout": ("watch", "veteran"),
            "veteran": ("alert",),
        }
    )

    assert table.findings("investigator") == ["a Doctor, Disguiser or Serial Killer"]
    assert table.name("doctor") in table.findings("lookout")[0]
    shown = {data["player"]: data["role"] for data in table.shown(EventKind.DEATH)}
    assert shown[table.name("mafioso")] == "Doctor"
    assert table.player("mafioso").role == "mafioso"


def test_consigliere_learns_the_role_through_frame_and_petrol() -> None:
    table = table_with("consigliere", "framer", "arsonist")
    table.mark("sheriff", DOUSED)
    table.night({"consigliere": ("look_into", "sheriff"), "framer": ("frame", "sheriff")})

    assert table.findings("consigliere") == ["a Sheriff"]


def test_consort_blocks_and_cannot_be_blocked() -> None:
    table = table_with("consort", "escort")
    table.night(
        {"consort": ("block", "sheriff"), "escort": ("block", "consort"), "sheriff": ("interrogate", "mafioso")}
    )

    assert table.findings("sheriff") == []


def test_living_blackmailer_reads_whispers() -> None:
    table = Table(("blackmailer", *CROWD))
    table.act("sheriff", "whisper", "doctor", text="psst")

    assert [told["text"] for told in table.told("blackmailer", EventKind.WHISPER)] == ["psst"]
    assert not table.told("mafioso", EventKind.WHISPER)


@pytest.mark.parametrize(("flag", "victim"), [("order", "doctor"), ("control", "sheriff")])
def test_controlled_mafioso_follows_the_order_or_the_witch(flag: str, victim: str) -> None:
    table = table_with("witch", options=Options(mafioso_control=flag))
    table.night({"witch": ("control", "mafioso", "sheriff"), "godfather": ("kill", "doctor")})

    assert table.causes(victim) == ("mafia",)
    assert len(table.shown(EventKind.DEATH)) == 1


def test_witch_learns_role_and_finding_of_her_puppet() -> None:
    table = table_with("witch")
    table.night({"witch": ("control", "sheriff", "mafioso")})

    assert table.findings("witch") == ["a Sheriff", "suspicious"]
    assert table.findings("sheriff") == ["suspicious"]
    assert table.told("sheriff", EventKind.CONTROLLED)


def test_controlled_escort_blocks_whom_the_witch_wants() -> None:
    table = table_with("witch", "escort")
    table.night(
        {
            "witch": ("control", "escort", "sheriff"),
            "escort": ("block", "doctor"),
            "sheriff": ("interrogate", "mafioso"),
        }
    )

    assert table.told("sheriff", EventKind.BLOCKED)
    assert not table.told("doctor", EventKind.BLOCKED)


def test_doctor_made_to_heal_himself_keeps_his_self_heal() -> None:
    table = table_with("witch")
    table.night({"witch": ("control", "doctor", "doctor")})
    table.go_to(Phase.NIGHT)

    table.act("doctor", "heal", "doctor")


def test_arsonist_made_to_douse_himself_ignites() -> None:
    table = table_with("witch", "arsonist")
    table.mark("sheriff", DOUSED)
    table.night({"witch": ("control", "arsonist", "arsonist")})

    assert table.causes("sheriff") == ("arsonist",)


def test_blocker_of_an_arsonist_is_doused_and_the_arsonist_learns_who_came() -> None:
    table = table_with("arsonist", "escort")
    table.night({"arsonist": ("douse", "sheriff"), "escort": ("block", "arsonist")})

    assert DOUSED in table.player("escort").marks
    assert DOUSED not in table.player("sheriff").marks
    assert table.told("arsonist", EventKind.VISITED) == [{"visitors": [table.name("escort")]}]


def test_doused_arsonist_burns_in_anothers_fire_unless_he_washes() -> None:
    table = table_with("arsonist", "arsonist")
    table.night({"arsonist": ("douse", "arsonist 2")})
    assert table.told("arsonist 2", EventKind.DOUSED)

    table.night({"arsonist": ("ignite",), "arsonist 2": ("wash",)})
    assert table.is_alive("arsonist 2")


@pytest.mark.parametrize(("flag", "target_dies"), [("both", True), ("blocker", False)])
def test_blocked_serial_killer_kills_the_blocker_and_by_the_flag_his_target(flag: str, target_dies: bool) -> None:
    table = table_with("serial killer", "escort", options=Options(sk_blocked=flag))
    table.night({"serial killer": ("stab", "sheriff"), "escort": ("block", "serial killer")})

    assert table.causes("escort") == ("serial killer",)
    assert table.is_alive("sheriff") != target_dies


def test_cautious_serial_killer_is_blocked_like_anybody() -> None:
    table = Table(("serial killer", "escort", *CROWD))
    table.act("serial killer", "caution")
    table.night({"serial killer": ("stab", "sheriff"), "escort": ("block", "serial killer")})

    assert table.is_alive("escort")
    assert table.is_alive("sheriff")
    assert table.told("serial killer", EventKind.CAUTION) == [{"is_cautious": True}]


def test_werewolf_stays_quiet_on_other_nights_and_rages_at_home_when_blocked() -> None:
    table = table_with("werewolf", "escort")
    assert table.seat("werewolf") not in table.state.order

    table.night({"escort": ("block", "werewolf")})
    assert table.is_alive("escort")
    table.night({"werewolf": ("rampage", "sheriff"), "escort": ("block", "werewolf")})
    assert table.causes("escort") == ("werewolf",)
    assert table.is_alive("sheriff")


def test_werewolf_mauls_owner_and_visitors_of_one_house() -> None:
    table = table_with("werewolf", day=2)
    table.night({"werewolf": ("rampage", "sheriff"), "investigator": ("investigate", "sheriff")})

    assert table.causes("sheriff") == table.causes("investigator") == ("werewolf",)


def test_sheriff_finds_a_werewolf_on_a_full_moon_only() -> None:
    table = table_with("werewolf")
    table.night({"sheriff": ("interrogate", "werewolf")})
    table.night({"sheriff": ("interrogate", "werewolf"), "werewolf": ("rampage", "doctor")})

    assert table.findings("sheriff") == ["not suspicious", "suspicious"]


def test_full_moon_is_announced_where_a_werewolf_may_be() -> None:
    moons = []
    for roles in ((*CROWD, "werewolf"), CROWD):
        table = Table(roles)
        table.go_to(Phase.NIGHT, day=3)
        moons.append(len(table.shown(EventKind.FULL_MOON)))

    assert moons == [1, 0]


def test_survivors_vest_saves_him_four_times() -> None:
    table = table_with("survivor")
    for left in (3, 2, 1, 0):
        table.night({"survivor": ("vest",), "mafioso": ("kill", "survivor")})
        assert table.is_alive("survivor")
        assert table.player("survivor").uses == {"vest": left}
    table.night({"mafioso": ("kill", "survivor")})

    assert not table.is_alive("survivor")


def test_amnesiac_remembers_in_public_and_starts_afresh() -> None:
    table = table_with("amnesiac", "vigilante")
    table.bury("vigilante")
    table.night({})
    table.night({"amnesiac": ("remember", "vigilante")})

    player = table.player("amnesiac")
    assert (player.role, player.faction, player.uses) == ("vigilante", Faction.TOWN, {"shoot": 3})
    assert table.shown(EventKind.REMEMBERED) == [{"role": "Vigilante"}]


def test_amnesiac_who_joins_the_mafia_is_made_known_to_it_and_it_to_him() -> None:
    table = table_with("amnesiac", "framer")
    table.bury("framer")
    table.night({})
    table.night({"amnesiac": ("remember", "framer")})

    assert table.told("mafioso", EventKind.TEAM_JOINED) == [{"player": table.name("amnesiac"), "role": "Framer"}]
    assert table.told("amnesiac", EventKind.TEAM)
    assert len(table.told("mafioso", EventKind.TEAM)) == 1


def test_amnesiac_who_is_bitten_becomes_a_vampire_and_remembers_nothing() -> None:
    table = table_with("amnesiac", "framer", "vampire")
    table.bury("framer")
    table.night({})
    table.night({"amnesiac": ("remember", "framer"), "vampire": ("bite", "amnesiac")})

    assert table.player("amnesiac").role == "vampire"
    assert not table.shown(EventKind.REMEMBERED)
    assert all("Framer" not in str(data) for data in table.told("amnesiac", EventKind.TEAM))


@pytest.mark.parametrize(("flag", "is_free"), [("any_free", True), ("no_unique_town", False)])
def test_amnesiac_may_remember_a_free_unique_role_by_the_flag(flag: str, is_free: bool) -> None:
    table = Table(("amnesiac", "veteran", *CROWD), options=Options(amnesiac=flag))
    table.bury("veteran")
    table.go_to(Phase.NIGHT, day=2)

    assert (table.seat("amnesiac") in table.state.order) == is_free


def test_list_of_an_amnesiac_does_not_tell_that_somebody_holds_a_unique_role() -> None:
    table = table_with("amnesiac")
    table.night({})
    table.lynch("godfather")
    assert table.player("mafioso").role == "godfather"
    table.night({"amnesiac": ("remember", "godfather")}, day=2)

    assert table.player("amnesiac").role == "amnesiac"
    assert table.told("amnesiac", EventKind.FAILED) == [{"target": table.name("godfather")}]


def test_bite_turns_the_harmless_and_the_next_night_nobody_bites() -> None:
    table = table_with("vampire", "vampire")
    table.night({"vampire": ("bite", "sheriff"), "vampire 2": ("bite", "sheriff")})

    assert table.player("sheriff").role == "vampire"
    assert table.told("sheriff", EventKind.TEAM)
    assert table.told("vampire", EventKind.TEAM_JOINED) == [{"player": table.name("sheriff"), "role": "Vampire"}]
    table.go_to(Phase.NIGHT)
    assert not {table.seat("vampire"), table.seat("sheriff")} & set(table.state.order)
    table.night({})
    table.go_to(Phase.NIGHT)
    assert table.seat("sheriff") in table.state.order


@pytest.mark.parametrize(("victim", "cause"), [("mafioso", ("vampire",)), ("godfather", ()), ("executioner", ())])
def test_bite_attacks_those_it_cannot_turn(victim: str, cause: tuple[str, ...]) -> None:
    table = table_with("vampire", "executioner")
    table.night({"vampire": ("bite", victim)})

    assert table.causes(victim) == cause
    assert table.player(victim).role == victim


def test_healed_player_is_not_turned() -> None:
    table = table_with("vampire")
    table.night({"vampire": ("bite", "sheriff"), "doctor": ("heal", "sheriff")})

    assert table.player("sheriff").role == "sheriff"


def test_four_vampires_kill_and_whoever_bites_a_hunter_dies() -> None:
    table = table_with("vampire", "vampire", "vampire", "vampire")
    table.night({"vampire": ("bite", "sheriff")})
    assert table.causes("sheriff") == ("vampire",)

    table = table_with("vampire", "vampire hunter")
    table.night({"vampire": ("bite", "vampire hunter")})
    assert table.causes("vampire") == ("staked",)


def test_conversion_breaks_the_quiet() -> None:
    table = table_with("vampire", day=8)
    table.night({"vampire": ("bite", "sheriff")})

    assert table.state.quiet_cycles == 0
    table.night({})
    assert table.state.quiet_cycles == 1


@pytest.mark.parametrize(
    ("pair", "winner"),
    [
        (("arsonist", "mafioso"), "arsonist"),
        (("arsonist", "serial killer"), "arsonist"),
        (("serial killer", "godfather"), "serial killer"),
        (("werewolf", "serial killer"), "werewolf"),
        (("consort", "escort"), "mafia"),
        (("godfather", "transporter"), "mafia"),
        (("mafioso", "transporter"), "town"),
        (("serial killer", "sheriff"), None),
        (("serial killer", "jailor"), None),
    ],
)
def test_stalemates_of_two_are_awarded(pair: tuple[str, str], winner: str | None) -> None:
    table = Table((*pair, "doctor"))
    table.bury("doctor")

    result = check(table.state)
    assert (result.winners if result else None) == ((winner,) if winner else None)


def test_game_goes_on_while_an_armed_vigilante_and_a_witch_live() -> None:
    table = Table(("vigilante", "witch", "sheriff", "godfather"))
    table.bury("godfather")
    assert check(table.state) is None

    table = Table(("sheriff", "witch", "doctor", "godfather"))
    table.bury("godfather")
    result = check(table.state)
    assert result is not None
    assert result.winners == ("town",)


def test_witch_wins_with_whoever_beats_the_town() -> None:
    table = Table(("witch", "serial killer", "sheriff"))
    table.night({"serial killer": ("stab", "sheriff")})

    assert table.state.result is not None
    assert table.state.result.winners == ("serial killer",)
    assert has_won(table.state, table.player("witch"))


def test_capped_game_has_no_survivors() -> None:
    table = Table((*CROWD, "survivor"), options=Options(max_days=2))
    while table.state.result is None:
        table.end_round()

    assert table.state.result.ending == "capped"
    assert not has_won(table.state, table.player("survivor"))


def test_pair_must_name_two_players_each_from_its_list() -> None:
    table = table_with("witch", "retributionist")
    for whom in (("sheriff",), ("sheriff", "doctor", "mafioso")):
        with pytest.raises(IllegalActError, match="must name two players"):
            table.act("witch", "control", *whom)
    with pytest.raises(IllegalActError, match="the first player of control must be one of"):
        table.act("witch", "control", "witch", "sheriff")
