"""`--dry-run` says what is left and, with `--prompt N`, what would be sent first; it touches nothing."""

from __future__ import annotations

import json
import sys

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.runs.testing import sent_prompt
from mac_runner.store import read_run
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import ROOT, AtOnce, Lab, discussion, experiment, refusals, scripted, served


def test_dry_run_of_a_fresh_experiment_touches_nothing(lab: Lab, at_once: AtOnce) -> None:
    lab.write(experiment())
    with lab.unchanged():
        at_once("small.yaml --dry-run --limit 1").done("embedded, seed 11", "1 asked for: 0", "runs/small")


def test_dry_run_of_a_run_names_what_is_there_and_what_would_be_extended_or_changed(
    finished: Lab, at_once: AtOnce
) -> None:
    with finished.run_dir().unchanged():
        at_once("small.yaml --dry-run").done("2 asked for: 2")
        at_once(experiment(conversations=3, models={"m": scripted(capacity=3)}), "--dry-run").done(
            "3 asked for: 2 finished", "1 not begun", "capacity: 8 there, 3"
        )


@pytest.mark.parametrize("backend", ["vllm", "nano", "ollama", "anthropic"])
def test_dry_run_needs_no_package_of_an_engine_and_says_what_is_missing(
    backend: str, lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run itself refuses."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
    for module in ("nano", "vllm.backend"):
        monkeypatch.setattr(f"mac_runner.backends.{module}.find_spec", lambda _name: None)
    if backend in ("ollama", "anthropic"):
        for name in [name for name in sys.modules if name.startswith(f"mac_runner.backends.{backend}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, backend, None)
    lab.write(experiment(models={"m": {"backend": backend, f"{backend}_config": {"model": "stub"}}}))
    extra = f"[{backend}]"
    with lab.unchanged():
        at_once("small.yaml --dry-run").done(f"models         m ({backend})", told=("note: small.yaml:", extra))
        at_once("small.yaml").refused(extra)


@pytest.mark.ci
def test_dry_run_counts_the_replies_a_killed_run_recorded(lab: Lab, at_once: AtOnce) -> None:
    lab.kill_held(25, lab.write(experiment()), "--no-live")
    with lab.run_dir().unchanged():
        at_once("small.yaml --dry-run").done("2 half done (25")


def test_dry_run_shows_who_plays_what_on_which_deals_and_whether_that_is_balanced(
    lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    models: dict[str, JsonValue] = {"a": scripted(), "b": scripted("random")}
    cast: JsonObject = {"mafia": "with_a", "*": ["with_b", "with_a"]}
    designed: dict[str, JsonObject] = {"pairs": {"pairings": {"round_robin": "all"}}, "one": {"casting": cast}}
    for name, more in designed.items():
        game: JsonObject = {"lobby": ["sheriff", "doctor", "jester", "godfather"], **more}
        lab.write(experiment(name, conversations=6, models=models, game=game))

    with lab.unchanged():
        designs = [
            at_once(f"{flags} --dry-run").stdout.partition("design: ")[2]
            for flags in ("pairs.yaml", "pairs.yaml --shard 1/3", "one.yaml --limit 2")
        ]

    assert "\n".join(designs) == snapshot


@pytest.mark.ci
def test_a_tournament_is_played_as_designed_and_verified(lab: Lab, at_once: AtOnce) -> None:
    at_once(ROOT / "experiments" / "tos_a_vs_b.yaml", "--limit", "2", "--out", "runs/ab", "--no-live").done()

    sides = {}
    for transcript in (lab.path / "runs" / "ab").glob("transcripts/*.json"):
        record = json.loads(transcript.read_bytes())
        players = {(seat["faction"], seat["definition"]) for seat in record["outcome"]["players"]}
        sides[transcript.name[len("tos_a_vs_b-") :][:15] + transcript.name[-7:]] = sorted(players)
    assert sides == {
        f"mafia-{m}_town-{t}-0{n}.json": [("mafia", m), ("town", t)] for m, t in ("ab", "ba") for n in (0, 1)
    }
    at_once("verify runs/ab").done()


QUESTION: JsonObject = {
    "question_id": "q1",
    "question_type": "multiple_choice",
    "question": "Who was late?",
    "choices": [{"id": "A", "text": "The nurse"}, {"id": "B", "text": "The pilot"}],
    "correct_answer_id": "A",
}
PEOPLE: tuple[JsonObject, ...] = (
    {"agent_id": "ann"},
    {"agent_id": "bob"},
    {"agent_id": "mod", "role": "moderator", "role_specific_config": {"speak_after_within_round": ["ann", "bob"]}},
)
SCHEMA = "=== held to this schema, where the engine can\n"


def asked(lab: Lab, model: JsonObject | None = None) -> str:
    """A discussion of a question, led by a moderator."""
    (lab.path / "questions.jsonl").write_text(json.dumps(QUESTION) + "\n")
    questions: JsonObject = {"questions": ["questions.jsonl"]}
    model = model or scripted("discussant")
    return lab.write(discussion(model, agents=PEOPLE, conversations=1, discussion=questions))


@pytest.mark.ci
def test_a_preview_is_what_a_run_then_sends(lab: Lab, at_once: AtOnce) -> None:
    file = asked(lab)
    with lab.unchanged():
        previewed = at_once(file, "--dry-run", "--prompt", "0").stdout
    at_once(file).done()

    contents = read_run(lab.path / "runs" / "talk")
    (row,) = contents.rows()
    transcript = contents.transcript(str(row["task_id"]))
    for turn in ("0/ann/0/0", "0/bob/0/0"):
        part = previewed.partition(f"=== turn {turn}, sent to m\n")[2].partition("=== turn")[0]
        for message in sent_prompt(contents, transcript, turn).messages:
            assert f"=== {message.role}\n{message.content}\n" in part
    assert "mod/0/0" not in previewed


@pytest.mark.parametrize(
    ("setting", "held"),
    [("schema", ["The nurse", "The pilot"]), ("json_object", {"type": "object"}), ("none", "=== not held")],
)
def test_a_preview_shows_what_the_engine_would_hold_the_reply_to(
    lab: Lab, at_once: AtOnce, setting: str, held: object
) -> None:
    file = asked(lab, {**served("http://127.0.0.1:9/v1"), "constrained_decoding": setting})

    shown = at_once(file, *("--dry-run", "--prompt", "0", "--agent", "bob")).done("=== turn ").stdout

    assert shown.count("=== turn ") == 1
    if setting == "none":
        assert str(held) in shown
    else:
        schema = json.loads(shown.partition(SCHEMA)[2])
        assert held in (schema, schema.get("properties", {}).get("answer", {}).get("enum"))


def test_a_game_is_previewed_too_and_of_a_grid_its_first_combination(lab: Lab, at_once: AtOnce) -> None:
    at_once(experiment(), *("--dry-run", "--prompt", "1")).done("=== turn ", "=== system\n")
    process = at_once(experiment(_grid={"sweep": {"seed": [5, 6]}}), *("--dry-run", "--prompt", "0"))

    assert process.done(told="2 combinations, seed-5").stdout.startswith("=== turn ")
    assert not (lab.path / "runs").exists()


def test_a_preview_of_what_is_not_there_is_bad_input(lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    file = asked(lab)
    flags = (
        *(f"--dry-run --prompt {number}" for number in ("1", "-1", "x", "0 --agent mod", "0 --agent bo")),
        *("--prompt 0", "--dry-run --agent ann"),
    )

    assert refusals(at_once, (f"{file} {each}" for each in flags)) == snapshot
