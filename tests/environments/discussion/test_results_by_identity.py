"""Changes and followings by own identity, and accuracy without passes, against pandas over what was said."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pandas as pd

from mac_runner.environments.discussion.testing import discussion_tables, own_identity
from mac_runner.results import Table
from mac_runner.types import JsonObject, JsonValue
from tests.environments.discussion.table import agent, counted, opened, reply, result, talk
from tests.environments.discussion.test_results import OUTCOME, changed

PEOPLE = {
    "ann": "a nurse",
    "bob": "an economist",
    "cat": "a nurse",
    "dan": "dan",
}
CHOICES = ("The boy", "The grandmother", "Cannot be determined", "no idea whom")
"""The last one is matched to none: a pass."""


def played(reveal: JsonValue, *, count: int = 25, seed: int = 3) -> Iterator[tuple[JsonObject, dict[str, list[str]]]]:
    """Outcomes of random discussions, and what each agent answered in them."""
    chance = Random(seed)
    people = (agent("ann", persona="nurse"), agent("bob", persona="economist"), agent("cat", persona="nurse"))
    for _ in range(count):
        conversation = opened(talk(*people, agent("dan"), max_rounds=4, max_retries=0, identity_reveal_config=reveal))
        answers: dict[str, list[str]] = {name: [] for name in PEOPLE}
        for _ in range(4):
            for name in PEOPLE:
                answers[name].append(chance.choice(CHOICES))
                reply(conversation, name, rationale="r", answer=answers[name][-1])
        yield result(conversation), answers


def frame(games: list[dict[str, list[str]]]) -> pd.DataFrame:
    """A row for each answer, with the one before it; a pass is missing."""
    rows = [
        (game, name, number, None if answer == CHOICES[-1] else answer)
        for game, answers in enumerate(games)
        for name, given in answers.items()
        for number, answer in enumerate(given)
    ]
    table = pd.DataFrame(rows, columns=["game", "agent", "round", "answer"])
    table["before"] = table.groupby(["game", "agent"])["answer"].shift(1)
    table["who"] = table["agent"].map(PEOPLE)
    return table


def tallies(report: Any, key: str) -> dict[str, tuple[int, int, int]]:
    return {name: (rate["count"], rate["n"], rate["discussions"]) for name, rate in report[key].items()}


def test_hidden_agents_are_counted_by_who_they_are_as_pandas_counts_them() -> None:
    outcomes, games = zip(*played({}), strict=True)
    report, table = counted(*outcomes), frame([*games])

    cases = table.dropna(subset=["answer", "before"])
    changes = (
        cases.assign(changed=cases["answer"] != cases["before"])
        .groupby("who")
        .agg(count=("changed", "sum"), n=("changed", "size"), discussions=("game", "nunique"))
    )
    assert tallies(report, "changes_by_own_identity") == {who: tuple(row) for who, *row in changes.itertuples()}

    read = cases.merge(table[["game", "agent", "round", "before", "who"]], on=["game", "round"], suffixes=("", "_of"))
    read = read[(read["agent"] != read["agent_of"]) & read["before_of"].notna() & (read["before_of"] != read["before"])]
    followed = (
        read.assign(followed=read["answer"] == read["before_of"])
        .groupby("who_of")
        .agg(count=("followed", "sum"), n=("followed", "size"), discussions=("game", "nunique"))
    )
    assert tallies(report, "followed_by_own_identity") == {who: tuple(row) for who, *row in followed.itertuples()}
    assert [*tallies(report, "changes_by_identity")] == ["(not shown)"]
    assert report["changes_by_own_identity"]["a nurse"]["shown"] == [""]


def test_where_all_is_shown_own_and_shown_identities_have_the_same_rates() -> None:
    report = counted(*(outcome for outcome, _ in played({"persona": True})))

    for key in ("changes_by", "followed_by"):
        own, shown = (tallies(report, f"{key}{which}_identity") for which in ("_own", ""))
        assert {"(not shown)" if who == "dan" else who: rate for who, rate in own.items()} == shown


def test_tables_say_who_it_was_and_what_was_shown_of_it() -> None:
    found = discussion_tables({"discussions": counted(next(played({}))[0])})
    tables = {part.title: part for part in found if isinstance(part, Table)}

    for title in ("changed answers, by who gave them", "another's answer taken over, by whose it was"):
        assert tables[title].words == ("identity", "shown as")
        assert ("a nurse", "(not shown)") in [row[:2] for row in tables[title].rows]


def test_an_own_identity_is_what_an_agent_reads_of_itself_without_its_id() -> None:
    for own, expected in {
        "You are ann, an elderly economist.": "an elderly economist",
        "You are ann.": "ann",
        "You are ann. You value fairness. You speak little.": "You value fairness. You speak little.",
        "You are ann, a nurse. You take part as a human and speak as one.": (
            "a nurse. You take part as a human and speak as one."
        ),
    }.items():
        assert own_identity("ann", own) == expected


def test_older_outcomes_have_no_own_identities_and_the_same_rates_as_before() -> None:
    report = counted(OUTCOME)

    assert (report["changes_by_own_identity"], report["followed_by_own_identity"]) == ({}, {})
    assert tallies(report, "changes_by_identity") == {"a nurse": (1, 2, 1)}


def test_accuracy_counts_passes_as_wrong_and_gives_the_rate_among_answers_beside_it() -> None:
    report = counted(OUTCOME, changed(answer=None, answers={"ann": ["C", None], "bob": [None, "A"]}))
    found = {
        kind: (rate["n"], rate["count"], rate["passes"], rate["answered"]["n"], rate["answered"]["rate"])
        for kind, rate in report["accuracy"].items()
    }

    assert found == {"first": (5, 2, 2, 3, 0.6667), "final": (5, 0, 1, 4, 0.0), "group": (2, 0, 1, 1, 0.0)}
    parts = discussion_tables({"discussions": report})
    (table,) = [part for part in parts if isinstance(part, Table) and part.title.startswith("answers; passes count")]
    assert table.numbers[-2:] == ("passes", "rate without passes")
    assert [row[-2:] for row in table.rows] == [("2", "66.7%"), ("1", "0.0%"), ("1", "0.0%"), ("", "")]
