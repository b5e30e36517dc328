"""Whole runs against a stub of Ollama, in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.lab import ROOT, Lab
from tests.sim.behaviour import Reset
from tests.sim.ollama_server import OllamaServer, says
from tests.sim.openai_run import in_a_thread

pytestmark = pytest.mark.ci

MAIN_JOB = str(ROOT / "experiments" / "tos_100games.yaml")
MODEL = "qwen3:4b"


@pytest.fixture
def stub() -> Iterator[OllamaServer]:
    with in_a_thread(OllamaServer()) as stub:
        yield stub


def job(stub: OllamaServer, *more: str) -> tuple[str, ...]:
    """The main job with the models of the stub; one small game of it."""
    host = f"model_definitions.townsfolk.ollama_config.host={stub.host}"
    small = (
        "--set",
        "game.lobby=classic-7",
        "--set",
        "game.calendar.max_days=2",
        "--limit",
        "1",
        "--out",
        "runs/small",
    )
    return (MAIN_JOB, "--profile", "ollama", "--set", host, *small, *more)


def test_main_job_is_played_by_a_model_of_ollama(lab: Lab, stub: OllamaServer) -> None:
    stub.answer = lambda received: says(received) if received.number else Reset()

    lab.done(*job(stub))

    assert lab.run_dir().statuses == {"finished": 1}
    assert {str(chat["model"]) for chat in stub.chats} == {MODEL}
    assert all(chat["format"] for chat in stub.chats)
    lab.verified(lab.run_dir().path)


def test_missing_model_is_bad_input_unless_it_is_to_be_pulled(lab: Lab, stub: OllamaServer) -> None:
    stub.library, stub.shelf = stub.shelf, {}

    refused = lab.run(*job(stub))
    pulled = lab.done(*job(stub, "--pull"))

    assert refused.returncode == 2
    assert f"`ollama pull {MODEL}`, " in refused.stderr
    assert f"pulling {MODEL}: done" in pulled.stderr
    assert lab.run_dir().statuses == {"finished": 1}


def test_server_that_is_not_there_leaves_a_run_that_can_go_on(lab: Lab) -> None:
    with in_a_thread(OllamaServer()) as stub:
        pass

    process = lab.run(*job(stub))

    assert process.returncode == 3
    assert f"from Ollama at {stub.host}" in process.stderr
    assert "Traceback" not in process.stderr


def test_dry_run_sends_no_request(lab: Lab, stub: OllamaServer) -> None:
    lab.done(*job(stub, "--dry-run"))

    assert not stub.pages
