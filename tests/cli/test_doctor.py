"""`mac-run doctor`: lists what is there, starts every engine once, and touches no run directory."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mac_runner.backends.nano import NEEDED
from mac_runner.backends.ollama import OllamaConfig
from mac_runner.cli.checks import gpus, packages
from mac_runner.cli.process import Exit
from mac_runner.registry import backend_specs
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, experiment, scripted, served
from tests.fleet.smi import put_smi
from tests.sim.ollama_server import OllamaServer, failure


def ollama(host: str, model: str = "qwen3:4b") -> JsonObject:
    return served(host, model, backend="ollama", num_ctx=4096, max_in_flight=3)


@pytest.mark.ci
def test_machine_is_described_without_an_experiment_and_may_have_no_server(
    at_once: AtOnce, stub: OllamaServer, dead_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ollama may or may not run on the machine of the test.
    told = {
        stub.host: f"ollama       0.30.0 at {stub.host}; models: qwen3:4b\n",
        dead_host: f"Ollama at {dead_host}: no connection",
    }
    for host, line in told.items():
        monkeypatch.setattr(OllamaConfig.model_fields["host"], "default", (host,))
        assert at_once("doctor").done("mac_runner   0.3.0, Python 3.", line).stderr == ""


@pytest.mark.ci
def test_programs_are_started_and_nothing_is_written(at_once: AtOnce, lab: Lab) -> None:
    lab.write(experiment())
    with lab.unchanged():
        process = at_once("doctor small.yaml").done("m (scripted, heuristic)\n", "; 8 requests at once\n")

    assert process.stderr == ""
    assert process.stdout.splitlines()[-1].startswith("problems     none")


@pytest.mark.ci
def test_engine_that_answers_makes_one_token(at_once: AtOnce, stub: OllamaServer) -> None:
    """With the profile and the settings of a run."""
    profiles: JsonObject = {"big": {"model_definitions": {"m": ollama("http://127.0.0.1:1")}}}
    host = f"model_definitions.m.ollama_config.host={stub.host}"
    at_once("doctor", experiment(profiles=profiles), "--profile=big", f"--set={host}").done(
        f" m (ollama, qwen3:4b at {stub.host})\n", "; 3 requests at once\n", "one token in "
    )

    probe, _first_prompt = stub.chats
    options: Any = probe["options"]
    assert (options["num_predict"], options["num_ctx"]) == (1, 4096)


@pytest.mark.ci
def test_each_problem_has_its_line_and_hides_no_other_model(
    at_once: AtOnce, lab: Lab, stub: OllamaServer, dead_host: str
) -> None:
    """Of an engine that cannot be built too, and of each address of a model."""
    urls: list[JsonValue] = [f"{dead_host}/v1", f"{dead_host}/other/v1"]
    models: JsonObject = {
        "gone": ollama(dead_host),
        "absent": ollama(stub.host, "llama3.2:3b"),
        "odd": {**scripted(), "record_tokens": True},
        "two": {"backend": "openai", "openai_config": {"model": "some", "base_urls": urls}},
        "well": ollama(stub.host),
    }

    process = at_once("doctor", experiment(models=models)).ends(
        Exit.FAILURES, printed=[f" two (openai, some at {url})\n             PROBLEM: " for url in urls]
    )

    problems = [line for line in process.stdout.splitlines() if "PROBLEM: " in line]
    for words in (f"{dead_host} does not answer", "`ollama pull llama3.2:3b`", "model_definitions.odd.record_tokens: "):
        assert any(words in line for line in problems), words
    assert process.stdout.count("one token in ") == 1
    assert process.stdout.endswith(f"problems     {len(problems)}\n")
    assert not (lab.path / "runs").exists()


@pytest.mark.ci
def test_engine_that_starts_and_makes_no_token_is_a_problem(at_once: AtOnce, stub: OllamaServer) -> None:
    stub.answer = lambda _received: failure(500, "llama runner process has terminated")

    process = at_once("doctor", experiment(models={"m": ollama(stub.host)}))

    process.ends(Exit.FAILURES, printed=("started in ", f"PROBLEM: {stub.host}: status 500: llama runner"))
    assert "one token in " not in process.stdout


@pytest.mark.parametrize("verb", ["doctor", "run"])
@pytest.mark.parametrize("port", ["99999", "0", "abc"])
def test_port_that_cannot_be_one_is_bad_input_before_anything_is_sent(
    at_once: AtOnce, stub: OllamaServer, port: str, verb: str
) -> None:
    models: JsonObject = {
        "well": ollama(stub.host),
        "served": served(f"http://h:{port}/v1"),
        "local": ollama(f"http://h:{port}"),
    }

    at_once(verb, experiment(models=models)).refused(
        f"""openai_config.base_urls.0: found the text "http://h:{port}/v1";""",
        f"""ollama_config.host: found the text "http://h:{port}";""",
    )
    assert not stub.pages


def test_bad_input_is_refused(at_once: AtOnce) -> None:
    at_once("doctor nowhere.yaml").refused()
    at_once("doctor --profile x").refused()


def test_packages_are_listed_with_their_versions() -> None:
    found = packages()

    assert f"aiohttp {aiohttp.__version__}" in found.installed
    assert "vllm" in found.missing or find_spec("vllm") is not None


def test_every_package_that_an_engine_needs_is_looked_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [need for extra in ("ollama", "vllm") for need in project["optional-dependencies"][extra]]

    listed = {package for spec in backend_specs().values() for package in spec.packages}
    assert {*NEEDED, *(re.split(r"[<>=]", need)[0] for need in extras)} <= listed


GPUS = ("0, NVIDIA H100, 81559 MiB, 81000 MiB, 550.54", "1, NVIDIA H100, 81559 MiB, 12 MiB, 550.54")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "found"),
    [
        (f"echo '{GPUS[0]}'; echo '{GPUS[1]}'", [*GPUS]),
        ("", ["none: nvidia-smi is not installed"]),
        ("exit 0", ["none: nvidia-smi lists none"]),
        ("echo 'No driver'; exit 9", ["unknown: nvidia-smi ended with code 9: No driver"]),
    ],
)
def test_gpus_are_listed_a_line_each_or_missed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: list[str]
) -> None:
    if script:
        put_smi(tmp_path, monkeypatch, script=script)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert gpus() == found
