"""Agents that think more or less, over one engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab
from tests.sim.behaviour import Received, Say
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer


def talk(url: str, *agents: Mapping[str, JsonValue]) -> JsonObject:
    """A discussion of agents over the vLLM server at `url`."""
    section: JsonObject = {"model": "stub", "base_urls": [url], "server": "vllm"}
    return {
        "experiment_metadata": {"experiment_name": "talk"},
        "conversation_config": {"environment": "discussion", "conversations": 2},
        "discussion": {"topics": ["Bridge or ferry?"]},
        "model_definitions": {"stub": {"backend": "openai", "openai_config": section}},
        "agent_definitions": [{"role": "participant", "model": "stub", **agent} for agent in agents],
    }


def thinking_of(received: Received) -> bool | None:
    """What a request switches thinking to."""
    template = cast("dict[str, bool]", received.json.get("chat_template_kwargs", {}))
    return template.get("enable_thinking")


def thoughtful(received: Received) -> Say:
    """Thinks where it is switched on."""
    return Say("<think>Both.</think>A bridge." if thinking_of(received) else "A ferry.")


def test_two_agents_of_one_engine_think_and_do_not(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer(script=thoughtful)) as server:
        file = lab.write(
            talk(
                server.url,
                {"agent_id": "deep", "thinking": True, "reasoning_effort": "high"},
                {"agent_id": "quick", "thinking": False},
            )
        )
        ended = at_once(file)
        asked = [(thinking_of(received), received.json.get("reasoning_effort")) for received in server.received]
    run = lab.run_dir("talk")
    transcripts = [json.loads(path.read_bytes()) for path in sorted((run.path / "transcripts").glob("*.json"))]
    thoughts = {
        agent: {
            turn["reply"].get("thinking") for each in transcripts for turn in each["turns"] if turn["agent"] == agent
        }
        for agent in ("deep", "quick")
    }
    samplings = {agent["agent_id"]: agent["sampling"] for agent in transcripts[0]["task"]["agents"]}

    assert ended.returncode == Exit.OK, ended.stderr
    assert set(asked) == {(True, "high"), (False, None)}
    assert thoughts == {"deep": {"Both."}, "quick": {None}}
    assert samplings["deep"] == {
        "temperature": 1.0,
        "max_tokens": 512,
        "reasoning_effort": "high",
        "thinking": True,
    }
    assert samplings["quick"]["thinking"] is False
    lab.verified(run.path)


def test_sampling_of_agents_that_set_none_is_recorded_as_before(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer()) as server:
        at_once(lab.write(talk(server.url, {"agent_id": "a"}, {"agent_id": "b"})))
        bodies = [received.json for received in server.received]
    transcript = json.loads(min((lab.run_dir("talk").path / "transcripts").glob("*.json")).read_bytes())

    assert transcript["task"]["agents"][0]["sampling"] == {"temperature": 1.0, "max_tokens": 512}
    assert not any({"chat_template_kwargs", "reasoning_effort", "verbosity"} & body.keys() for body in bodies)
