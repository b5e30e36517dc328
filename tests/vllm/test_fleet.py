"""A lane of real vLLM on the CPU, killed in the middle of a run: it is started again, and the run ends well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import Lab
from tests.patience import ended, wait_for

CONVERSATIONS = 40


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(path=tmp_path)
    yield lab
    lab.close()


def talk(model: Path) -> JsonObject:
    """Discussions over one lane; the reply's form is held by vLLM's grammar."""
    command: list[JsonValue] = [
        # What `vllm serve` runs; the command itself looks for a package of the name vllm, which the CPU's build is not.
        # Its warnings are not ours to mend.
        *("env", "PYTHONWARNINGS=default", sys.executable),
        *("-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"),
        *("--host", "127.0.0.1", "--port", "{port}", "--dtype", "float32", "--enforce-eager", "--block-size", "32"),
        *("--max-num-seqs", "2", "--enable-prompt-tokens-details"),
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


def test_run_over_a_lane_that_is_killed_ends_well_once_it_is_back(lab: Lab, tiny_model: Path) -> None:
    process = lab.start(lab.write(talk(tiny_model)), "--no-live")
    run = lab.run_dir("talk")

    def is_under_way() -> bool:
        assert process.poll() is None, process.communicate()
        return len(run.events("EVENT_INFER_DONE")) >= 10

    wait_for(is_under_way, "ten replies")
    (server,) = servers(process.pid)
    server.kill()
    code, _, err = ended(process)

    assert code == Exit.OK, err
    assert run.statuses == {"finished": CONVERSATIONS}
    assert [len(run.events(f"EVENT_LANE_{what}")) for what in ("DEAD", "RESTART", "UP", "RETIRED")] == [1, 1, 2, 0]
    assert run.events("EVENT_ENGINE_DEATH")
    lab.verified(run.path)
