"""The order of phases, rounds, votes and trials."""

from __future__ import annotations

from itertools import groupby

import pytest

from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.rules import IllegalActError
from mac_runner.environments.town_of_salem.game.state import Options, Phase
from tests.environments.town_of_salem.table import ELEVEN, Table

CLASSIC = ELEVEN[:10]


def phases(table: Table, rounds: int) -> list[str]:
    """The phases of the next rounds as `day phase` with nobody doing anything."""
    seen = []
    for _ in range(rounds):
        seen.append(f"{table.state.day} {table.state.phase}")
        table.end_round()
    return seen


def test_first_day_is_a_greeting_without_votes() -> None:
    assert phases(Table(CLASSIC), 4) == ["1 greeting", "1 night chat", "1 night chat", "1 night"]


def test_later_days_discuss_then_vote_then_sleep() -> None:
    table = Table(CLASSIC)
    table.night(day=1)

    expected = ["2 discussion", "2 discussion", "2 voting", "2 night chat", "2 night chat", "2 night", "3 discussion"]
    assert phases(table, 7) == expected


def test_rounds_of_each_phase_are_as_many_as_the_calendar_says() -> None:
    options = Options(greeting_rounds=2, discussion_rounds=3, vote_rounds=2, night_chat_rounds=1)
    table = Table(CLASSIC, options=options)
    seen = []
    while table.state.day < 3:
        seen.append(table.state.phase)
        if table.state.phase is Phase.VOTING:
            table.act(table.state.due[0], "speak", text="not silent")
        table.end_round()

    counted = [f"{phase} {len(list(rounds))}" for phase, rounds in groupby(seen)]
    night = ["night chat 1", "night 1"]
    assert counted == ["greeting 2", *night, "discussion 3", "voting 2", *night]


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


def test_reaching_the_threshold_opens_the_trial_at_once_and_wipes_the_votes() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.VOTING)
    voters = [seat for seat in table.state.due if seat != table.seat("mafioso")]
    for seat in voters[:5]:
        table.act(seat, "vote", "mafioso")
    assert table.is_in(Phase.VOTING)

    table.act(voters[5], "vote", "mafioso")
    assert table.is_in(Phase.DEFENCE)
    assert table.state.order == (table.seat("mafioso"),)
    assert table.state.votes == {}
    assert table.shown(EventKind.VOTE)[-1]["count"] == table.shown(EventKind.VOTE)[-1]["needed"] == 6


def test_vote_may_be_moved_and_taken_back() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.VOTING)
    voter = table.state.due[0]
    first, second = (seat for seat in table.state.due[1:3])
    table.act(voter, "vote", first)
    table.end_round()
    with pytest.raises(IllegalActError):
        table.act(voter, "vote", first)
    table.act(voter, "vote", second)
    assert table.state.votes == {voter: second}

    table.end_round()
    table.act(voter, "unvote")
    assert table.state.votes == {}
    assert table.shown(EventKind.UNVOTE) == [{"player": table.name(voter), "target": table.name(second)}]


def test_nobody_votes_for_themselves_or_the_dead() -> None:
    table = Table(CLASSIC)
    table.night({"mafioso": ("kill", "doctor")})
    table.go_to(Phase.VOTING)

    for target in ("sheriff", "doctor"):
        with pytest.raises(IllegalActError, match="must name one of"):
            table.act("sheriff", "vote", target)


def test_whisper_keeps_the_voting_open_and_a_silent_round_ends_it() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.VOTING)
    table.act("sheriff", "whisper", "doctor", text="psst")
    table.end_round()
    assert table.is_in(Phase.VOTING)

    table.end_round()
    assert table.is_in(Phase.NIGHT_CHAT)


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


def test_at_least_one_vote_round_is_left_after_a_trial() -> None:
    table = Table(CLASSIC, options=Options(vote_rounds=1))
    table.judge("mafioso")

    assert table.is_in(Phase.VOTING)
    assert table.state.vote_rounds_left == 1


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


def test_accused_alone_defends_and_all_others_judge() -> None:
    table = Table(CLASSIC)
    table.accuse("mafioso")
    assert table.state.order == (table.seat("mafioso"),)

    table.end_round()
    assert table.is_in(Phase.JUDGEMENT)
    assert set(table.state.order) == set(range(10)) - {table.seat("mafioso")}


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


def test_night_asks_only_those_who_have_something_to_choose() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.NIGHT)

    asked = {table.state.players[seat].role for seat in table.state.order}
    assert asked == {"sheriff", "doctor", "investigator", "godfather", "framer", "escort", "mafioso"}
