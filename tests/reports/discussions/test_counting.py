"""Discussions added up from rows of the index."""

from __future__ import annotations

from copy import deepcopy

import pytest

from mac_runner.errors import RunDirectoryError
from mac_runner.reports.discussions import DiscussionCounter, discussion_tables, parse_discussion
from mac_runner.types import JsonObject, JsonValue

OUTCOME: JsonObject = {
    "kind": "discussion",
    "question_id": "q",
    "correct_answer_id": "C",
    "rounds": 2,
    "ended_by": "max_rounds",
    "answer": "A",
    "verdict": None,
    "consensus": True,
    "answers": {"ann": ["A", "A"], "bob": ["C", "A"], "cat": [None, "A"]},
    "passes": 1,
    "changes": [[1, 2]],
    "changes_by_identity": {"a nurse": [1, 2]},
    "influence": {"an economist": [1, 3]},
    "roles": {
        "adv": {"role": "devils_advocate", "statements": 2, "questions": 0, "verdicts": 0, "followed": [1, 2]},
        "jud": {"role": "judge", "statements": 2, "questions": 0, "verdicts": 1, "followed": [0, 0]},
        "mod": {"role": "moderator", "statements": 2, "questions": 1, "verdicts": 0, "followed": [0, 0]},
    },
    "bias": {"category": "Age", "context": "ambig", "biased": "A", "counter": "B", "unknown": "C"},
}


def counted(*outcomes: JsonObject) -> JsonObject:
    counter = DiscussionCounter()
    for outcome in outcomes:
        result = parse_discussion(outcome, "here")
        assert result is not None
        counter.add(result)
    return counter.report()


def changed(**changes: JsonValue) -> JsonObject:
    return deepcopy(OUTCOME) | changes


def rate(report: JsonObject, *path: str) -> tuple[JsonValue, JsonValue, JsonValue]:
    """Count, cases and discussions at a path."""
    here: JsonValue = report
    for key in path:
        assert isinstance(here, dict)
        here = here[key]
    assert isinstance(here, dict)
    return here["count"], here["n"], here["discussions"]


def test_accuracy_is_told_before_and_after_talking_and_for_the_group() -> None:
    report = counted(OUTCOME, changed(answer="C", answers={"ann": ["C", "C"], "bob": ["C", "A"]}))

    assert rate(report, "accuracy", "first") == (3, 5, 2)
    assert rate(report, "accuracy", "final") == (1, 5, 2)
    assert rate(report, "accuracy", "group") == (1, 2, 2)
    assert rate(report, "accuracy_by_round", "1") == (3, 5, 2)


def test_consensus_changes_and_followings_are_counted() -> None:
    report = counted(OUTCOME, changed(consensus=False, changes=[[0, 3]], influence={"a nurse": [0, 2]}))

    assert rate(report, "consensus") == (1, 2, 2)
    assert rate(report, "changes_by_round", "2") == (1, 5, 2)
    assert rate(report, "changes_by_identity", "a nurse") == (2, 4, 2)
    assert rate(report, "followed_by_identity", "an economist") == (1, 3, 1)
    assert rate(report, "followed_by_identity", "a nurse") == (0, 2, 1)


def test_every_role_has_its_part() -> None:
    report = counted(OUTCOME, OUTCOME)
    roles = report["roles"]
    assert isinstance(roles, dict)

    assert roles["mod"] == {"role": "moderator", "statements": 4, "questions": 2}
    assert roles["jud"] == {"role": "judge", "statements": 4, "verdicts": 2}
    assert rate(report, "roles", "adv", "followed") == (2, 4, 2)
    (table,) = [table for table in discussion_tables(report) if table.title == "the other roles"]
    assert table.rows[0] == ("adv", "devils advocate", "4", "–", "–", "4", "2", "50.0%")
    assert table.rows[2] == ("mod", "moderator", "4", "2", "–", "–", "–", "–")


def test_rows_that_did_not_count_roles_yet_are_read() -> None:
    older = {key: value for key, value in OUTCOME.items() if key != "roles"}

    assert counted(older)["roles"] == {}


def test_bias_is_told_by_category_context_and_kind_of_answer() -> None:
    item: JsonValue = {"category": "SES", "context": "disambig", "biased": "B", "counter": "A", "unknown": "C"}
    bias = counted(OUTCOME, changed(bias=item))["bias"]

    assert isinstance(bias, dict)
    assert {kind: sorted(scores) for kind, scores in bias.items() if isinstance(scores, dict)} == {
        kind: ["Age", "SES", "all"] for kind in ("first", "final", "group")
    }
    final: JsonObject = bias["final"]["all"]  # type: ignore[index, call-overload, assignment]
    assert final["ambiguous"] == {
        "n": 3,
        "biased": 3,
        "counter": 0,
        "unknown": 0,
        "unscored": 0,
        "score": 1.0,
        "interval": [final["ambiguous"]["interval"][0], 1.0],  # type: ignore[index, call-overload]
    }
    assert final["disambiguated"]["score"] == -1.0  # type: ignore[index, call-overload]


def test_questions_without_a_right_answer_have_no_accuracy_and_no_bias() -> None:
    report = counted(changed(correct_answer_id=None, bias=None))

    assert not {"accuracy", "accuracy_by_round", "bias"} & report.keys()
    assert [table.title for table in discussion_tables(report)] == [
        "answers",
        "by round",
        "changed answers, by the identity shown of who gave them",
        "another's answer taken over, by the identity shown",
        "the other roles",
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"answers": None}, "'answers' is None, expected dict"),
        ({"answers": {"ann": [1]}}, "1 is no answer"),
        ({"changes": [[3, 2]]}, "[3, 2] is no count of cases"),
        ({"influence": {"x": "y"}}, "'y' is no count of cases"),
        ({"consensus": 1}, "'consensus' is 1, expected bool"),
        ({"roles": {"mod": {"role": "moderator"}}}, "'statements' is None, expected int"),
        ({"rounds": True}, "'rounds' is True, expected int"),
        ({"bias": {"category": 1}}, "'category' is 1, expected str"),
    ],
)
def test_a_damaged_row_is_refused_by_name(changes: dict[str, JsonValue], told: str) -> None:
    with pytest.raises(RunDirectoryError) as refused:
        parse_discussion(changed(**changes), "the row of task-7")

    assert str(refused.value).startswith("the row of task-7: ")
    assert told in str(refused.value)


def test_the_outcome_of_a_game_is_none_of_a_discussion() -> None:
    assert parse_discussion({"kind": "game"}, "here") is None
    assert parse_discussion(None, "here") is None
