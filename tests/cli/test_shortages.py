"""A process that may have little of something says so in a line, and the same command goes on when there is more."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject
from tests.cli.lab import MAC_RUN, Lab, environ, experiment
from tests.faults.tier import one_in
from tests.patience import ended, wait_for
from tests.sim.behaviour import Behaviour, Received
from tests.sim.ollama_server import OllamaServer
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import Connection, OpenaiServer

pytestmark = pytest.mark.ci

IN_FLIGHT = 200
CONVERSATIONS = 100
LOOK_S = 0.01
NO_THREADS = """
import threading
from mac_runner.cli import main
def start(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = start
main()
"""


class HeldOpenai(OpenaiServer):
    """It answers nothing while the gate is closed, and serves all requests at the same time."""

    gate: threading.Event

    def _finish(self, connection: Connection, behaviour: Behaviour, received: Received) -> None:
        if self.gate.is_set():
            super()._finish(connection, behaviour, received)
        else:
            asyncio.get_running_loop().call_later(LOOK_S, self._finish, connection, behaviour, received)


class HeldOllama(HeldOpenai, OllamaServer):
    """The same."""


@dataclass
class Served:
    """A definition of a model whose server holds its requests until the gate is opened."""

    model: JsonObject
    asked: Callable[[], int]
    gate: threading.Event = field(default_factory=threading.Event)


@contextmanager
def served(backend: str) -> Iterator[Served]:
    is_openai = backend == "openai"
    with in_a_thread((HeldOpenai if is_openai else HeldOllama)(slots=4 * IN_FLIGHT)) as server:
        section: JsonObject = {"model": "stub", "base_urls": [server.url], "max_in_flight": IN_FLIGHT}
        if isinstance(server, OllamaServer):
            section = {"model": "qwen3:4b", "host": server.host, "max_in_flight": IN_FLIGHT, "num_ctx": 4096}
        found = Served({"backend": backend, f"{backend}_config": section}, lambda: server.requests)
        server.gate = found.gate
        yield found


def echoes(model: JsonObject) -> JsonObject:
    return {
        "experiment_metadata": {"experiment_name": "echoes"},
        "conversation_config": {"environment": "echo", "conversations": CONVERSATIONS},
        "echo": {"rounds": 1},
        "model_definitions": {"m": model},
        "agent_definitions": [{"agent_id": "a", "role": "participant", "model": "m", "max_tokens": 16}],
    }


def with_descriptors(soft: int, hard: int, taken: int = 0) -> Callable[[], None]:
    """Before a process begins: its limits, and so many descriptors that somebody else has taken."""

    def prepare() -> None:
        for _ in range(taken):
            os.set_inheritable(os.dup(2), True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return prepare


def starts(prepare: Callable[[], None]) -> bool:
    """Whether Python by itself can start and end well."""
    alone = subprocess.run([sys.executable, "-c", "pass"], capture_output=True, check=False, preexec_fn=prepare)
    return alone.returncode == 0


def played(
    lab: Lab, served: Served, prepare: Callable[[], None], condition: Callable[[], object]
) -> tuple[int, str, str]:
    """Play with these limits; the server holds all requests until `condition` holds."""
    process = subprocess.Popen(
        [*MAC_RUN, lab.write(echoes(served.model)), "--no-live"],
        cwd=lab.path,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
        close_fds=False,
    )
    lab.started.append(process)
    wait_for(lambda: process.poll() is not None or condition(), "what the server waits for")
    served.gate.set()
    return ended(process)


@pytest.mark.parametrize("backend", ["openai", "ollama"])
def test_connections_are_as_many_as_descriptors_allow_and_the_run_directory_has_its_own(
    lab: Lab, backend: str, snapshot: SnapshotAssertion
) -> None:
    run = lab.run_dir("echoes")
    with served(backend) as model:
        code, _, err = played(lab, model, with_descriptors(40, 128), lambda: model.asked() >= 64)

    assert code == Exit.OK, err
    assert [line for line in err.splitlines() if "descriptors" in line] == snapshot
    assert run.statuses == {"finished": CONVERSATIONS}
    assert run.events("EVENT_RETRY") == []
    (start,) = run.events("EVENT_RUN_START")
    assert start["concurrency"] == 64
    lab.verified(run.path)


@pytest.mark.parametrize("backend", ["openai", "ollama"])
def test_request_without_a_descriptor_waits_for_one(lab: Lab, backend: str) -> None:
    """More is open than was reckoned with: connections are what there is less of, and nothing fails for it."""
    run = lab.run_dir("echoes")
    with served(backend) as model:
        limits = with_descriptors(128, 128, taken=60)
        code, _, err = played(lab, model, limits, lambda: run.events("EVENT_RETRY"))

    assert code == Exit.OK, err
    assert run.statuses == {"finished": CONVERSATIONS}
    retries = run.events("EVENT_RETRY")
    assert retries
    assert all("no file descriptor" in str(retry["error"]) for retry in retries)
    assert "set aside" not in err
    lab.verified(run.path)


def test_process_that_may_have_next_to_nothing_says_so_in_a_line(lab: Lab) -> None:
    """But for what Python itself cannot start with."""
    mib = 1 << 20
    resumable, stored = {int(Exit.INTERRUPTED)}, {int(Exit.STORAGE_FAILED)}
    either = resumable | stored | {int(Exit.OK)}
    cases = [
        (resource.RLIMIT_NOFILE, 24, {int(Exit.OK)}),
        *((resource.RLIMIT_NOFILE, number, resumable) for number in one_in(2, (23, 9, 8, 6, 5))),
        *((resource.RLIMIT_AS, size * mib, either) for size in one_in(3, (25, 38, 45, 55, 59, 64, 70, 80))),
        *((resource.RLIMIT_FSIZE, size, stored) for size in one_in(2, (0, 1_000, 8_000))),
    ]

    def play(number: int, kind: int, most: int, codes: set[int]) -> str:
        limit = partial(resource.setrlimit, kind, (most, most))
        code, _, err = ended(lab.start(file, "--quiet", "--out", f"runs/{number}", preexec=limit))
        lines = err.splitlines()
        is_told = not lines if code == Exit.OK else len(lines) == 1 and lines[0].startswith("mac-run: ")
        is_right = code in codes and is_told and (not lines or "same command again" in lines[0])
        return "" if is_right or not starts(limit) else f"{kind} {most}: {code} {err}"

    file = lab.write(experiment(conversations=1))
    with ThreadPoolExecutor(4) as threads:
        wrong = [told for told in threads.map(lambda case: play(case[0], *case[1]), enumerate(cases)) if told]

    assert wrong == []
    for directory in sorted((lab.path / "runs").iterdir())[::4]:
        lab.play(file, "--quiet", "--out", str(directory))
        lab.verified(directory)


def test_process_that_may_start_no_thread_says_so_in_a_line(lab: Lab, snapshot: SnapshotAssertion) -> None:
    file = lab.write(experiment(conversations=1))
    code, _, err = ended(lab.start(file, "--quiet", program=(sys.executable, "-c", NO_THREADS)))

    assert code == Exit.INTERRUPTED
    assert err == snapshot
    lab.play(file)
    lab.verified(lab.run_dir().path)
