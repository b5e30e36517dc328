"""A lane of real vLLM on the CPU, killed in the middle of a run: it is started again, and the run ends well."""

from __future__ import annotations

import json
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.conftest import lab as lab
from tests.cli.lab import Lab
from tests.patience import LIMIT_S, ended, wait_for
from tests.sim.held_run import FLEET, held

CONVERSATIONS = 20
REPLIES = 10
"""How many there are when the lane is killed."""


def talk(model: Path) -> JsonObject:
    """Discussions over one lane; the reply's form is held by vLLM's grammar."""
    command: list[JsonValue] = [
        # What `vllm serve` runs; the command itself looks for a package of the name vllm, which the CPU's build is not.
        # Its warnings are not ours to mend.
        *("env", "PYTHONWARNINGS=default", sys.executable),
        *("-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"),
        *("--host", "127.0.0.1", "--port", "{port}", "--dtype", "float32", "--enforce-eager", "--block-size", "32"),
        *("--max-num-seqs", "2", "--enable-prompt-tokens-details", "--enable-server-load-tracking"),
        *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
    ]
    section: JsonObject = {"model": str(model), "engine": "command", "server": "vllm", "max_num_seqs": 2}
    return {
        "experiment_metadata": {"experiment_name": "talk"},
        "conversation_config": {"environment": "discussion", "conversations": CONVERSATIONS},
        "discussion": {"topics": ["Bridge or ferry?"], "max_rounds": 2},
        "fleet": {"gpus": 1},
        "model_definitions": {"m": {"backend": "fleet", "fleet_config": {**section, "command": command}}},
        "agent_definitions": [
            {"agent_id": name, "role": "participant", "model": "m", "max_tokens": 24} for name in ("a", "b")
        ],
    }


def servers(parent: int) -> list[psutil.Process]:
    """The servers that a process has started."""
    found = psutil.Process(parent).children(recursive=True)
    return [one for one in found if "vllm.entrypoints.openai.api_server" in one.cmdline()[:3]]


def requests_at(server: psutil.Process) -> int:
    """How many requests a server has not answered."""
    words = server.cmdline()
    url = f"http://127.0.0.1:{words[words.index('--port') + 1]}/load"
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return int(json.load(answer)["server_load"])


def test_run_over_a_lane_that_is_killed_ends_well_once_it_is_back(lab: Lab, tiny_model: Path) -> None:
    """Its engine stands still before, so that it is at work on a request when it is killed."""
    gate = lab.path / "gate"
    process = lab.start(lab.write(talk(tiny_model)), "--no-live", program=held(REPLIES, gate, FLEET))
    run = lab.run_dir("talk")

    def is_under_way() -> bool:
        assert process.poll() is None, process.communicate()
        return len(run.events("EVENT_INFER_DONE")) == REPLIES

    wait_for(is_under_way, f"{REPLIES} replies")
    (server,) = servers(process.pid)
    (engine,) = [child for child in server.children() if "EngineCore" in child.name()]
    engine.suspend()
    gate.touch()
    wait_for(lambda: requests_at(server), "a request")
    server.kill()
    with suppress(psutil.NoSuchProcess):
        engine.resume()
    code, _, err = ended(process)

    assert code == Exit.OK, err
    assert run.statuses == {"finished": CONVERSATIONS}
    assert [len(run.events(f"EVENT_LANE_{what}")) for what in ("DEAD", "RESTART", "UP", "RETIRED")] == [1, 1, 2, 0]
    assert run.events("EVENT_ENGINE_DEATH")
    lab.verified(run.path)
