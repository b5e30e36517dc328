"""What the roles of the Town do beyond the list of known interactions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mac_runner.environments.town_of_salem.game.events import BEFALLS, EventKind
from mac_runner.environments.town_of_salem.game.rules import IllegalActError
from mac_runner.environments.town_of_salem.game.state import Options, Phase
from mac_runner.environments.town_of_salem.view.narration import line
from tests.environments.town_of_salem.table import Table, Who

CROWD = ("sheriff", "doctor", "investigator", "mafioso", "godfather")


def table_with(*roles: str, options: Options | None = None, day: int = 1) -> Table:
    table = Table((*roles, *CROWD), options=options)
    table.go_to(Phase.NIGHT, day=day)
    return table


def test_lookout_sees_visitors_of_any_house_and_never_himself() -> None:
    table = table_with("lookout")
    table.night({"lookout": ("watch", "sheriff"), "investigator": ("investigate", "sheriff")})
    table.night({"lookout": ("watch", "lookout"), "sheriff": ("interrogate", "lookout")})
    table.night({"lookout": ("watch", "doctor")})

    names = [table.name("investigator"), table.name("sheriff"), "nobody"]
    assert table.findings("lookout") == [f"visited by {name}" for name in names]


def test_lookout_at_the_jail_sees_the_jailor() -> None:
    table = table_with("lookout", "jailor")
    table.go_to(Phase.DISCUSSION)
    table.act("jailor", "jail", "doctor")
    table.night({"lookout": ("watch", "doctor")})

    assert table.findings("lookout") == [f"visited by {table.name('jailor')}"]


def test_spy_learns_where_the_mafia_went_and_not_who() -> None:
    table = table_with("spy", "framer")
    table.night({"framer": ("frame", "doctor"), "godfather": ("kill", "sheriff")})

    (told,) = table.told("spy", EventKind.MAFIA_VISITS)
    visited = told["visited"]
    assert isinstance(visited, list)
    assert sorted(map(str, visited)) == sorted([table.name("doctor"), table.name("sheriff")])


def test_bug_picks_up_what_befell_its_wearer() -> None:
    table = table_with("spy", "escort", "arsonist")
    table.night({"spy": ("bug", "sheriff"), "escort": ("block", "sheriff"), "arsonist": ("douse", "sheriff")})

    happened = [told["happened"] for told in table.told("spy", EventKind.BUGGED)]
    assert happened == ["blocked", "doused"]
    # The one who was doused learns nothing of it.
    assert not table.told("sheriff", EventKind.DOUSED)


def test_everything_a_bug_picks_up_can_be_told_in_words() -> None:
    table = table_with("spy", "escort")
    table.night({"spy": ("bug", "sheriff"), "escort": ("block", "sheriff")})
    (event,) = (event for event in table.events if event.kind is EventKind.BUGGED)

    for kind in BEFALLS:
        data = {**event.data, "happened": kind.value}
        assert "{" not in line(type(event)(kind=event.kind, day=1, phase=event.phase, data=data, audience=frozenset()))


def test_spy_of_the_old_kind_hears_the_mafia_unnamed_and_reads_whispers() -> None:
    table = Table(("spy", *CROWD), options=Options(spy="ears"))
    table.act("sheriff", "whisper", "doctor", text="psst")
    table.go_to(Phase.NIGHT_CHAT)
    table.act("mafioso", "speak", text="whom?")
    table.go_to(Phase.NIGHT)

    assert [told["text"] for told in table.told("spy", EventKind.WHISPER)] == ["psst"]
    assert [told["player"] for told in table.told("spy", EventKind.CHAT)] == ["A member of the Mafia"]
    assert table.seat("spy") not in table.state.order


def test_bodyguards_vest_saves_him_once_without_a_counter() -> None:
    table = table_with("bodyguard")
    table.night({"bodyguard": ("vest",), "mafioso": ("kill", "bodyguard")})
    table.go_to(Phase.NIGHT)

    assert table.is_alive("bodyguard")
    assert table.is_alive("mafioso")
    with pytest.raises(IllegalActError, match="cannot be chosen"):
        table.act("bodyguard", "vest")


def test_bodyguard_moved_behind_his_vest_guards_the_other() -> None:
    table = table_with("bodyguard", "transporter")
    table.night(
        {
            "bodyguard": ("vest",),
            "transporter": ("swap", "bodyguard", "sheriff"),
            "mafioso": ("kill", "bodyguard"),
        }
    )

    assert table.is_alive("sheriff")
    assert table.causes("mafioso") == ("bodyguard",)


def test_bodyguard_does_not_mind_petrol() -> None:
    table = table_with("bodyguard", "arsonist")
    table.night({"bodyguard": ("guard", "sheriff"), "arsonist": ("douse", "sheriff")})

    assert table.is_alive("bodyguard")
    assert table.is_alive("arsonist")


def test_vigilante_has_no_shot_on_the_first_night_and_three_afterwards() -> None:
    table = table_with("vigilante")
    assert table.seat("vigilante") not in table.state.order

    table.night({})
    table.night({"vigilante": ("shoot", "godfather")})
    assert table.player("vigilante").uses["shoot"] == 2
    assert not table.told("vigilante", EventKind.GUILT)


def test_guilt_finds_a_vigilante_in_jail() -> None:
    table = table_with("vigilante", "jailor", day=2)
    table.night({"vigilante": ("shoot", "sheriff")})
    table.act("jailor", "jail", "vigilante")
    table.night({})

    assert table.causes("vigilante") == ("guilt",)


def test_veteran_cannot_be_blocked() -> None:
    table = table_with("veteran", "escort")
    table.night({"veteran": ("alert",), "escort": ("block", "veteran")})

    assert table.causes("escort") == ("veteran",)
    assert table.player("veteran").uses["alert"] == 2


def test_revealed_mayor_neither_whispers_nor_is_whispered_to() -> None:
    table = Table(("mayor", *CROWD))
    table.act("mayor", "reveal")
    table.end_round()
    table.go_to(Phase.DISCUSSION)

    assert table.shown(EventKind.REVEALED) == [{"player": table.name("mayor"), "role": "Mayor"}]
    with pytest.raises(IllegalActError, match="cannot be chosen"):
        table.act("mayor", "whisper", "sheriff", text="psst")
    with pytest.raises(IllegalActError, match="must name one of"):
        table.act("sheriff", "whisper", "mayor", text="psst")
    with pytest.raises(IllegalActError, match="cannot be chosen"):
        table.act("mayor", "reveal")


def test_reveal_that_makes_a_standing_vote_enough_starts_the_trial() -> None:
    table = Table(("mayor", "sheriff", "mafioso", "godfather"))
    table.go_to(Phase.VOTING)
    table.act("mayor", "vote", "mafioso")
    table.end_round()
    table.act("mayor", "reveal")

    assert table.state.phase is Phase.DEFENCE
    assert table.state.accused == table.seat("mafioso")


def test_raised_sheriff_asks_once_more_and_the_retributionist_learns_the_answer() -> None:
    table = Table(("retributionist", "lookout", *CROWD))
    table.bury("sheriff")
    table.night({"retributionist": ("raise", "sheriff", "mafioso"), "lookout": ("watch", "mafioso")})

    assert table.findings("retributionist") == ["suspicious"]
    assert table.findings("lookout") == [f"visited by {table.name('sheriff')}"]
    table.go_to(Phase.NIGHT)
    assert table.seat("retributionist") not in table.state.order


@pytest.mark.parametrize("retri", ["raise", "revive"])
def test_retributionist_is_offered_whom_the_grave_shows_and_finds_out_a_disguise_by_trying(retri: str) -> None:
    table = Table(("retributionist", "disguiser", "veteran", *CROWD), options=Options(retri=retri))
    table.go_to(Phase.NIGHT)
    table.night(
        {
            "disguiser": ("disguise", "mafioso", "doctor"),
            "mafioso": ("kill", "veteran"),
            "veteran": ("alert",),
        }
    )
    targets: tuple[Who, ...] = ("mafioso", "sheriff") if retri == "raise" else ("mafioso",)
    table.night({"retributionist": (retri, *targets)})

    assert table.told("retributionist", EventKind.FAILED) == [{"target": table.name("mafioso")}]
    assert not table.is_alive("mafioso")


def test_grave_of_a_vigilante_does_not_tell_that_the_gun_is_empty() -> None:
    table = table_with("retributionist", "vigilante", "jester")
    table.state = table.state.with_player(replace(table.player("vigilante"), uses={"shoot": 0}))
    table.bury("vigilante")
    table.night({"retributionist": ("raise", "vigilante", "mafioso")}, day=2)

    assert table.told("retributionist", EventKind.FAILED) == [{"target": table.name("vigilante")}]
    assert table.is_alive("mafioso")


def test_retribution_of_the_old_kind_brings_one_back_for_good() -> None:
    table = Table(("retributionist", *CROWD), options=Options(retri="revive"))
    table.bury("doctor")
    table.night({"retributionist": ("revive", "doctor"), "mafioso": ("kill", "retributionist")})

    assert table.is_alive("doctor")
    assert not table.is_alive("retributionist")
    assert table.shown(EventKind.REVIVED) == [{"player": table.name("doctor")}]


def test_who_died_of_guilt_and_is_brought_back_has_paid_for_it() -> None:
    table = Table(("retributionist", "vigilante", *CROWD), options=Options(retri="revive"))
    table.night({"vigilante": ("shoot", "doctor")}, day=2)
    table.night({}, day=3)
    assert table.causes("vigilante") == ("guilt",)
    table.night({"retributionist": ("revive", "vigilante")}, day=4)
    table.night({}, day=5)

    assert table.is_alive("vigilante")


def test_swap_of_one_player_with_himself_moves_nobody() -> None:
    table = table_with("transporter")
    table.night({"transporter": ("swap", "sheriff", "sheriff"), "mafioso": ("kill", "sheriff")})

    assert table.causes("sheriff") == ("mafia",)
    assert not table.told("sheriff", EventKind.TRANSPORTED)


def test_vampire_hunter_stakes_a_vampire_and_clears_the_others() -> None:
    table = table_with("vampire hunter", "vampire", "vampire")
    table.night({"vampire hunter": ("check", "sheriff")})
    table.night({"vampire hunter": ("check", "vampire")})

    assert table.findings("vampire hunter") == ["not a Vampire", "a Vampire"]
    assert table.causes("vampire") == ("staked",)


def test_vampire_hunter_without_vampires_becomes_a_vigilante_with_one_bullet() -> None:
    table = table_with("vampire hunter")
    table.night({})

    assert table.player("vampire hunter").role == "vigilante"
    assert table.player("vampire hunter").uses == {"shoot": 1}


def test_vampire_hunter_hears_vampires_without_their_names() -> None:
    table = Table(("vampire hunter", "vampire", "vampire", *CROWD))
    table.go_to(Phase.NIGHT_CHAT)
    table.act("vampire", "speak", text="whom?")

    assert table.told("vampire hunter", EventKind.CHAT) == [
        {"channel": "vampire", "player": "A Vampire", "text": "whom?"}
    ]
