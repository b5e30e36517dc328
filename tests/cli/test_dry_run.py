"""`--dry-run` says what is left, and touches nothing."""

from __future__ import annotations

import json
import signal
import sys

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import ROOT, AtOnce, Lab, experiment, scripted
from tests.patience import ended


def test_dry_run_of_a_fresh_experiment_touches_nothing(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment())

    process = at_once(file, "--dry-run", "--limit", "1")

    assert "embedded, seed 11" in process.stdout
    assert "1 asked for: 0" in process.stdout
    assert "runs/small" in process.stdout
    assert [path.name for path in lab.path.iterdir()] == ["small.yaml"]


def test_dry_run_of_a_finished_run_touches_nothing(finished: Lab, at_once: AtOnce) -> None:
    before = finished.run_dir().hashes()

    process = at_once("small.yaml", "--dry-run")

    assert "2 asked for: 2" in process.stdout
    assert finished.run_dir().hashes() == before


def test_dry_run_names_what_would_be_extended_or_changed(finished: Lab, at_once: AtOnce) -> None:
    finished.write(experiment(conversations=3, models={"m": scripted(capacity=3)}))
    before = finished.run_dir().hashes()

    process = at_once("small.yaml", "--dry-run")

    assert "3 asked for: 2 finished" in process.stdout
    assert "1 not begun" in process.stdout
    assert "capacity: 8 there, 3" in process.stdout
    assert finished.run_dir().hashes() == before


def test_dry_run_of_another_identity_is_refused_like_the_run(finished: Lab, at_once: AtOnce) -> None:
    before = finished.run_dir().hashes()

    process = at_once("small.yaml", "--dry-run", "--seed", "12")

    assert process.returncode == 2
    assert "seed: 11 there, 12 now" in process.stderr
    assert finished.run_dir().hashes() == before


@pytest.mark.parametrize("backend", ["vllm", "nano", "ollama", "anthropic"])
def test_dry_run_needs_no_package_of_an_engine_and_says_what_is_missing(
    backend: str, lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run itself refuses."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
    for module in ("nano.settings", "vllm.arguments"):
        monkeypatch.setattr(f"mac_runner.backends.{module}.find_spec", lambda _name: None)
    if backend in ("ollama", "anthropic"):
        monkeypatch.delitem(sys.modules, f"mac_runner.backends.{backend}.backend", raising=False)
        monkeypatch.setitem(sys.modules, backend, None)
    model: JsonObject = {"backend": backend, f"{backend}_config": {"model": "stub"}}
    file = lab.write(experiment(models={"m": model}))

    dry, real = at_once(file, "--dry-run"), at_once(file)

    assert dry.returncode == 0, dry.stderr
    assert f"models         m ({backend})" in dry.stdout
    assert f"note: {file}:" in dry.stderr
    assert f"mac_runner[{backend}]" in dry.stderr
    assert real.returncode == 2
    assert f"mac_runner[{backend}]" in real.stderr
    assert [path.name for path in lab.path.iterdir()] == [file]


@pytest.mark.ci
def test_dry_run_counts_the_replies_a_killed_run_recorded(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment())
    run, running = lab.run_dir(), lab.start_held(25, file, "--no-live")
    running.send_signal(signal.SIGKILL)
    ended(running)
    before = run.hashes()

    process = at_once(file, "--dry-run")

    assert "2 half done (25" in process.stdout
    assert run.hashes() == before


def test_dry_run_shows_who_plays_what_on_which_deals_and_whether_that_is_balanced(
    lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    models: dict[str, JsonValue] = {"a": scripted(), "b": scripted("random")}
    game: JsonObject = {"lobby": ["sheriff", "doctor", "jester", "godfather"]}
    pairs = lab.write(
        experiment("pairs", conversations=6, models=models, game={**game, "pairings": {"round_robin": "all"}})
    )
    cast: JsonObject = {"mafia": "with_a", "*": ["with_b", "with_a"]}
    one = lab.write(experiment("one", conversations=6, models=models, game={**game, "casting": cast}))

    designs = [
        at_once(file, "--dry-run", *flags).stdout.partition("design: ")[2]
        for file, *flags in ((pairs,), (pairs, "--shard", "1/3"), (one, "--limit", "2"))
    ]

    assert "\n".join(designs) == snapshot
    assert sorted(path.name for path in lab.path.iterdir()) == ["one.yaml", "pairs.yaml"]


@pytest.mark.ci
def test_a_tournament_is_played_as_designed_and_verified(lab: Lab, at_once: AtOnce) -> None:
    file = str(ROOT / "experiments" / "tos_a_vs_b.yaml")

    played = at_once(file, "--limit", "2", "--out", "runs/ab", "--no-live")

    assert played.returncode == 0, played.stderr
    sides = {}
    for transcript in (lab.path / "runs" / "ab").glob("*/transcripts/*.json"):
        record = json.loads(transcript.read_bytes())
        players = {(seat["faction"], seat["definition"]) for seat in record["outcome"]["players"]}
        sides[transcript.name[len("tos_a_vs_b-") :][:15] + transcript.name[-7:]] = sorted(players)
    assert sides == {
        f"mafia-{m}_town-{t}-0{n}.json": [("mafia", m), ("town", t)] for m, t in ("ab", "ba") for n in (0, 1)
    }
    assert at_once("verify", "runs/ab").returncode == 0
