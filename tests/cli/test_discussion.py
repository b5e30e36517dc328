"""Discussions from the command line: questions of files and samples of them, to a table, and bad input on the way."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import yaml
from scipy.stats import binomtest
from syrupy.assertion import SnapshotAssertion

from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import QUESTIONS, ROOT, AtOnce, Lab, RunDir, echoes, refusals, scripted

EXPERIMENT = ROOT / "experiments" / "bbq_moderated.yaml"


def moderated(
    *, policy: str = "clumsy", capacity: int = 8, latency_ms: float = 0, more: JsonObject | None = None
) -> JsonObject:
    """The example, shorter, beside its own copy of the questions."""
    example = yaml.safe_load(EXPERIMENT.read_text(encoding="utf-8"))
    assert isinstance(example, dict)
    del example["_grid"]
    example |= {"name": "small", "conversations": 8}
    example["discussion"] |= {"questions": ["q.jsonl"]} | (more or {})
    example["model_definitions"]["panel"] = scripted(policy, capacity=capacity, latency_ms=latency_ms)
    return dict(example)


def test_the_example_plays_to_a_table_with_accuracy_and_bias(lab: Lab, at_once: AtOnce) -> None:
    at_once(EXPERIMENT, "--limit", "12", "--no-live", "--set", "_grid=null").done("Right at first", "as a group")
    at_once("show runs/bbq_moderated --tables").done(
        *("right, group", "consensus at the end", "an elderly economist", "bias scores of BBQ", "Religion")
    )

    run = lab.run_dir("bbq_moderated")
    assert run.summary["discussions"]["n"] == 12
    questions = [json.loads(line)["question_id"] for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    assert [row["outcome"]["question_id"] for row in run.index] == questions[:12]
    lab.verified(run.path)


@pytest.mark.ci
def test_results_do_not_depend_on_how_many_run_at_once_or_on_a_stop(asked: Lab, at_once: AtOnce) -> None:
    asked.write(moderated(capacity=1), "one.yaml")
    asked.write(moderated(capacity=32, latency_ms=20), "slow.yaml")
    at_once("one.yaml --out runs/one --quiet")
    asked.stop_held(20, "slow.yaml", "--out", "runs/small")
    at_once("slow.yaml --out runs/small --quiet").done()

    assert asked.run_dir("one").transcripts == asked.run_dir().transcripts
    assert len(asked.run_dir().transcripts) == 8
    asked.verified(asked.run_dir().path)


@pytest.mark.ci
def test_a_run_is_verified_without_the_files_it_was_made_from(asked: Lab, at_once: AtOnce) -> None:
    asked.write(moderated(more={"prompt": {"template_file": "t.jinja"}}))
    (asked.path / "t.jinja").write_text("{% block system %}{{ identity }} {{ question }}{% endblock %}")
    at_once("small.yaml --quiet").done()
    (asked.path / "q.jsonl").unlink()
    (asked.path / "t.jinja").unlink()

    asked.verified(asked.run_dir().path)


def test_other_questions_are_another_run(asked: Lab, at_once: AtOnce) -> None:
    asked.write(moderated())
    at_once("small.yaml --limit 2 --quiet").done()
    lines = (asked.path / "q.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (asked.path / "q.jsonl").write_text("".join(lines[1:]), encoding="utf-8")

    at_once("small.yaml").refused("discussion.questions_sha256", "--out DIR")


def test_bad_files_end_with_code_2_and_touch_nothing(asked: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    question, *_ = (asked.path / "q.jsonl").read_text(encoding="utf-8").splitlines()
    (asked.path / "bad.jsonl").write_text(f"{question}\n{question.replace('multiple_choice', 'quiz')}\n")
    (asked.path / "bad.jinja").write_text("{% block system %}\n{{ quest }}{% endblock %}")
    wrong: list[JsonObject] = [
        {"questions": ["none.jsonl"]},
        {"questions": ["bad.jsonl"]},
        {"prompt": {"template_file": "bad.jinja"}},
    ]

    assert refusals(at_once, [moderated(more=settings) for settings in wrong]) == snapshot
    assert not (asked.path / "runs").exists()


def test_a_template_that_no_run_could_have_is_bad_input_in_a_dry_run_too(
    asked: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    asked.write(moderated(more={"prompt": {"template_file": "bad.jinja"}}))
    told = ""
    for body in (
        "{{ others }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x'.ljust(10000000000) }}",
    ):
        (asked.path / "bad.jinja").write_text(f"{{% block system %}}\n{body}{{% endblock %}}")
        told += refusals(at_once, ["small.yaml --dry-run"])

    assert told == snapshot


def test_a_seat_is_shown_what_it_could_read(asked: Lab, at_once: AtOnce) -> None:
    apart: JsonValue = {"topology": "groups", "groups": {"g": ["spkr_000"]}}
    asked.write(moderated(policy="discussant", more={"routing_strategy": apart}))
    at_once("small.yaml --limit 1 --quiet")

    everything = at_once("show runs/small 0").stdout
    of_one = at_once("show runs/small 0 --seat spkr_000").stdout
    assert all(f"{name}: " in everything for name in ("spkr_000", "spkr_001", "mod_001"))
    assert ("spkr_000: " in of_one, "spkr_001: " in of_one) == (True, False)


def test_a_benchmark_becomes_questions_that_can_be_discussed(lab: Lab, at_once: AtOnce) -> None:
    decision = {"filled_template": "Should it?", "decision_question_id": 1}
    decision |= {"age": 30, "gender": "female", "race": "Asian"}
    (lab.path / "explicit.jsonl").write_text(json.dumps(decision))

    process = at_once("import discrim-eval explicit.jsonl --out q.jsonl")

    assert (process.returncode, process.stdout) == (0, "q.jsonl: 1 questions\n")
    at_once(moderated(policy="discussant"), "--quiet").done()


def test_bad_input_of_format_ends_with_code_2_and_writes_nothing(
    lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    (lab.path / "bad.jsonl").write_text('{"example_id": 1}\n')
    asked = (
        *("bbq none.jsonl --out q.jsonl", "bbq bad.jsonl --out q.jsonl", "bbq bad.jsonl --out bad.jsonl"),
        *("bbq bad.jsonl --out none/q.jsonl", "mmlu bad.jsonl --out q.jsonl", "bbq bad.jsonl"),
    )

    assert refusals(at_once, (f"import {each}" for each in asked)) == snapshot
    assert [path.name for path in lab.path.iterdir()] == ["bad.jsonl"]


def sampled(count: JsonValue = "all", **selection: JsonValue) -> JsonObject:
    """The example with a selection of its questions."""
    example = moderated(policy="discussant", more={"questions": {"files": ["q.jsonl"], **selection}})
    return {**example, "conversations": count}


def outcomes(run: RunDir) -> list[Any]:
    return [row["outcome"] for row in run.index]


def test_all_is_as_many_conversations_as_there_are_questions(asked: Lab, at_once: AtOnce) -> None:
    counts = {}
    selections: dict[str, JsonObject] = {"files": {}, "sample": {"sample": 30}, "ids": {"ids": ["bbq_age_994"]}}
    for name, selection in selections.items():
        asked.write(sampled(**selection), f"{name}.yaml")
        counts[name] = at_once(f"{name}.yaml", "--dry-run").stdout.split(" asked for")[0].split()[-1]
    at_once("ids.yaml --dry-run --set conversation_config.conversations=4 --limit 3").done(
        "3 asked for", "3 conversations over 1 question"
    )

    assert counts == {"files": "200", "sample": "30", "ids": "1"}


def test_all_is_refused_where_there_is_nothing_to_count(at_once: AtOnce) -> None:
    content = echoes(scripted("echo")) | {"conversation_config": {"environment": "echo", "conversations": "all"}}
    at_once(content).refused("echoes.yaml:", "conversation_config.conversations: found 'all'")


def test_a_sample_resumes_extends_and_is_verified_without_its_files(asked: Lab, at_once: AtOnce) -> None:
    asked.write(sampled(sample=8, stratify=["category", "context_condition"]))
    at_once("small.yaml --limit 3 --quiet").done()
    at_once("small.yaml --quiet").done()

    facts: dict[str, Any] = {line["question_id"]: line for line in map(json.loads, QUESTIONS.read_text().splitlines())}
    found = outcomes(asked.run_dir())
    cells = Counter((facts[one["question_id"]]["source_metadata"]["category"], one["bias"]["context"]) for one in found)
    assert len(found) == 8
    assert set(cells.values()) == {1}

    at_once("small.yaml --set discussion.questions.sample=16").refused("sample: 8 there, 16")
    (asked.path / "q.jsonl").unlink()
    asked.verified(asked.run_dir().path)


def test_combinations_of_a_grid_discuss_the_same_sample_in_the_same_orders(asked: Lab, at_once: AtOnce) -> None:
    sweep: JsonObject = {"discussion.max_rounds": [2, 3]}
    asked.write({**sampled(sample=6), "_grid": {"sweep": sweep}})
    at_once("small.yaml --quiet --set discussion.prompt.choice_order=permuted").done()

    one, two = (
        [(one["question_id"], one["order"]) for one in outcomes(asked.run_dir(f"small/max_rounds-{rounds}"))]
        for rounds in (2, 3)
    )
    assert len(one) == 6
    assert sorted(one) == sorted(two)
    assert len({tuple(order) for _, order in one}) > 1


@pytest.mark.ci
def test_repeated_questions_are_announced_and_places_are_counted(asked: Lab, at_once: AtOnce) -> None:
    asked.write(sampled(50, sample=40))

    at_once("small.yaml --no-live --set discussion.prompt.choice_order=permuted").done(
        told="50 conversations over 40 questions"
    )
    at_once("show runs/small --tables").done("50 discussions over 40 questions", "of the choice")

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

    assert refusals(at_once, [sampled(**selection) for selection in selections]) == snapshot
    assert not (asked.path / "runs").exists()
