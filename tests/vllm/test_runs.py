"""Whole runs of `mac-run` on a real engine: stopped in every way, gone on with, over a lane that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mac_runner.cli.checks import Verify
from mac_runner.cli.process import STOPPING, Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.conftest import at_once as at_once
from tests.cli.conftest import lab as lab
from tests.cli.lab import ROOT, AtOnce, Lab, RunDir, experiment
from tests.patience import LIMIT_S, ended, wait_for
from tests.sim.held_run import FLEET, VLLM, held, hold
from tests.vllm.processes import Process, all_processes, engine_processes
from tests.vllm.table import THREADS, two_cores

GAMES = 2

REPLIES = 6
"""How many more there are when a run is disturbed."""


def games(model: Path) -> JsonObject:
    """Short games whose every reply the engine is made to give in the form the game asks for.

    The chat template opens a thought, for which the form leaves no room. What is cut off is not asked for again.
    """
    vllm_config: JsonObject = {
        "model": str(model),
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": 32,
        "max_num_seqs_upper_bound": 4,
        "chat_template_kwargs": {"enable_thinking": True},
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    content = experiment(conversations=GAMES, models={"m": {"backend": "vllm", "vllm_config": vllm_config}})
    agent: JsonObject = {"agent_id": "player", "role": "player", "model": "m", "max_tokens": 60, "top_k": 50}
    game: JsonObject = {"lobby": "classic-7", "calendar": {"max_days": 1}}
    return {**content, "agent_definitions": [agent], "game": game, "retry_config": {"max_retries": 0}}


class MacRun:
    """One `mac-run`, in a process group of its own as a terminal gives it one.

    It asks for REPLIES replies, and for more only when it is let go on.
    """

    def __init__(self, lab: Lab, *args: str) -> None:
        self.errors, self._gate = lab.path / "errors.txt", lab.path / f"gate-{len(lab.started)}"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*held(REPLIES, self._gate, VLLM), *args],
                cwd=lab.path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        lab.started.append(self.process)

    def ended(self) -> tuple[int, str, str]:
        """Let it go on, and wait for its end."""
        self._gate.touch()
        code, out, _ = ended(self.process)
        return code, out, self.errors.read_text()

    def wait_for(self, is_so: Callable[[], object], what: str) -> None:
        def look() -> object:
            assert self.process.poll() is None, self.errors.read_text()
            return is_so()

        wait_for(look, what)

    def wait_for_replies(self, run: RunDir, count: int) -> None:
        self.wait_for(lambda: len(run.events("EVENT_INFER_DONE")) >= count, f"{count} replies")


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_run_stopped_in_every_way_ends_like_one_that_was_not(
    lab: Lab, at_once: AtOnce, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """Also where the engine that dies has two copies of the model, and the one that is lost has split it.

    What needs no process of its own is played in this one, which has loaded vLLM already.
    """
    file = lab.write(games(tiny_model))
    run, undisturbed = lab.run_dir(), RunDir(path=lab.path / "undisturbed")

    calm = at_once(file, "--out", str(undisturbed.path))
    errors = calm.stderr
    assert calm.returncode == Exit.OK or "nothing was usable" in calm.stdout, errors
    assert f"{GAMES} of {GAMES} games finished, 0 failed" in calm.stdout
    assert ": ready after" in errors
    assert "chat template opens" in errors
    assert "<think>" not in str(undisturbed.transcripts)
    known = ("small: ", "model m: ", "for paired differences")
    assert all(line.startswith(known) for line in errors.splitlines()), errors

    # A process of the engine dies: the run ends with all of them, and can be gone on with.
    gate = lab.path / "gate"
    with ThreadPoolExecutor(1) as beside, hold(REPLIES, gate, VLLM):
        killing = beside.submit(killed_once_it_replies, run, gate)
        first = at_once(file, "--set", f"model_definitions.m.vllm_config.data_parallel_size={processes}")
    assert first.returncode == Exit.INTERRUPTED
    assert not alive(engine.pid for engine in killing.result())
    assert "process has ended; " in first.stderr
    assert "printed is in" in first.stderr

    # Ctrl-C reaches the whole group: what is in flight is finished, and nothing is left running.
    recorded = len(run.events("EVENT_INFER_DONE"))
    second = MacRun(lab, file)
    second.wait_for_replies(run, recorded + REPLIES)
    engines = engine_processes(second.process.pid)
    os.killpg(second.process.pid, signal.SIGINT)
    second.wait_for(lambda: STOPPING in second.errors.read_text(), "its answer to Ctrl-C")
    code, _, errors = second.ended()
    assert code == Exit.INTERRUPTED
    assert "interrupted: " in errors
    assert not run.events("EVENT_RETRY")
    assert engines
    assert not alive(engine.pid for engine in engines)

    # mac-run is killed: its engine goes with it, all its workers too.
    recorded = len(run.events("EVENT_INFER_DONE"))
    if processes > 1:
        monkeypatch.setenv(THREADS, two_cores())
    third = MacRun(lab, file, "--set", f"model_definitions.m.vllm_config.tensor_parallel_size={processes}")
    third.wait_for_replies(run, recorded + REPLIES)
    engines = engine_processes(third.process.pid)
    third.process.send_signal(signal.SIGKILL)
    assert ended(third.process)[0] == -signal.SIGKILL
    assert engines
    wait_for(lambda: not alive(engine.pid for engine in engines), "the engine's end")
    monkeypatch.delenv(THREADS, raising=False)

    last = at_once(file)
    assert last.returncode == Exit.OK or "nothing was usable" in last.stdout, last.stderr
    assert run.transcripts == undisturbed.transcripts
    assert Verify(directory=run.path).work() == Exit.OK
    done = Counter((event["task"], event["turn"]) for event in run.events("EVENT_INFER_DONE"))
    assert set(done.values()) == {1}


def killed_once_it_replies(run: RunDir, gate: Path) -> list[Process]:
    """The processes of this process's engine, of which one was killed after REPLIES replies. The run goes on then."""
    try:
        wait_for(lambda: len(run.events("EVENT_INFER_DONE")) >= REPLIES, f"{REPLIES} replies")
        engines = engine_processes()
        os.kill(engines[-1].pid, signal.SIGKILL)
        return engines
    finally:
        gate.touch()


def test_misspelt_engine_argument_is_refused_before_anything_is_touched(
    lab: Lab, at_once: AtOnce, tiny_model: Path
) -> None:
    file = lab.write(games(tiny_model))

    refused = at_once(file, "--set", "model_definitions.m.vllm_config.enforce_eagr=true")

    assert (refused.returncode, refused.stdout) == (Exit.BAD_INPUT, "")
    assert "did you mean 'enforce_eager'?" in refused.stderr
    assert not run_directories(lab)


def run_directories(lab: Lab) -> list[Path]:
    return list((lab.path / "runs").glob("*"))


def alive(pids: Iterable[int]) -> set[int]:
    """Those of `pids` that are still running."""
    return set(pids) & {process.pid for process in all_processes() if process.state[0] != "Z"}


DISCUSSIONS = 20

LANE_REPLIES = 10
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
        "conversation_config": {"environment": "discussion", "conversations": DISCUSSIONS},
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
    process = lab.start(lab.write(talk(tiny_model)), "--no-live", program=held(LANE_REPLIES, gate, FLEET))
    run = lab.run_dir("talk")

    def is_under_way() -> bool:
        assert process.poll() is None, process.communicate()
        return len(run.events("EVENT_INFER_DONE")) == LANE_REPLIES

    wait_for(is_under_way, f"{LANE_REPLIES} replies")
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
    assert run.statuses == {"finished": DISCUSSIONS}
    assert [len(run.events(f"EVENT_LANE_{what}")) for what in ("DEAD", "RESTART", "UP", "RETIRED")] == [1, 1, 2, 0]
    assert run.events("EVENT_ENGINE_DEATH")
    lab.verified(run.path)
