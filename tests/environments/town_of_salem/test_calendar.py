"""Phases, votes and trials, and who hears what, beside the cases of `nights.yaml`."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from mac_runner.environments.town_of_salem.testing import EventKind, IllegalActError, Options, Phase, channels
from tests.environments.town_of_salem.table import ELEVEN, Table

CLASSIC = ELEVEN[:10]


def test_calendar_without_talk_goes_straight_to_votes_and_deeds() -> None:
    options = Options(greeting_rounds=0, discussion_rounds=0, night_chat_rounds=0)
    table = Table(CLASSIC, options=options)
    asked = []
    while table.state.day < 3:
        if table.state.order:
            asked.append(table.state.phase)
        table.end_round()

    assert asked == [Phase.NIGHT, Phase.VOTING, Phase.NIGHT]


def test_more_than_half_of_the_living_must_vote_for_a_trial() -> None:
    for living, needed in ((15, 8), (14, 8), (10, 6), (5, 3), (2, 2)):
        table = Table(("godfather", *["sheriff"] * 14))
        table.bury(*range(living, 15))
        assert table.state.votes_needed == needed, living


def test_voting_goes_on_after_an_acquittal_with_the_rounds_that_are_left() -> None:
    table = Table(CLASSIC, options=Options(vote_rounds=3))
    table.judge("mafioso")
    left = []
    while table.state.phase is Phase.VOTING:
        left.append(table.state.vote_rounds_left)
        table.act("sheriff", "speak", text="go on")
        table.end_round()

    assert left == [2, 1]
    assert table.state.accused is None


def test_third_acquittal_ends_the_day_and_trials_are_counted_anew_each_day() -> None:
    """Two others go free by ballots that are equal."""
    table = Table(CLASSIC)
    for accused in ("mafioso", "mafioso", "sheriff"):
        assert not table.is_in(Phase.NIGHT_CHAT)
        table.judge(accused, {"doctor": "guilty", "escort": "innocent"}, others="abstain")
    assert table.is_in(Phase.NIGHT_CHAT)
    assert len(table.state.living) == 10

    table.judge("mafioso")
    assert [data["trial"] for data in table.shown(EventKind.TRIAL)] == [1, 2, 3, 1]


def test_strictly_more_guilty_than_innocent_condemns() -> None:
    for guilty, innocent, is_lynched in (
        *((1, 0, True), (5, 4, True), (3, 2, True)),
        *((4, 4, False), (4, 5, False), (0, 0, False)),
    ):
        table = Table(CLASSIC)
        judges = [seat for seat in range(10) if seat != table.seat("mafioso")]
        ballots = ["guilty"] * guilty + ["innocent"] * innocent
        table.judge("mafioso", dict(zip(judges, ballots, strict=False)), others="abstain")

        assert table.is_in(Phase.LAST_WORDS) == is_lynched, (guilty, innocent)
        assert table.shown(EventKind.VERDICT) == [{"accused": table.name("mafioso"), "is_guilty": is_lynched}]


def test_ballots_are_shown_to_all_after_the_judgement_and_who_casts_none_abstains() -> None:
    table = Table(CLASSIC)
    table.accuse("framer")
    table.go_to(Phase.JUDGEMENT)
    for judge, choice in (("sheriff", "guilty"), ("doctor", "abstain"), ("escort", "innocent")):
        table.act(judge, "ballot", choice=choice)
    table.end_round()

    (ballots,) = table.shown(EventKind.BALLOTS)
    assert (ballots["guilty"], ballots["innocent"]) == ([table.name("sheriff")], [table.name("escort")])
    judges = ("sheriff", "escort", "framer")
    assert ballots["abstain"] == [player.name for player in table.state.living if player.dealt not in judges]


def test_last_words_come_before_the_body_is_shown() -> None:
    table = Table(CLASSIC)
    table.judge("mafioso", others="guilty")
    assert table.is_alive("mafioso")
    table.act("mafioso", "speak", text="I was framed.")
    table.end_round()

    assert not table.is_alive("mafioso")
    assert table.is_in(Phase.NIGHT_CHAT)
    kinds = [event.kind for event in table.events]
    assert kinds.index(EventKind.DEATH) > len(kinds) - 1 - kinds[::-1].index(EventKind.SPEECH)


def test_order_of_speakers_is_drawn_anew_each_round_by_the_seed() -> None:
    table, other = Table(CLASSIC, seed=1), Table(CLASSIC, seed=2)
    first = table.state.order
    table.go_to(Phase.DISCUSSION)
    second = table.state.order
    table.end_round()

    assert len({first, second, table.state.order, other.state.order}) == 4
    assert Table(CLASSIC, seed=1).state.order == first


def test_nobody_speaks_before_those_they_must_speak_after() -> None:
    gates = {0: frozenset({1, 2}), 1: frozenset({3}), 9: frozenset({0})}
    for seed in range(20):
        table = Table(CLASSIC, seed=seed, speak_after=gates)
        for phase in (Phase.GREETING, Phase.DISCUSSION, Phase.VOTING):
            table.go_to(phase)
            place = {seat: index for index, seat in enumerate(table.state.order)}
            assert all(place[seat] > place[first] for seat, firsts in gates.items() for first in firsts)


def test_gate_on_the_dead_holds_nobody_back() -> None:
    table = Table(CLASSIC, speak_after={0: frozenset({1})})
    table.bury(1)
    table.go_to(Phase.DISCUSSION)

    assert 0 in table.state.order


def test_lone_member_of_the_mafia_has_nobody_to_talk_to() -> None:
    table = Table(CLASSIC)
    table.bury("framer", "mafioso", "medium")
    table.go_to(Phase.NIGHT)

    assert channels(table.state) == ()


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
