"""Who hears what: speech, whispers, night channels, the jail, wills and death notes."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from mac_runner.environments.town_of_salem.game.channels import channels
from mac_runner.environments.town_of_salem.game.events import Event, EventKind
from mac_runner.environments.town_of_salem.game.rules import IllegalActError
from mac_runner.environments.town_of_salem.game.state import Phase
from tests.environments.town_of_salem.table import ELEVEN, Table, Who

CLASSIC = ELEVEN[:10]


def heard(table: Table, text: str) -> Event:
    """The one event in which `text` was said."""
    (event,) = (event for event in table.events if event.data.get("text") == text)
    return event


def audience(table: Table, text: str) -> set[int]:
    found = heard(table, text).audience
    return set(range(len(table.state.players))) if found is None else set(found)


def seats(table: Table, *whom: Who) -> set[int]:
    return {table.seat(who) for who in whom}


def test_speech_by_day_is_heard_by_all_and_a_whisper_is_seen_by_all_and_heard_by_two() -> None:
    table = Table(CLASSIC)
    table.act("medium", "speak", text="hello")
    table.act("sheriff", "whisper", "doctor", text="psst")

    assert heard(table, "hello").audience is None

    assert audience(table, "psst") == seats(table, "sheriff", "doctor")
    assert table.shown(EventKind.WHISPER_SEEN) == [{"player": table.name("sheriff"), "to": table.name("doctor")}]


@pytest.mark.parametrize("phase", [Phase.DEFENCE, Phase.JUDGEMENT, Phase.LAST_WORDS, Phase.NIGHT_CHAT, Phase.NIGHT])
def test_whispers_belong_to_the_open_day(phase: Phase) -> None:
    table = Table(CLASSIC)
    if phase in (Phase.DEFENCE, Phase.JUDGEMENT):
        table.accuse("mafioso")
    elif phase is Phase.LAST_WORDS:
        table.judge("mafioso", others="guilty")
    table.go_to(phase)

    with pytest.raises(IllegalActError, match="cannot be chosen now"):
        table.act(table.state.order[0], "whisper", "sheriff", text="psst")


def test_dead_cannot_be_whispered_to() -> None:
    table = Table(CLASSIC)
    table.bury("doctor")

    with pytest.raises(IllegalActError, match="must name one of"):
        table.act("sheriff", "whisper", "doctor", text="psst")


def test_mafia_talks_among_itself_at_night() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.NIGHT_CHAT)
    table.act("framer", "speak", text="whom?")

    assert audience(table, "whom?") == seats(table, "godfather", "framer", "mafioso")
    assert heard(table, "whom?").data["player"] == table.name("framer")


def test_lone_member_of_the_mafia_has_nobody_to_talk_to() -> None:
    table = Table(CLASSIC)
    table.bury("framer", "mafioso", "medium")
    table.go_to(Phase.NIGHT)

    assert channels(table.state) == ()


def test_jailor_is_only_jailor_to_the_prisoner() -> None:
    table = Table(CLASSIC)
    table.act("jailor", "jail", "sheriff")
    table.go_to(Phase.NIGHT_CHAT)
    table.act("jailor", "speak", text="who are you?")
    table.act("sheriff", "speak", text="the Sheriff")

    for text, name in (("who are you?", "Jailor"), ("the Sheriff", table.name("sheriff"))):
        assert audience(table, text) == seats(table, "jailor", "sheriff")
        assert heard(table, text).data["player"] == name
    told = [event for event in table.events if event.audience and table.seat("sheriff") in event.audience]
    assert all(table.name("jailor") not in str(event.data) for event in told)


def test_jail_choice_is_told_to_the_jailor_alone_and_may_be_replaced() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.DISCUSSION)
    table.act("jailor", "jail", "doctor")
    table.end_round()
    table.act("jailor", "jail", "sheriff")
    chosen = [event for event in table.events if event.kind is EventKind.JAIL_CHOSEN]
    table.go_to(Phase.NIGHT)

    assert [event.audience for event in chosen] == [frozenset({table.seat("jailor")})] * 2
    assert table.state.prisoner == table.seat("sheriff")


def test_jailed_member_is_missed_by_the_team_and_out_of_its_chat() -> None:
    table = Table(CLASSIC)
    table.act("jailor", "jail", "framer")
    table.go_to(Phase.NIGHT_CHAT)
    table.act("godfather", "speak", text="where is he?")

    for member in ("godfather", "mafioso"):
        assert table.told(member, EventKind.TEAMMATE_JAILED) == [{"player": table.name("framer")}]
    assert not table.told("framer", EventKind.TEAMMATE_JAILED)
    assert audience(table, "where is he?") == seats(table, "godfather", "mafioso")
    with pytest.raises(IllegalActError, match="no such channel"):
        table.act("framer", "speak", text="here", choice="mafia")


def test_jail_is_empty_after_a_night_and_where_its_jailor_or_the_one_chosen_is_lynched() -> None:
    for lynched in ("framer", "jailor"):
        table = Table(CLASSIC)
        table.act("jailor", "jail", "doctor")
        table.night(day=1)
        assert table.state.prisoner is None
        table.act("jailor", "jail", "framer")
        table.lynch(lynched)

        assert table.state.prisoner is None
        table.go_to(Phase.NIGHT)
        assert table.seat("jailor") not in table.state.order


def test_medium_talks_with_the_dead_and_is_only_medium_to_them() -> None:
    table = Table(CLASSIC)
    table.bury("sheriff", "framer")
    table.go_to(Phase.NIGHT_CHAT)
    table.act("medium", "speak", text="who killed you?")
    table.act("sheriff", "speak", text="the Mafia")

    for text in ("who killed you?", "the Mafia"):
        assert audience(table, text) == seats(table, "medium", "sheriff", "framer")
    assert heard(table, "who killed you?").data["player"] == "Medium"


def test_dead_without_a_medium_are_not_asked() -> None:
    table = Table(CLASSIC)
    table.bury("medium", "sheriff")
    table.go_to(Phase.NIGHT_CHAT)

    assert not seats(table, "medium", "sheriff") & set(table.state.order)


def test_jailed_medium_hears_the_dead_but_speaks_to_the_jailor_alone() -> None:
    table = Table(CLASSIC)
    table.bury("sheriff")
    table.act("jailor", "jail", "medium")
    table.go_to(Phase.NIGHT_CHAT)
    table.act("medium", "speak", text="let me out")
    table.act("sheriff", "speak", text="hear me")
    table.end_round()

    assert audience(table, "let me out") == seats(table, "medium", "jailor")
    assert audience(table, "hear me") == seats(table, "medium", "sheriff")
    with pytest.raises(IllegalActError, match="no such channel"):
        table.act("medium", "speak", text="I hear", choice="dead")


def test_dead_medium_talks_once_with_one_of_the_living() -> None:
    table = Table(CLASSIC)
    with pytest.raises(IllegalActError, match="cannot be chosen"):
        table.act("medium", "seance", "sheriff")
    table.night({"mafioso": ("kill", "medium")})
    table.act("medium", "seance", "sheriff")
    table.go_to(Phase.NIGHT_CHAT)
    assert table.told("sheriff", EventKind.SEANCE)
    table.act("medium", "speak", text="beware")
    table.act("sheriff", "speak", text="of whom?")

    for text in ("beware", "of whom?"):
        assert audience(table, text) == seats(table, "medium", "sheriff")
    assert heard(table, "beware").data["player"] == "Medium"
    table.go_to(Phase.DISCUSSION)
    assert table.seat("medium") not in table.state.order


def test_speaker_in_several_channels_chooses_one_and_is_heard_there_alone() -> None:
    table = Table(CLASSIC)
    table.night({"mafioso": ("kill", "medium")})
    table.act("medium", "seance", "framer")
    table.go_to(Phase.NIGHT_CHAT)
    table.act("framer", "speak", text="yes, mistress", choice="seance")
    table.act("godfather", "speak", text="whom?")

    assert audience(table, "yes, mistress") == seats(table, "medium", "framer")
    assert audience(table, "whom?") == seats(table, "framer", "godfather", "mafioso")


def test_words_for_a_closed_channel_are_refused_by_day() -> None:
    table = Table(CLASSIC)

    with pytest.raises(IllegalActError, match="no such channel"):
        table.act("framer", "speak", text="let us kill the Sheriff", choice="mafia")


def test_will_of_the_lynched_is_shown_as_it_last_stood_with_the_role() -> None:
    table = Table(CLASSIC)
    table.act("framer", "will", text="first")
    table.act("framer", "will", text="I did it")
    table.lynch("framer")

    death = table.shown(EventKind.DEATH)[-1]
    assert (death["role"], death["will"], death["causes"]) == ("Framer", "I did it", ["lynch"])


def test_will_of_the_condemned_is_frozen() -> None:
    table = Table(CLASSIC)
    table.act("framer", "will", text="I did it")
    table.judge("framer", others="guilty")

    with pytest.raises(IllegalActError, match="cannot be chosen"):
        table.act("framer", "will", text="I did not")


def test_writing_a_will_does_not_use_up_the_turn() -> None:
    table = Table(CLASSIC)
    table.act("sheriff", "will", text="mine")

    table.act("sheriff", "speak", text="hello")
    with pytest.raises(IllegalActError, match="already acted"):
        table.act("sheriff", "speak", text="again")


def test_killers_note_is_found_with_the_body_and_his_name_is_not() -> None:
    table = Table(CLASSIC)
    table.act("mafioso", "death_note", text="with regards")
    table.night({"mafioso": ("kill", "sheriff")})

    (death,) = table.shown(EventKind.DEATH)
    assert death["death_notes"] == ["with regards"]
    assert table.name("mafioso") not in str(death)


def test_only_those_who_kill_leave_notes() -> None:
    table = Table(ELEVEN)
    for role in ELEVEN:
        can_kill = role in ("godfather", "mafioso", "jailor")
        with nullcontext() if can_kill else pytest.raises(IllegalActError, match="cannot be chosen"):
            table.act(role, "death_note", text="x")


def test_cards_and_team_are_told_to_those_they_concern() -> None:
    table = Table(CLASSIC)

    for role in CLASSIC:
        assert table.told(role, EventKind.ROLE_CARD) == [{"role": role.title()}]
        assert len(table.told(role, EventKind.TEAM)) == (role in ("godfather", "framer", "mafioso"))
