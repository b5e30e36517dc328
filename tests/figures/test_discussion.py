"""The figures of discussions against a recount from the transcripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from mac_runner.figures.testing import Figure, RunData, Section, Study, run_sections, study_sections
from mac_runner.reports.testing import parse_row
from mac_runner.types import JsonObject
from tests.figures.reports import index_row, run
from tests.views.playing import experiment, transcripts

COUNT = 24


@pytest.fixture(scope="module")
def played() -> list[JsonObject]:
    """Discussions of BBQ questions."""
    overrides = ("_grid=null", "report=null")
    return transcripts(experiment("experiments/bbq_identity.yaml", *overrides), "discussant", count=COUNT)


def data(name: str, found: list[JsonObject]) -> RunData:
    rows = [index_row(number, None, counts=one["counts"]) for number, one in enumerate(found)]
    for each, one in zip(rows, found, strict=True):
        each |= {"status": "finished", "outcome": one["outcome"]}
        parse_row(each)
    return run(name, rows, seed=7, environment="discussion")


def figures(sections: tuple[Section, ...]) -> dict[str, Figure]:
    return {figure.id: figure for section in sections for figure in section.figures}


def answers(transcript: Any) -> Iterator[tuple[int, str, str | None]]:
    """The round, the agent and the answer of each statement of a participant, from the record."""
    for event in transcript["record"]["events"]:
        said = event["data"]
        if said.get("role") == "participant":
            answer = (said.get("said") or {}).get("answer")
            yield int(said["round"]), str(said["agent"]), None if answer is None else str(answer)


def right(transcript: Any) -> str:
    return str(transcript["outcome"]["correct_answer_id"])


@pytest.mark.ci
def test_accuracy_by_round_is_that_of_the_records(played: list[JsonObject]) -> None:
    counted: Counter[tuple[int, bool]] = Counter()
    for transcript in played:
        for number, _, answer in answers(transcript):
            counted[number, answer == right(transcript)] += 1

    figure = figures(run_sections(data("a", played)))["accuracy-by-round"]

    first = min(number for number, _ in counted)
    for row in figure.rows[:-1]:
        number = int(float(row["round"] or 0)) - 1 + first
        n = counted[number, True] + counted[number, False]
        assert row["n"] == n
        assert row["value"] == pytest.approx(counted[number, True] / n, abs=1e-4)
    assert len(figure.rows) == len({number for number, _ in counted}) + 1


@pytest.mark.ci
def test_conformity_is_that_of_the_records(played: list[JsonObject]) -> None:
    """With three participants the majority of the others is what both of them said."""
    counted: Counter[tuple[str, bool]] = Counter()
    for transcript in played:
        given: dict[str, list[str | None]] = {}
        for _, agent, answer in answers(transcript):
            given.setdefault(agent, []).append(answer)
        for agent, own in given.items():
            others = [each for name, each in given.items() if name != agent]
            for number, (before, after) in enumerate(pairwise(own)):
                held = {each[number] for each in others}
                if len(held) == 1 and None not in held and before is not None and after is not None:
                    (majority,) = held
                    place = "with the majority" if before == majority else "alone against the majority"
                    counted[place, after != before if before == majority else after == majority] += 1

    figure = figures(run_sections(data("a", played)))["conformity"]

    assert {str(row["place"]): row["n"] for row in figure.rows} == {
        place: counted[place, True] + counted[place, False] for place, _ in sorted(counted)
    }
    for row in figure.rows:
        share = counted[str(row["place"]), True] / int(row["n"] or 1)
        assert row["value"] == pytest.approx(share, abs=1e-4)


@pytest.mark.ci
def test_transitions_hold_each_participant_once(played: list[JsonObject]) -> None:
    found = figures(run_sections(data("a", played)))
    people = sum(len({agent for _, agent, _ in answers(transcript)}) for transcript in played)

    assert sum(int(row["count"] or 0) for row in found["transitions-correctness"].rows) == people
    stances = [found[f"transitions-stance-{context}"] for context in ("ambiguous", "disambiguated")]
    assert sum(int(row["count"] or 0) for figure in stances for row in figure.rows) <= people


def test_run_against_itself_has_no_difference(played: list[JsonObject]) -> None:
    study = Study(runs=[data("a", played), data("b", played)], baseline="a", is_paired=True)

    assert {row["difference"] for row in figures(study_sections(study))["difference-rates"].rows} == {0.0}


def test_primary_figure_comes_first_and_q_is_never_below_p(played: list[JsonObject]) -> None:
    runs = [data("a", played), data("b", played[::-1]), data("c", played[:12])]
    several = figures(study_sections(Study(runs=runs, primary="consensus")))

    primary = several["difference-consensus"]
    assert [figure.id for figure in several.values() if figure.is_primary] == [primary.id]
    assert next(iter(several)) == primary.id
    rows = [row for name, figure in several.items() if name.startswith("difference") for row in figure.rows]
    assert all(float(row["q"] or 0) >= float(row["p"] or 0) - 1e-9 for row in rows)


def test_no_discussion_makes_no_chapter() -> None:
    assert run_sections(data("a", [])) == ()
