"""Engines that do not start: what is told of them, and that a run directory is not spoilt by it."""

from __future__ import annotations

import re

import pytest

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, discussion, experiment
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

NOWHERE = "http://127.0.0.1:9"
HAS_NO_MODEL = r"model_definitions\.m\.openai_config\.model: http\S+: it has no model 'mistyped'; it has: stub"


def openai(url: str, model: str) -> JsonObject:
    return {"backend": "openai", "openai_config": {"model": model, "base_urls": [url]}}


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text), text


def test_a_mistyped_model_is_reported_with_its_place_and_the_corrected_one_resumes_there(
    lab: Lab, at_once: AtOnce
) -> None:
    with in_a_thread(OpenaiServer()) as server:
        file = lab.write(discussion(openai(server.url, "mistyped")))
        first = at_once(file)
        second = at_once(lab.write(discussion(openai(server.url, "stub"))))

    assert first.returncode == Exit.BAD_INPUT
    assert_matches(rf"^mac-run: {file}:\d+: {HAS_NO_MODEL}", first.stderr)
    assert len(first.stderr.splitlines()) == 1
    assert second.returncode == Exit.OK
    assert lab.run_dir("talk").statuses == {"finished": 3}
    lab.verified(lab.run_dir("talk").path)


def test_a_mistyped_model_of_a_grid_is_reported_with_its_place(lab: Lab, at_once: AtOnce) -> None:
    sweep: JsonObject = {"model_definitions.m.openai_config.model": ["stub", "mistyped"]}
    with in_a_thread(OpenaiServer()) as server:
        file = lab.write(discussion(openai(server.url, "stub"), _grid={"sweep": sweep}))
        ended = at_once(file)

    assert ended.returncode == Exit.BAD_INPUT
    assert_matches(rf"^mac-run: {file}:\d+: {HAS_NO_MODEL}", ended.stderr)


@pytest.mark.ci
def test_doctor_reports_the_place_of_a_mistyped_model(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer()) as server:
        file = lab.write(discussion(openai(server.url, "mistyped")))
        ended = at_once("doctor", file)

    assert ended.returncode == Exit.FAILURES
    assert_matches(rf"PROBLEM: {file}:\d+: {HAS_NO_MODEL}", ended.stdout)


@pytest.mark.parametrize(
    "model",
    [openai(f"{NOWHERE}/v1", "stub"), {"backend": "ollama", "ollama_config": {"model": "stub", "host": NOWHERE}}],
    ids=["openai", "ollama"],
)
def test_a_missing_server_is_reported_in_one_line_that_names_the_model(
    lab: Lab, at_once: AtOnce, model: JsonObject
) -> None:
    ended = at_once(lab.write(discussion(model)))

    assert ended.returncode == Exit.INTERRUPTED
    assert_matches(r"^mac-run: model m: ", ended.stderr)
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.ci
def test_late_problems_of_a_grid_are_reported_together_each_with_its_place(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policies, lobbies, seats, settings that an engine lacks, keys."""
    monkeypatch.setenv("ODD_KEY", "no key\x07")
    m: JsonValue = {"backend": "scripted", "scripted_config": {"policy": "discussant"}}
    chat: JsonObject = {"model": "m", "base_urls": [NOWHERE], "api_key_env": "ODD_KEY"}
    cases: list[tuple[JsonObject, JsonObject, list[str]]] = [
        (
            discussion({"backend": "scripted", "scripted_config": {"policy": "discussant"}}),
            {"model_definitions.m.scripted_config.policy": ["discussant", "clever", "smart"]},
            ["policy: environment discussion has no policy 'clever'", "has no policy 'smart'"],
        ),
        (
            experiment(),
            {"game.lobby": ["classic-7", "classic-77", "classic-78"]},
            ["game.lobby: there is no lobby 'classic-77'", "there is no lobby 'classic-78'"],
        ),
        (experiment(), {"game.seats": [None, {"with_m": 2}]}, ["game.seats: the counts (with_m: 2) add up to 2"]),
        (
            discussion(openai(NOWHERE, "m")),
            {"agent_definitions.0.top_k": [None, 3], "model_definitions.m.record_tokens": [False, True]},
            ["agent_definitions.0.top_k: the backend", "model_definitions.m.record_tokens: the backend"],
        ),
        (
            discussion(openai(NOWHERE, "m")),
            {"model_definitions.m": [m, {"backend": "openai", "openai_config": chat}]},
            ["api_key_env: the environment variable ODD_KEY holds characters that no key has"],
        ),
    ]
    for file, sweep, told in cases:
        name = lab.write({**file, "_grid": {"sweep": sweep}}, "late.yaml")
        for flag in ("--dry-run", "--quiet"):
            ended = at_once(name, flag)

            lines = ended.stderr.removeprefix("mac-run: ").splitlines()
            assert ended.returncode == Exit.BAD_INPUT, ended.stderr
            assert all(re.match(r"late\.yaml:\d+: \S+: ", line) for line in lines), lines
            assert all(any(part in line for line in lines) for part in told), lines
            assert all(re.search(r"\(combination \d+ of \d+\)$", line) for line in lines), lines
        assert [path.name for path in lab.path.iterdir()] == ["late.yaml"]
