"""`mac-run` over the Messages API: the whole way, through a kill, and with two ways to think on one engine."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab
from tests.patience import ended, wait_for
from tests.sim.anthropic_server import AnthropicServer, failure, message
from tests.sim.behaviour import Behaviour, Hang, Received, Say
from tests.sim.openai_run import in_a_thread

KEY = "sk-ant-canary-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


def talk(
    url: str, *, conversations: int = 6, agents: tuple[JsonObject, ...] = ({}, {}), **section: JsonValue
) -> JsonObject:
    """A discussion over the server at `url`."""
    model: JsonObject = {"model": "stub", "base_url": url, "max_in_flight": 4, **section}
    return {
        "experiment_metadata": {"experiment_name": "talk"},
        "conversation_config": {"environment": "discussion", "conversations": conversations},
        "discussion": {"topics": ["Bridge or ferry?"]},
        "retry_config": {"backoff_s": 0.01, "backoff_s_max": 0.02},
        "model_definitions": {"stub": {"backend": "anthropic", "anthropic_config": model}},
        "agent_definitions": [
            {"agent_id": f"a{number}", "role": "participant", "model": "stub", **agent}
            for number, agent in enumerate(agents)
        ],
    }


def moody(received: Received) -> Behaviour:
    """Overloaded, limited and broken now and then."""
    match received.number % 7:
        case 0:
            return failure(529, f"Overloaded, {KEY}", kind="overloaded_error")
        case 2:
            return failure(429, "limit", kind="rate_limit_error", headers=(("retry-after", "0.01"),))
        case 4:
            return failure(500, f"broken, {KEY}")
        case _:
            return message("A bridge.")


@pytest.mark.ci
def test_run_goes_on_after_a_kill_and_ends_as_if_there_was_none(lab: Lab, at_once: AtOnce) -> None:
    killed: list[Received] = []

    def answer(received: Received) -> Behaviour:
        return Say("A bridge.") if received.number < 10 or killed else Hang()

    with in_a_thread(AnthropicServer(answer=answer, api_key=KEY)) as server:
        file = lab.write(talk(server.host, conversations=12))
        running = lab.start(file, "--no-live")
        wait_for(lambda: running.poll() is not None or server.requests > 10, "ten replies")
        running.send_signal(signal.SIGKILL)
        ended(running)
        killed += server.received
        second = at_once(file)

    assert server.requests > len(killed)
    assert second.returncode == Exit.OK, second.stderr
    assert lab.run_dir("talk").statuses == {"finished": 12}
    lab.verified(lab.run_dir("talk").path)


def test_faults_of_the_api_cost_nothing_and_the_key_is_written_nowhere(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(AnthropicServer(answer=moody, api_key=KEY)) as server:
        done = at_once(lab.write(talk(server.host)))

    assert done.returncode == Exit.OK, done.stderr
    assert lab.run_dir("talk").statuses == {"finished": 6}
    assert "***" in (lab.run_dir("talk").path / "events.jsonl").read_text()
    assert KEY not in done.stdout + done.stderr
    files = [path for path in lab.path.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_two_agents_of_one_engine_think_and_do_not(lab: Lab, at_once: AtOnce) -> None:
    def thoughtful(received: Received) -> Behaviour:
        thinks = received.json.get("thinking") == {"type": "adaptive", "display": "summarized"}
        return message("A bridge.", thinking="Both." if thinks else "")

    agents: tuple[JsonObject, ...] = ({"thinking": True, "reasoning_effort": "high"}, {"thinking": False})
    with in_a_thread(AnthropicServer(answer=thoughtful, api_key=KEY)) as server:
        done = at_once(lab.write(talk(server.host, agents=agents)))
        outputs = [received.json["output_config"] for received in server.received]
    transcripts = [json.loads(path.read_bytes()) for path in (lab.run_dir("talk").path / "transcripts").glob("*.json")]
    turns = [turn for each in transcripts for turn in each["turns"]]

    assert done.returncode == Exit.OK, done.stderr
    assert {(turn["agent"], turn["reply"].get("thinking")) for turn in turns} == {("a0", "Both."), ("a1", None)}
    assert {output.get("effort") for output in outputs if isinstance(output, dict)} == {"high", None}


def test_denied_key_stops_the_run_which_goes_on_with_another(lab: Lab, at_once: AtOnce) -> None:
    def revoked(received: Received) -> Behaviour:
        return failure(401, "key revoked") if received.number > 5 else message()

    with in_a_thread(AnthropicServer(answer=revoked)) as server:
        file = lab.write(talk(server.host))
        first = at_once(file)
    with in_a_thread(AnthropicServer()) as server:
        second = at_once(file, "--set", f"model_definitions.stub.anthropic_config.base_url={server.host}")

    assert (first.returncode, second.returncode) == (Exit.INTERRUPTED, Exit.OK)
    assert "status 401: key revoked" in first.stderr
    assert lab.run_dir("talk").statuses == {"finished": 6}


@pytest.mark.ci
def test_doctor_finds_what_the_model_takes(lab: Lab, at_once: AtOnce) -> None:
    """A model without structured outputs: the setting that works is named, and not one that the API has not."""

    def older(received: Received) -> Behaviour:
        output = received.json.get("output_config", {})
        assert isinstance(output, dict)
        return failure(400, "output_config.format: Extra inputs are not permitted") if output else message("a")

    agents: tuple[JsonObject, ...] = ({"thinking": True, "max_tokens": 3000}, {})
    with in_a_thread(AnthropicServer(api_key=KEY, answer=older)) as server:
        done = at_once("doctor", lab.write(talk(server.host, thinking_budget_tokens=2000, agents=agents)))

    assert "set model_definitions.stub.constrained_decoding: none" in done.stdout, done.stdout + done.stderr
    assert "json_object" not in done.stdout


@pytest.mark.ci
def test_its_client_is_loaded_for_no_other_experiment(lab: Lab) -> None:
    program = (sys.executable, "-c", "import sys, mac_runner.cli; sys.exit('anthropic' in sys.modules)")

    assert lab.start(program=program).wait() == 0
