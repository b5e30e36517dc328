"""`mac-run` over a server of the OpenAI protocol: the whole way, and a key that is never written anywhere."""

from __future__ import annotations

import json
import re
import sys

import pytest

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, discussion
from tests.sim.behaviour import Behaviour, Received, Say, Send, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

KEY = "sk-canary-0123456789"


def talk(url: str, **section: JsonValue) -> JsonObject:
    """Discussions over the server at `url`."""
    config: JsonObject = {"model": "stub", "base_urls": [url], **section}
    return discussion({"backend": "openai", "openai_config": config}, conversations=6, retry_config={"backoff_s": 0.01})


def babbling(received: Received) -> Behaviour:
    """Repeats the headers it was sent, the key among them, wherever a server could."""
    told = json.dumps(received.headers)
    match received.number % 4:
        case 0:
            return failure(500, told)
        case 1:
            return failure(400 if received.number == 9 else 429, told)
        case _:
            return Say("So be it.")


def test_server_without_usage_is_said_not_to_count(lab: Lab, at_once: AtOnce) -> None:
    reply = {"choices": [{"message": {"content": "A bridge."}, "finish_reason": "stop"}]}
    with in_a_thread(OpenaiServer(script=lambda _received: Send(200, json.dumps(reply).encode()))) as server:
        ended = at_once(lab.write(talk(server.url)))
    summary = lab.run_dir("talk").summary
    tokens = summary["tokens"]

    assert re.search(r"^tokens +not counted", ended.stdout, re.MULTILINE)
    assert "tokens not counted" in ended.stderr
    assert isinstance(tokens, dict)
    assert (tokens["uncounted_turns"], tokens["uncounted_models"]) == (summary["turns"], ["m"])
    lab.verified(lab.run_dir("talk").path)


def test_discussion_runs_over_a_server_and_goes_on_when_it_comes_back(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(
        OpenaiServer(script=lambda received: failure(401, "expired") if received.number > 9 else Say())
    ) as s:
        file = lab.write(talk(s.url))
        first = at_once(file)
    with in_a_thread(OpenaiServer()) as server:
        second = at_once(file, "--set", f"model_definitions.m.openai_config.base_urls=[{server.url}]")

    assert first.returncode == Exit.INTERRUPTED
    assert "status 401: expired" in first.stderr
    assert second.returncode == Exit.OK
    assert lab.run_dir("talk").statuses == {"finished": 6}
    assert server.requests < 24
    lab.verified(lab.run_dir("talk").path)


@pytest.mark.ci
def test_key_is_written_nowhere(lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_KEY", KEY)
    with in_a_thread(OpenaiServer(script=babbling)) as server:
        ended = at_once(lab.write(talk(server.url, api_key_env="STUB_KEY")))
        asked = {received.headers["authorization"] for received in server.received}

    assert asked == {f"Bearer {KEY}"}
    assert ended.returncode == Exit.FAILURES
    assert "***" in (lab.run_dir("talk").path / "events.jsonl").read_text()
    assert KEY not in ended.stdout + ended.stderr
    files = [path for path in lab.path.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_missing_key_is_reported_before_anything_is_touched(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(talk("http://127.0.0.1:9/v1", api_key_env="STUB_KEY"))
    ended = at_once(file)

    assert ended.returncode == Exit.BAD_INPUT
    assert f"{file}:" in ended.stderr
    assert "variable STUB_KEY is" in ended.stderr
    assert [path.name for path in lab.path.iterdir()] == [file]


@pytest.mark.ci
def test_its_client_is_loaded_for_no_other_experiment(lab: Lab) -> None:
    program = (sys.executable, "-c", "import sys, mac_runner.cli; sys.exit('aiohttp' in sys.modules)")

    assert lab.start(program=program).wait() == 0
