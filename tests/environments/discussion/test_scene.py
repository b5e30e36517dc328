"""A discussion as pages show it agrees with its outcome and its record."""

from __future__ import annotations

from collections import Counter, defaultdict

from mac_runner.environments.discussion.testing import BIASED, PASSED, REFUSED, RIGHT, UNSCORED, WRONG, stances, verdict
from mac_runner.registry import results_specs
from mac_runner.store.testing import entry
from mac_runner.types import JsonObject
from mac_runner.views.testing import flow_page, whole_view
from tests.environments.discussion.table import everything
from tests.views.playing import experiment, transcripts


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
        for agent, given in entry(outcome, "answers", dict).items():
            assert isinstance(given, list)
            assert [cell.text == "–" for cell in rows[agent]] == [answer is None for answer in given], agent
            for cell, answer in zip(rows[agent], given, strict=True):
                assert cell.event is not None
                assert view.events[cell.event].agent == agent
                if outcome["correct_answer_id"] is not None and answer is not None:
                    assert (cell.verdict == "right") == (answer == outcome["correct_answer_id"])
                    seen.add(cell.verdict)
        assert len(table.heads) == outcome["rounds"]
    assert {"right", "wrong"} <= seen


def test_an_arrow_is_drawn_where_the_outcome_counts_that_one_agent_followed_another() -> None:
    arrows = 0
    for transcript in played():
        view = whole_view(transcript)
        moved = entry(entry(transcript, "outcome", dict), "moved", dict)
        table = next(table for table in view.tables if table.name == "rounds")
        names = [row.head.text for row in table.rows]
        drawn = Counter((names[arrow.from_row], names[arrow.to_row]) for arrow in table.arrows)
        counted = {
            (author, reader): share[0]
            for author, readers in moved.items()
            if isinstance(readers, dict)
            for reader, share in readers.items()
            if isinstance(share, list) and share[0]
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
    steps: defaultdict[int, int] = defaultdict(int)
    for row in rows:
        found = stances(entry(row, "outcome", dict))
        assert found is not None
        for held in found.by_agent.values():
            for number in range(1, len(held)):
                steps[number] += 1

    assert page.conversations == len(rows)
    counted: defaultdict[int, int] = defaultdict(int)
    for flow in page.flows:
        counted[flow.round] += flow.count
    assert counted == steps
    assert {flow.before for flow in page.flows} <= {stance.name for stance in page.stances}
    assert page.moved is not None
    assert page.rounds == max(counted) + 1


def test_the_flow_of_no_discussion_is_empty() -> None:
    assert flow_page([]).flows == ()
    assert results_specs()["game"].stances is None
