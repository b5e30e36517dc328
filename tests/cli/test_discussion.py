"""Discussions from the command line: from a file of questions to a table, and bad input on the way."""

from __future__ import annotations

import json
import signal

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import ROOT, AtOnce, Lab, refusals, scripted
from tests.kit import copied
from tests.patience import ended

EXPERIMENT = ROOT / "experiments" / "bbq_moderated.yaml"
QUESTIONS = ROOT / "experiments" / "questions" / "bbq_200.jsonl"


def moderated(
    *, policy: str = "clumsy", capacity: int = 8, latency_ms: float = 0, more: JsonObject | None = None
) -> JsonObject:
    """The example, shorter, beside its own copy of the questions."""
    example = yaml.safe_load(EXPERIMENT.read_text(encoding="utf-8"))
    assert isinstance(example, dict)
    del example["_grid"]
    example["experiment_metadata"]["experiment_name"] = "small"
    example["conversation_config"]["conversations"] = 8
    example["discussion"] |= {"questions": ["q.jsonl"]} | (more or {})
    example["model_definitions"]["panel"] = scripted(policy, capacity=capacity, latency_ms=latency_ms)
    return dict(example)


def question_of(row: JsonObject) -> JsonValue:
    assert isinstance(row["outcome"], dict)
    return row["outcome"]["question_id"]


@pytest.fixture
def asked(lab: Lab) -> Lab:
    """A working directory with questions in it."""
    copied(QUESTIONS, lab.path / "q.jsonl")
    return lab


def test_the_example_plays_to_a_table_with_accuracy_and_bias(lab: Lab, at_once: AtOnce) -> None:
    process = at_once(str(EXPERIMENT), "--limit", "12", "--no-live", "--set", "_grid=null")

    assert process.returncode == 0, process.stderr
    for told in ("right, group", "consensus at the end", "an elderly economist", "bias scores of BBQ", "Religion"):
        assert told in process.stdout
    run = lab.run_dir("bbq_moderated")
    discussions = run.summary["discussions"]
    assert isinstance(discussions, dict)
    assert discussions["n"] == 12
    questions = [json.loads(line)["question_id"] for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    assert [question_of(row) for row in run.index] == questions[:12]
    lab.verified(run.path)


@pytest.mark.ci
def test_results_do_not_depend_on_how_many_run_at_once_or_on_a_stop(asked: Lab, at_once: AtOnce) -> None:
    asked.write(moderated(capacity=1), "one.yaml")
    asked.write(moderated(capacity=32, latency_ms=20), "slow.yaml")
    at_once("one.yaml", "--out", "runs/one", "--quiet")
    first = asked.start_held(20, "slow.yaml", "--out", "runs/small")
    first.send_signal(signal.SIGTERM)
    assert ended(first)[0] == 3
    assert at_once("slow.yaml", "--out", "runs/small", "--quiet").returncode == 0

    assert asked.run_dir("one").transcripts == asked.run_dir().transcripts
    assert len(asked.run_dir().transcripts) == 8
    asked.verified(asked.run_dir().path)


@pytest.mark.ci
def test_a_run_is_verified_without_the_files_it_was_made_from(asked: Lab, at_once: AtOnce) -> None:
    asked.write(moderated(more={"prompt": {"template_file": "t.jinja"}}))
    (asked.path / "t.jinja").write_text("{% block system %}{{ identity }} {{ question }}{% endblock %}")
    assert at_once("small.yaml", "--quiet").returncode == 0
    (asked.path / "q.jsonl").unlink()
    (asked.path / "t.jinja").unlink()

    asked.verified(asked.run_dir().path)


def test_other_questions_are_another_run(asked: Lab, at_once: AtOnce) -> None:
    asked.write(moderated())
    assert at_once("small.yaml", "--limit", "2", "--quiet").returncode == 0
    lines = (asked.path / "q.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (asked.path / "q.jsonl").write_text("".join(lines[1:]), encoding="utf-8")

    process = at_once("small.yaml")

    assert process.returncode == 2
    assert "discussion.questions_sha256" in process.stderr
    assert "--out DIR" in process.stderr


def test_bad_files_end_with_code_2_and_touch_nothing(asked: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    question, *_ = (asked.path / "q.jsonl").read_text(encoding="utf-8").splitlines()
    (asked.path / "bad.jsonl").write_text(f"{question}\n{question.replace('multiple_choice', 'quiz')}\n")
    (asked.path / "bad.jinja").write_text("{% block system %}\n{{ quest }}{% endblock %}")
    told = ""
    wrong: list[JsonObject] = [
        {"questions": ["none.jsonl"]},
        {"questions": ["bad.jsonl"]},
        {"prompt": {"template_file": "bad.jinja"}},
    ]
    for settings in wrong:
        asked.write(moderated(more=settings))
        told += refusals(at_once, ["small.yaml"])

    assert told == snapshot
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
        "{{ 'x'.ljust(10 ** 10) }}",
    ):
        (asked.path / "bad.jinja").write_text(f"{{% block system %}}\n{body}{{% endblock %}}")
        told += refusals(at_once, ["small.yaml --dry-run"])

    assert told == snapshot


def test_a_seat_is_shown_what_it_could_read(asked: Lab, at_once: AtOnce) -> None:
    apart: JsonValue = {"topology": "groups", "groups": {"g": ["spkr_000"]}}
    asked.write(moderated(policy="discussant", more={"routing_strategy": apart}))
    at_once("small.yaml", "--limit", "1", "--quiet")

    everything = at_once("show", "runs/small", "0").stdout
    of_one = at_once("show", "runs/small", "0", "--seat", "spkr_000").stdout
    assert all(f"{name}: " in everything for name in ("spkr_000", "spkr_001", "mod_001"))
    assert ("spkr_000: " in of_one, "spkr_001: " in of_one) == (True, False)


def test_a_benchmark_becomes_questions_that_can_be_discussed(lab: Lab, at_once: AtOnce) -> None:
    decision = {
        "filled_template": "Should it?",
        "decision_question_id": 1,
        "age": 30,
        "gender": "female",
        "race": "Asian",
    }
    (lab.path / "explicit.jsonl").write_text(json.dumps(decision))

    process = at_once("format", "discrim-eval", "explicit.jsonl", "--out", "q.jsonl")

    assert (process.returncode, process.stdout) == (0, "q.jsonl: 1 questions\n")
    lab.write(moderated(policy="discussant"))
    assert at_once("small.yaml", "--quiet").returncode == 0


def test_bad_input_of_format_ends_with_code_2_and_writes_nothing(
    lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    (lab.path / "bad.jsonl").write_text('{"example_id": 1}\n')
    asked = (
        *("bbq none.jsonl --out q.jsonl", "bbq bad.jsonl --out q.jsonl", "bbq bad.jsonl --out bad.jsonl"),
        *("bbq bad.jsonl --out none/q.jsonl", "mmlu bad.jsonl --out q.jsonl", "bbq bad.jsonl"),
    )

    assert refusals(at_once, (f"format {each}" for each in asked)) == snapshot
    assert [path.name for path in lab.path.iterdir()] == ["bad.jsonl"]
