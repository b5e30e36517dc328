"""`--dry-run --prompt N` prints what would be sent first, and touches nothing."""

from __future__ import annotations

import json

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.runs.testing import sent_prompt
from mac_runner.store import read_run
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, experiment, refusals, scripted

ASKED: JsonObject = {
    "question_id": "q1",
    "question_type": "multiple_choice",
    "question": "Who was late?",
    "choices": [{"id": "A", "text": "The nurse"}, {"id": "B", "text": "The pilot"}],
    "correct_answer_id": "A",
}


def _discussion(lab: Lab, **definition: object) -> str:
    (lab.path / "questions.jsonl").write_text(json.dumps(ASKED) + "\n")
    model = definition or {"backend": "scripted", "scripted_config": {"policy": "discussant"}}
    waits = {"speak_after_within_round": ["ann", "bob"]}
    content: JsonObject = {
        "experiment_metadata": {"experiment_name": "talk"},
        "conversation_config": {"environment": "discussion", "conversations": 1},
        "discussion": {"questions": ["questions.jsonl"]},
        "model_definitions": {"m": model},  # type: ignore[dict-item]
        "agent_definitions": [
            {"agent_id": "ann", "role": "participant", "model": "m"},
            {"agent_id": "bob", "role": "participant", "model": "m"},
            {"agent_id": "mod", "role": "moderator", "model": "m", "role_specific_config": waits},  # type: ignore[dict-item]
        ],
    }
    return lab.write(content)


@pytest.mark.ci
def test_a_preview_is_what_a_run_then_sends(lab: Lab, at_once: AtOnce) -> None:
    file = _discussion(lab)
    previewed = at_once(file, "--dry-run", "--prompt", "0").stdout
    assert [path.name for path in sorted(lab.path.iterdir())] == ["questions.jsonl", "talk.yaml"]
    lab.done(file)

    contents = read_run(lab.path / "runs" / "talk")
    (row,) = contents.rows()
    transcript = contents.transcript(str(row["task_id"]))
    for turn in ("0/ann/0/0", "0/bob/0/0"):
        part = previewed.partition(f"=== turn {turn}, sent to m\n")[2].partition("=== turn")[0]
        for message in sent_prompt(contents, transcript, turn).messages:
            assert f"=== {message.role}\n{message.content}\n" in part
    assert "mod/0/0" not in previewed


def test_a_preview_shows_the_schema_that_the_engine_would_hold_the_reply_to(lab: Lab, at_once: AtOnce) -> None:
    served = {"model": "x", "base_urls": ["http://127.0.0.1:9/v1"]}
    file = _discussion(lab, backend="openai", openai_config=served)

    shown = at_once(file, "--dry-run", "--prompt", "0", "--agent", "bob").stdout

    assert shown.count("=== turn ") == 1
    schema = json.loads(shown.partition("=== held to this schema, where the engine can\n")[2])
    assert schema["properties"]["answer"]["enum"] == ["The nurse", "The pilot"]


def test_a_preview_shows_that_a_reply_is_held_to_any_json_object(lab: Lab, at_once: AtOnce) -> None:
    served = {"model": "x", "base_urls": ["http://127.0.0.1:9/v1"]}
    file = _discussion(lab, backend="openai", constrained_decoding="json_object", openai_config=served)

    shown = at_once(file, "--dry-run", "--prompt", "0", "--agent", "bob").stdout

    assert json.loads(shown.partition("=== held to this schema, where the engine can\n")[2]) == {"type": "object"}


def test_a_preview_of_free_replies_shows_no_schema(lab: Lab, at_once: AtOnce) -> None:
    served = {"model": "x", "base_urls": ["http://127.0.0.1:9/v1"]}
    file = _discussion(lab, backend="openai", constrained_decoding="none", openai_config=served)

    assert "=== not held" in at_once(file, "--dry-run", "--prompt", "0").stdout


def test_a_game_is_previewed_too(lab: Lab, at_once: AtOnce) -> None:
    shown = at_once(lab.write(experiment()), "--dry-run", "--prompt", "1").stdout

    assert "=== turn " in shown
    assert "=== system\n" in shown
    assert not (lab.path / "runs").exists()


def test_a_preview_of_a_grid_is_of_its_first_combination(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(models={"m": scripted()}, _grid={"sweep": {"seed": [5, 6]}}))

    process = at_once(file, "--dry-run", "--prompt", "0")

    assert "2 combinations, seed-5" in process.stderr
    assert process.stdout.startswith("=== turn ")


def test_a_preview_of_what_is_not_there_is_bad_input(lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    file = _discussion(lab)
    flags = (
        *(f"--dry-run --prompt {number}" for number in ("1", "-1", "x", "0 --agent mod", "0 --agent bo")),
        *("--prompt 0", "--dry-run --agent ann"),
    )

    assert refusals(at_once, (f"{file} {each}" for each in flags)) == snapshot
