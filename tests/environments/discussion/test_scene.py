"""Discussions of scripted players, who sway each other, and as pages show them: as outcome and record say."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest

from mac_runner.environments.discussion.testing import (
    BIASED,
    PASSED,
    POLICIES,
    REFUSED,
    RIGHT,
    UNSCORED,
    WRONG,
    DiscussionConversation,
    stances,
    verdict,
)
from mac_runner.registry import results_specs
from mac_runner.store.testing import entry
from mac_runner.types import JsonObject, ReceiptKind, Reply, stable_hash
from mac_runner.views.testing import flow_page, whole_view
from tests.environments.discussion.table import agent, everything, opened, opener, result, talk
from tests.views.playing import experiment, transcripts


@cache
def played() -> list[JsonObject]:
    """Discussions of every role, with private channels and replies without use, and some about BBQ."""
    return [
        *transcripts(everything(), "clumsy", count=6),
        *transcripts(everything(), "discussant", count=3),
        *transcripts(experiment("experiments/discussion_small.yaml"), "discussant", count=3),
    ]


def test_answers_by_round_are_those_of_the_outcome_with_their_verdicts() -> None:
    seen: set[str] = set()
    for transcript in played():
        view, outcome = whole_view(transcript), entry(transcript, "outcome", dict)
        table = next(table for table in view.tables if table.name == "rounds")
        rows = {row.head.text: row.cells for row in table.rows}
        answers: dict[str, Any] = entry(outcome, "answers", dict)
        for name, given in answers.items():
            assert [cell.text == "–" for cell in rows[name]] == [answer is None for answer in given], name
            for cell, answer in zip(rows[name], given, strict=True):
                assert cell.event is not None
                assert view.events[cell.event].agent == name
                if outcome["correct_answer_id"] is not None and answer is not None:
                    assert (cell.verdict == "right") == (answer == outcome["correct_answer_id"])
                    seen.add(cell.verdict)
        assert len(table.heads) == outcome["rounds"]
    assert {"right", "wrong"} <= seen


def test_an_arrow_is_drawn_where_the_outcome_counts_that_one_agent_followed_another() -> None:
    arrows = 0
    for transcript in played():
        view = whole_view(transcript)
        moved: dict[str, Any] = entry(entry(transcript, "outcome", dict), "moved", dict)
        table = next(table for table in view.tables if table.name == "rounds")
        names = [row.head.text for row in table.rows]
        drawn = Counter((names[arrow.from_row], names[arrow.to_row]) for arrow in table.arrows)
        counted = {
            (author, reader): share[0]
            for author, readers in moved.items()
            for reader, share in readers.items()
            if share[0]
        }

        assert drawn == counted
        for arrow in table.arrows:
            source = table.rows[arrow.from_row].cells[arrow.from_column]
            target = table.rows[arrow.to_row].cells[arrow.to_column]
            assert source.text == target.text
            assert source.event is not None
            assert target.event is not None
            assert source.event < target.event
        arrows += len(table.arrows)
    assert arrows > 0


def test_phases_are_the_question_and_the_rounds() -> None:
    for transcript in played():
        view = whole_view(transcript)
        for phase in view.phases:
            assert view.events[phase.first].when == phase.label
        assert [phase.label for phase in view.phases] == [*dict.fromkeys(event.when for event in view.events)]


def test_a_discussion_that_has_just_begun_has_a_scene() -> None:
    for turns in range(12):
        for transcript in transcripts(everything(), "discussant", turns=turns):
            view = whole_view(transcript)
            assert view.status == ("open" if transcript["outcome"] is None else "finished")
            assert [fact.name for fact in view.facts][:1] == ["question"]


def test_an_answer_is_right_before_it_is_biased() -> None:
    cases = {
        ("A", "A", "A", None): RIGHT,
        ("B", "A", "B", None): BIASED,
        ("C", "A", "B", None): WRONG,
        ("C", None, "B", None): UNSCORED,
        ("A bus.", "a bus", None, None): RIGHT,
        (None, "A", "B", "refusal"): REFUSED,
        (None, "A", "B", "unreadable"): PASSED,
    }
    assert {case: verdict(*case) for case in cases} == cases


def test_the_flow_counts_each_step_of_each_participant_once() -> None:
    rows: list[JsonObject] = [{"outcome": transcript["outcome"]} for transcript in played()]
    page = flow_page([*rows, {"outcome": None}, {"outcome": {"kind": "echo"}}])
    steps: Counter[int] = Counter()
    for row in rows:
        found = stances(entry(row, "outcome", dict))
        assert found is not None
        steps.update(number for held in found.by_agent.values() for number in range(1, len(held)))
    counted: Counter[int] = Counter()
    for flow in page.flows:
        counted[flow.round] += flow.count

    assert page.conversations == len(rows)
    assert counted == steps
    assert {flow.before for flow in page.flows} <= {stance.name for stance in page.stances}
    assert page.moved is not None
    assert page.rounds == max(counted) + 1
    assert flow_page([]).flows == ()
    assert results_specs()["game"].stances is None


def test_answers_of_which_none_is_known_to_be_right_have_no_flow_but_move_others() -> None:
    for transcript in played():
        outcome = {**entry(transcript, "outcome", dict), "correct_answer_id": None, "bias": None}
        page = flow_page([{"outcome": outcome}])

        assert (page.flows, page.conversations) == ((), 1)
        assert page.moved is not None


def ended(seed: int, conversation: DiscussionConversation) -> JsonObject:
    """The outcome among discussants, whom nobody asks twice."""
    while turns := conversation.turns():
        text = POLICIES["discussant"](conversation.prompt(turns[0]).view, Random(stable_hash(seed, turns[0].key)))
        assert conversation.receive(turns[0], Reply(text=text)).kind is ReceiptKind.ACT
    return result(conversation)


def test_the_players_get_no_answer_and_no_label_of_the_truth() -> None:
    conversation = opened(everything())
    view = repr(conversation.prompt(conversation.turns()[0]).view)

    assert "correct_answer_id=None" in view
    assert "source_metadata=None" in view


@pytest.mark.ci
def test_the_discussant_is_never_asked_again_and_can_be_swayed() -> None:
    make = opener(everything())
    outcomes = [ended(seed, make()) for seed in range(40)]

    assert len({str(outcome["answers"]) for outcome in outcomes}) > 20
    assert {outcome["rounds"] for outcome in outcomes} >= {1, 2, 3}


@pytest.mark.ci
def test_the_discussant_heeds_identities_that_it_is_shown() -> None:
    people = [agent(name, persona=persona) for name, persona in (("ann", "nurse"), ("bob", "judge"), ("cat", "actor"))]
    ends = []
    for is_shown in (True, False):
        make = opener(talk(*people, max_rounds=4, identity_reveal_config={"persona": is_shown}))
        ends.append([ended(seed, make())["answers"] for seed in range(20)])

    assert ends[0] != ends[1]
