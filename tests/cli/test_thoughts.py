"""The thoughts of a reasoning model in a run directory: beside its replies, and kept by what rebuilds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, experiment
from tests.sim.behaviour import Behaviour, Received, Say, Send, encoded
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

WAIT = '{"act": "wait"}'


def thinking(received: Received) -> Behaviour:
    """Thinks about every second request, in the field of vLLM or in that of DeepSeek, or in the text itself."""
    field, text = {0: ("reasoning", WAIT), 2: ("reasoning_content", WAIT), 4: ("", f"<think>Hm.</think>{WAIT}")}.get(
        received.number % 6, ("", WAIT)
    )
    message: JsonObject = {"role": "assistant", "content": text, **({field: "Hm."} if field else {})}
    choice: JsonObject = {"index": 0, "finish_reason": "stop", "message": message}
    return Send(200, encoded({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}))


def replies(run: Path) -> list[JsonObject]:
    transcripts = [json.loads(path.read_bytes()) for path in sorted((run / "transcripts").iterdir())]
    return [turn["reply"] for transcript in transcripts for turn in transcript["turns"]]


@pytest.mark.ci
def test_thoughts_are_recorded_beside_replies_and_survive_a_repair(at_once: AtOnce, lab: Lab) -> None:
    with in_a_thread(OpenaiServer(script=thinking)) as server:
        model: JsonObject = {"backend": "openai", "openai_config": {"model": "stub", "base_urls": [server.url]}}
        assert at_once(lab.write(experiment(models={"m": model})), "--quiet").returncode == 0
    run = lab.run_dir().path
    found = replies(run)
    whole = {path: path.read_bytes() for path in (run / "transcripts").iterdir()}

    assert {reply["text"] for reply in found} == {WAIT}
    assert {reply.get("thinking") for reply in found} == {"Hm.", None}
    assert sum("thinking" in reply for reply in found) == -(-len(found) // 2)
    assert at_once("verify", str(run)).returncode == 0

    for path in whole:
        path.unlink()
    assert at_once("repair", str(run)).returncode == 0
    assert {path: path.read_bytes() for path in (run / "transcripts").iterdir()} == whole


def test_run_of_a_model_that_does_not_think_says_nothing_of_thoughts(at_once: AtOnce, lab: Lab) -> None:
    with in_a_thread(OpenaiServer(script=lambda _received: Say(WAIT))) as server:
        model: JsonObject = {"backend": "openai", "openai_config": {"model": "stub", "base_urls": [server.url]}}
        assert at_once(lab.write(experiment(conversations=1, models={"m": model})), "--quiet").returncode == 0

    files = [path for path in lab.run_dir().path.rglob("*") if path.is_file()]
    assert not [path for path in files if b'"thinking":' in path.read_bytes()]
