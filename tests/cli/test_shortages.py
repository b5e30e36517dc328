"""A process that may have little of something says so in a line, and the same command goes on when there is more."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject
from tests.cli.lab import MAC_RUN, Lab, environ, experiment
from tests.patience import LIMIT_S
from tests.sim.ollama_server import OllamaStub
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

pytestmark = pytest.mark.ci

LATENCY_S = 0.2
IN_FLIGHT = 200
CONVERSATIONS = 240
NO_THREADS = """
import threading
from mac_runner.cli import main
def start(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = start
main()
"""


class SlowOllama(OllamaStub):
    """It takes its time, and serves all requests at the same time."""

    async def _answer(self, request: object, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(LATENCY_S)
        return await super()._answer(request, writer)  # type: ignore[arg-type]


@contextmanager
def served(backend: str) -> Iterator[JsonObject]:
    """A definition of a model that a slow server serves."""
    if backend == "openai":
        with in_a_thread(OpenaiServer(slots=4 * IN_FLIGHT, latency_s=LATENCY_S)) as server:
            section: JsonObject = {"model": "stub", "base_urls": [server.url], "max_in_flight": IN_FLIGHT}
            yield {"backend": "openai", "openai_config": section}
    else:
        with SlowOllama() as stub:
            section = {"model": "qwen3:4b", "host": stub.host, "max_in_flight": IN_FLIGHT, "num_ctx": 4096}
            yield {"backend": "ollama", "ollama_config": section}


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


def played(lab: Lab, file: str, prepare: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MAC_RUN, file, "--no-live"],
        cwd=lab.path,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        preexec_fn=prepare,
        close_fds=False,
    )


@pytest.mark.parametrize("backend", ["openai", "ollama"])
def test_connections_are_as_many_as_descriptors_allow_and_the_run_directory_has_its_own(lab: Lab, backend: str) -> None:
    with served(backend) as model:
        ended = played(lab, lab.write(echoes(model)), with_descriptors(40, 128))

    run = lab.run_dir("echoes")
    assert ended.returncode == Exit.OK, ended.stderr
    told = "128 file descriptors leave room for 64 connections and not for 200: at most 64 requests are in flight"
    assert sum(line.startswith(told) for line in ended.stderr.splitlines()) == 1
    assert run.statuses == {"finished": CONVERSATIONS}
    assert run.events("EVENT_RETRY") == []
    (start,) = run.events("EVENT_RUN_START")
    assert start["concurrency"] == 64
    lab.verified(run.path)


@pytest.mark.parametrize("backend", ["openai", "ollama"])
def test_request_without_a_descriptor_waits_for_one(lab: Lab, backend: str) -> None:
    """More is open than was reckoned with: connections are what there is less of, and nothing fails for it."""
    with served(backend) as model:
        ended = played(lab, lab.write(echoes(model)), with_descriptors(128, 128, taken=60))

    run = lab.run_dir("echoes")
    assert ended.returncode == Exit.OK, ended.stderr
    assert run.statuses == {"finished": CONVERSATIONS}
    retries = run.events("EVENT_RETRY")
    assert retries
    assert all("no file descriptor is left for a connection" in str(retry["error"]) for retry in retries)
    assert "set aside" not in ended.stderr
    lab.verified(run.path)


def test_process_that_may_have_next_to_nothing_says_so_in_a_line(lab: Lab) -> None:
    """But for what Python itself cannot start with."""
    mib = 1 << 20
    resumable, stored = {int(Exit.INTERRUPTED)}, {int(Exit.STORAGE_FAILED)}
    either = resumable | stored | {int(Exit.OK)}
    cases = [
        *((resource.RLIMIT_NOFILE, number, resumable) for number in (5, 6, 8, 9, 23)),
        *((resource.RLIMIT_NOFILE, number, {int(Exit.OK)}) for number in (24,)),
        *((resource.RLIMIT_AS, size * mib, either) for size in (25, 38, 45, 55, 59, 64, 70, 80)),
        *((resource.RLIMIT_FSIZE, size, stored) for size in (0, 1_000, 8_000)),
    ]

    def play(number: int, kind: int, most: int, codes: set[int]) -> str:
        ended = subprocess.run(
            [*MAC_RUN, file, "--quiet", "--out", f"runs/{number}"],
            cwd=lab.path,
            env=environ(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            preexec_fn=lambda: resource.setrlimit(kind, (most, most)),
        )
        lines = ended.stderr.splitlines()
        is_told = not lines if ended.returncode == Exit.OK else len(lines) == 1 and lines[0].startswith("mac-run: ")
        is_right = ended.returncode in codes and is_told and (not lines or "run the same command again" in lines[0])
        if is_right or not starts(lambda: resource.setrlimit(kind, (most, most))):
            return ""
        return f"{kind} {most}: {ended.returncode} {ended.stderr}"

    file = lab.write(experiment(conversations=1))
    with ThreadPoolExecutor(4) as threads:
        wrong = [told for told in threads.map(lambda case: play(case[0], *case[1]), enumerate(cases)) if told]

    assert wrong == []
    for directory in sorted((lab.path / "runs").iterdir())[::4]:
        lab.done(file, "--quiet", "--out", str(directory))
        lab.verified(directory)


def test_process_that_may_start_no_thread_says_so_in_a_line(lab: Lab) -> None:
    file = lab.write(experiment(conversations=1))
    ended = subprocess.run(
        [sys.executable, "-c", NO_THREADS, file, "--quiet"],
        cwd=lab.path,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert ended.returncode == Exit.INTERRUPTED
    (line,) = ended.stderr.splitlines()
    assert "no further thread can be started; raise the limit on processes or memory" in line
    lab.done(file)
    lab.verified(lab.run_dir().path)
