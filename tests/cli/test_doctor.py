"""`mac-run doctor`: lists what is there, starts every engine once, and touches no run directory."""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import pytest

from mac_runner.backends.nano.settings import NEEDED
from mac_runner.backends.ollama import OllamaConfig
from mac_runner.cli.doctor import gpus, packages
from mac_runner.registry import backend_specs
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, experiment, scripted
from tests.sim.ollama_server import OllamaServer, failure
from tests.sim.openai_run import in_a_thread


@pytest.fixture
def stub() -> Iterator[OllamaServer]:
    with in_a_thread(OllamaServer()) as stub:
        yield stub


@pytest.fixture
def dead_host() -> Iterator[str]:
    """An address without a listener, now and later."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def ollama(host: str, model: str = "qwen3:4b") -> JsonObject:
    return {"backend": "ollama", "ollama_config": {"model": model, "host": host, "num_ctx": 4096, "max_in_flight": 3}}


@pytest.mark.ci
def test_machine_is_described_without_an_experiment(
    at_once: AtOnce, stub: OllamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ollama may or may not run on the machine of the test.
    monkeypatch.setattr(OllamaConfig.model_fields["host"], "default", stub.host)

    process = at_once("doctor")

    assert (process.returncode, process.stderr) == (0, "")
    assert "mac_runner   0.2.0, Python 3." in process.stdout
    assert f"ollama       0.30.0 at {stub.host}; models: qwen3:4b\n" in process.stdout


@pytest.mark.ci
def test_machine_without_a_server_is_not_a_problem(
    at_once: AtOnce, dead_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OllamaConfig.model_fields["host"], "default", dead_host)

    process = at_once("doctor")

    assert process.returncode == 0
    assert f"from Ollama at {dead_host}" in process.stdout


@pytest.mark.ci
def test_programs_are_started_and_nothing_is_written(at_once: AtOnce, lab: Lab) -> None:
    file = lab.write(experiment())

    process = at_once("doctor", file)

    assert (process.returncode, process.stderr) == (0, "")
    assert "m (scripted, heuristic)\n" in process.stdout
    assert "; 8 requests at once\n" in process.stdout
    assert process.stdout.splitlines()[-1].startswith("problems     none")
    assert [path.name for path in lab.path.iterdir()] == [file]


@pytest.mark.ci
def test_engine_that_answers_makes_one_token(at_once: AtOnce, lab: Lab, stub: OllamaServer) -> None:
    process = at_once("doctor", lab.write(experiment(models={"m": ollama(stub.host)})))

    assert process.returncode == 0
    assert f" m (ollama, qwen3:4b at {stub.host})\n" in process.stdout
    assert "; 3 requests at once\n" in process.stdout
    assert "one token in " in process.stdout
    probe, _first_prompt = stub.chats
    assert isinstance(probe["options"], dict)
    assert (probe["options"]["num_predict"], probe["options"]["num_ctx"]) == (1, 4096)


@pytest.mark.ci
def test_each_problem_has_its_line_and_hides_no_other_model(
    at_once: AtOnce, lab: Lab, stub: OllamaServer, dead_host: str
) -> None:
    models = {"gone": ollama(dead_host), "absent": ollama(stub.host, "llama3.2:3b"), "well": ollama(stub.host)}

    process = at_once("doctor", lab.write(experiment(models=models)))

    problems = [line for line in process.stdout.splitlines() if "PROBLEM: " in line]
    assert process.returncode == 1
    assert len(problems) == 2
    assert dead_host in problems[0]
    assert "`ollama pull llama3.2:3b`" in problems[1]
    assert process.stdout.count("one token in ") == 1
    assert process.stdout.endswith("problems     2\n")
    assert not (lab.path / "runs").exists()


@pytest.mark.ci
def test_engine_that_starts_and_makes_no_token_is_a_problem(at_once: AtOnce, lab: Lab, stub: OllamaServer) -> None:
    stub.answer = lambda _received: failure(500, "llama runner process has terminated")

    process = at_once("doctor", lab.write(experiment(models={"m": ollama(stub.host)})))

    assert process.returncode == 1
    assert "started in " in process.stdout
    assert "one token in " not in process.stdout
    assert "PROBLEM: Ollama at " in process.stdout


@pytest.mark.ci
def test_engine_that_cannot_be_built_is_a_problem_of_its_own(at_once: AtOnce, lab: Lab) -> None:
    models = {"odd": {**scripted(), "record_tokens": True}, "well": scripted()}

    process = at_once("doctor", lab.write(experiment(models=models)))

    assert process.returncode == 1
    assert "PROBLEM: small.yaml:" in process.stdout
    assert "well (scripted, heuristic)\n" in process.stdout


@pytest.mark.parametrize("flags", [("doctor",), ()], ids=["doctor", "run"])
@pytest.mark.parametrize("port", ["99999", "0", "abc"])
def test_port_that_cannot_be_one_is_bad_input_before_anything_is_sent(
    at_once: AtOnce, lab: Lab, stub: OllamaServer, port: str, flags: tuple[str, ...]
) -> None:
    served: JsonObject = {"backend": "openai", "openai_config": {"model": "m", "base_urls": [f"http://h:{port}/v1"]}}
    models = {"well": ollama(stub.host), "served": served, "local": ollama(f"http://h:{port}")}

    process = at_once(*flags, lab.write(experiment(models=models)))

    assert process.returncode == 2
    assert f"""openai_config.base_urls.0: found the text "http://h:{port}/v1";""" in process.stderr
    assert f"""ollama_config.host: found the text "http://h:{port}";""" in process.stderr
    assert not stub.pages


@pytest.mark.ci
def test_addresses_of_one_model_are_examined_one_by_one(at_once: AtOnce, lab: Lab, dead_host: str) -> None:
    urls = [f"{dead_host}/v1", f"{dead_host}/other/v1"]
    model: JsonObject = {"backend": "openai", "openai_config": {"model": "some", "base_urls": list(urls)}}

    process = at_once("doctor", lab.write(experiment(models={"m": model})))

    assert process.returncode == 1
    for url in urls:
        assert f" m (openai, some at {url})\n             PROBLEM: " in process.stdout


@pytest.mark.ci
def test_profile_and_settings_are_those_of_a_run(at_once: AtOnce, lab: Lab, stub: OllamaServer) -> None:
    profiles: JsonObject = {"big": {"model_definitions": {"m": ollama("http://127.0.0.1:1")}}}
    file = lab.write(experiment(profiles=profiles))

    process = at_once(
        "doctor", file, "--profile", "big", "--set", f"model_definitions.m.ollama_config.host={stub.host}"
    )

    assert process.returncode == 0
    assert f"qwen3:4b at {stub.host}" in process.stdout


def test_bad_input_is_refused(at_once: AtOnce) -> None:
    assert at_once("doctor", "nowhere.yaml").returncode == 2
    assert at_once("doctor", "--profile", "x").returncode == 2


def test_packages_are_listed_with_their_versions() -> None:
    found = packages()

    assert f"aiohttp {aiohttp.__version__}" in found.installed
    assert "vllm" in found.missing or find_spec("vllm") is not None


def test_every_package_that_an_engine_needs_is_looked_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [need for extra in ("ollama", "vllm") for need in project["optional-dependencies"][extra]]

    listed = {package for spec in backend_specs().values() for package in spec.packages}
    assert {*NEEDED, *(re.split(r"[<>=]", need)[0] for need in extras)} <= listed


def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    """Put a tool of that name, or none, where programs are looked for."""
    if script is not None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.ci
def test_gpus_are_listed_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["0, NVIDIA H100, 81559 MiB, 81000 MiB, 550.54", "1, NVIDIA H100, 81559 MiB, 12 MiB, 550.54"]
    nvidia_smi(tmp_path, monkeypatch, f"echo '{lines[0]}'; echo '{lines[1]}'")

    assert gpus() == (tuple(lines), "")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "told"),
    [
        (None, "none: nvidia-smi is not installed"),
        ("exit 0", "none: nvidia-smi lists none"),
        ("echo 'No driver'; exit 9", "unknown: nvidia-smi ended with code 9: No driver"),
    ],
)
def test_missing_gpus_are_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, told: str
) -> None:
    nvidia_smi(tmp_path, monkeypatch, script)

    assert gpus() == ((), told)
