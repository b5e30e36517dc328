"""Samples of questions and orders of choices from the command line: identity, resume, warnings, tables."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import yaml
from scipy.stats import binomtest
from syrupy.assertion import SnapshotAssertion

from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import ROOT, AtOnce, Lab, RunDir, refusals
from tests.cli.test_discussion import QUESTIONS, moderated
from tests.kit import copied


@pytest.fixture
def asked(lab: Lab) -> Lab:
    copied(QUESTIONS, lab.path / "q.jsonl")
    return lab


def sampled(count: JsonValue = "all", **selection: JsonValue) -> JsonObject:
    """The example with a selection of its questions."""
    example = moderated(policy="discussant", more={"questions": {"files": ["q.jsonl"], **selection}})
    conversation = example["conversation_config"]
    assert isinstance(conversation, dict)
    return {**example, "conversation_config": {**conversation, "conversations": count}}


def outcomes(run: RunDir) -> list[Any]:
    """The outcome of each discussion."""
    return [row["outcome"] for row in run.index]


def test_all_is_as_many_conversations_as_there_are_questions(asked: Lab, at_once: AtOnce) -> None:
    counts = {}
    selections: dict[str, JsonObject] = {"files": {}, "sample": {"sample": 30}, "ids": {"ids": ["bbq_age_994"]}}
    for name, selection in selections.items():
        asked.write(sampled(**selection), f"{name}.yaml")
        counts[name] = at_once(f"{name}.yaml", "--dry-run").stdout.split(" asked for")[0].split()[-1]
    flagged = at_once("ids.yaml", "--dry-run", "--set", "conversation_config.conversations=4", "--limit", "3")

    assert counts == {"files": "200", "sample": "30", "ids": "1"}
    assert "3 asked for" in flagged.stdout
    assert "3 conversations over 1 question" in flagged.stdout


def test_all_is_refused_where_there_is_nothing_to_count(lab: Lab, at_once: AtOnce) -> None:
    example = yaml.safe_load((ROOT / "experiments" / "echo.yaml").read_text())
    example["conversation_config"]["conversations"] = "all"
    lab.write(example, "small.yaml")

    process = at_once("small.yaml")

    assert process.returncode == 2
    assert "small.yaml:" in process.stderr
    assert "conversation_config.conversations: found 'all'" in process.stderr


def test_a_sample_resumes_extends_and_is_verified_without_its_files(asked: Lab, at_once: AtOnce) -> None:
    asked.write(sampled(sample=8, stratify=["category", "context_condition"]))
    assert at_once("small.yaml", "--limit", "3", "--quiet").returncode == 0
    assert at_once("small.yaml", "--quiet").returncode == 0

    facts: dict[str, Any] = {line["question_id"]: line for line in map(json.loads, QUESTIONS.read_text().splitlines())}
    found = outcomes(asked.run_dir())
    cells = Counter((facts[one["question_id"]]["source_metadata"]["category"], one["bias"]["context"]) for one in found)
    assert len(found) == 8
    assert set(cells.values()) == {1}

    other = at_once("small.yaml", "--set", "discussion.questions.sample=16")
    assert other.returncode == 2
    assert "sample: 8 there, 16" in other.stderr
    (asked.path / "q.jsonl").unlink()
    asked.verified(asked.run_dir().path)


def test_a_run_recorded_with_the_list_of_files_goes_on_with_the_mapping(asked: Lab, at_once: AtOnce) -> None:
    asked.write(moderated(policy="discussant"))
    assert at_once("small.yaml", "--limit", "2", "--quiet").returncode == 0
    recorded = asked.run_dir().path / "experiment.yaml"
    text = recorded.read_text()
    mapping = "  questions:\n    files:\n    - q.jsonl\n    sample: null\n    stratify: []\n    ids: []\n"
    assert mapping in text
    recorded.write_text(text.replace(mapping, "  questions:\n  - q.jsonl\n"))

    asked.verified(asked.run_dir().path)
    asked.write(sampled(8))
    assert at_once("small.yaml", "--quiet").returncode == 0
    assert len(asked.run_dir().index) == 8


def test_combinations_of_a_grid_discuss_the_same_sample_in_the_same_orders(asked: Lab, at_once: AtOnce) -> None:
    prompt: JsonObject = {"choice_order": "permuted"}
    example = sampled(sample=6)
    assert isinstance(example["discussion"], dict)
    example["discussion"]["prompt"] = prompt
    asked.write({**example, "_grid": {"sweep": {"discussion.max_rounds": [2, 3]}}})
    assert at_once("small.yaml", "--quiet").returncode == 0

    one, two = (
        [(one["question_id"], one["order"]) for one in outcomes(RunDir(path=path.parent))]
        for path in sorted((asked.path / "runs" / "small").glob("*/experiment.yaml"))
    )
    assert len(one) == 6
    assert sorted(one) == sorted(two)
    assert len({tuple(order) for _, order in one}) > 1


@pytest.mark.ci
def test_repeated_questions_are_announced_and_places_are_counted(asked: Lab, at_once: AtOnce) -> None:
    asked.write(sampled(50, sample=40))

    process = at_once("small.yaml", "--no-live", "--set", "discussion.prompt.choice_order=permuted")

    assert "50 conversations over 40 questions" in process.stderr
    assert "50 discussions over 40 questions" in process.stdout
    assert "of the choice" in process.stdout

    positions: Any = asked.run_dir().summary["discussion_positions"]
    for kind, at in (("first", 0), ("final", -1)):
        answers = [
            (one["order"].index(given[at]), one["order"].index(one["correct_answer_id"]))
            for one in outcomes(asked.run_dir())
            for given in one["answers"].values()
        ]
        assert len(answers) == 150
        for place in range(3):
            chosen, right = (positions[kind][what][str(place + 1)] for what in ("chosen", "right"))
            there = [found for found, truth in answers if truth == place]
            assert (chosen["n"], chosen["count"]) == (150, [found for found, _ in answers].count(place))
            assert (right["n"], right["count"]) == (len(there), there.count(place))
            # By question: between the Wilson intervals of a third and of twice as many independent cases.
            third, twice = (
                binomtest(int(chosen["count"] * times), int(chosen["n"] * times)).proportion_ci(method="wilson")
                for times in (0.3, 2)
            )
            assert third.low < chosen["interval"][0] < twice.low
            assert twice.high < chosen["interval"][1] < third.high
            assert chosen["clusters"] == 40
    asked.verified(asked.run_dir().path)


def test_bad_selections_end_with_code_2_and_their_line(
    asked: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    selections: tuple[JsonObject, ...] = (
        {"sample": 4, "stratify": ["categry"]},
        {"ids": ["bbq_age_99"]},
        {"ids": ["bbq_age_994"], "sample": 1},
        {"stratify": ["category"]},
        {"sample": 201},
        {"smaple": 2},
    )
    told = ""
    for selection in selections:
        asked.write(sampled(**selection))
        told += refusals(at_once, ["small.yaml"])

    assert told == snapshot
    assert not (asked.path / "runs").exists()
