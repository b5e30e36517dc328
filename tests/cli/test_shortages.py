"""A process that may have little of something says so in a line, and the same command goes on when there is more."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
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
from mac_runner.store import System
from mac_runner.store.testing import Free
from mac_runner.types import JsonObject
from tests.cli.lab import ROOT, AtOnce, Ended, Lab, echoes, ending, experiment, scripted
from tests.faults.tier import one_in
from tests.patience import ended, wait_for
from tests.sim.behaviour import Behaviour, Received
from tests.sim.ollama_server import OllamaServer
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import Connection, OpenaiServer
from tests.tiers import some

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
NO_MEMORY = """
import atexit, resource
from pathlib import Path
from mac_runner.cli.process import end
from mac_runner.cli.process import keep_reserve

atexit.register(print, "the interpreter ends")
keep_reserve()
held = []

def take_all():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)
    for size in (1 << 20, 1 << 16, 1 << 12, *range(512, 0, -16)):
        try:
            while True:
                held.append(bytes(size))
        except MemoryError:
            pass

def work():
    print("half a report")
    take_all()
    raise {fault}

end(work)
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


def played(lab: Lab, served: Served, prepare: Callable[[], None], condition: Callable[[], object]) -> Ended:
    """Play with these limits; the server holds all requests until `condition` holds."""
    file = lab.write(echoes(served.model, conversations=CONVERSATIONS, agents=({"max_tokens": 16},)))
    process = lab.start(file, "--no-live", preexec=prepare, close_fds=False)
    wait_for(lambda: process.poll() is not None or condition(), "what the server waits for")
    served.gate.set()
    return ending(process)


@pytest.mark.parametrize("backend", some(2, ["openai", "ollama"]))
def test_connections_are_as_many_as_descriptors_allow_and_the_run_directory_has_its_own(
    lab: Lab, backend: str, snapshot: SnapshotAssertion
) -> None:
    run = lab.run_dir("echoes")
    with served(backend) as model:
        told = played(lab, model, with_descriptors(40, 128), lambda: model.asked() >= 64).done().stderr

    assert [line for line in told.splitlines() if "descriptors" in line] == snapshot
    assert run.statuses == {"finished": CONVERSATIONS}
    assert run.events("EVENT_RETRY") == []
    (start,) = run.events("EVENT_RUN_START")
    assert start["concurrency"] == 64
    lab.verified(run.path)


@pytest.mark.parametrize("backend", some(2, ["openai", "ollama"]))
def test_request_without_a_descriptor_waits_for_one(lab: Lab, backend: str) -> None:
    """More is open than was reckoned with: connections are what there is less of, and nothing fails for it."""
    run = lab.run_dir("echoes")
    with served(backend) as model:
        ended = played(lab, model, with_descriptors(128, 128, taken=60), lambda: run.events("EVENT_RETRY")).done()

    assert run.statuses == {"finished": CONVERSATIONS}
    assert {"no file descriptor" in retry["error"] for retry in run.events("EVENT_RETRY")} == {True}
    assert "set aside" not in ended.stderr
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


@pytest.mark.parametrize("fault", [MemoryError, SystemError])
def test_process_without_memory_says_so_and_leaves_for_the_interpreter_would_complain_at_its_end(
    lab: Lab, fault: type[Exception]
) -> None:
    """A SystemError is what the interpreter raises where it has no memory for a MemoryError."""
    program = (sys.executable, "-c", NO_MEMORY.format(fault=fault.__name__))
    ended = ending(lab.start(program=program)).ends(Exit.INTERRUPTED, "no memory left")

    assert ended.stdout == "half a report\n"
    assert len(ended.stderr.splitlines()) == 1


def test_process_that_may_start_no_thread_says_so_in_a_line(lab: Lab, snapshot: SnapshotAssertion) -> None:
    file = lab.write(experiment(conversations=1))
    process = lab.start(file, "--quiet", program=(sys.executable, "-c", NO_THREADS))

    assert ending(process).ends(Exit.INTERRUPTED).stderr == snapshot
    lab.play(file)
    lab.verified(lab.run_dir().path)


@pytest.mark.parametrize(
    ("size_bytes_max", "where"),
    [(10, "write"), (4_000, r"journal/000001\.jsonl|events\.jsonl"), (60_000, "small")],
)
def test_full_disk_is_reported_and_the_run_resumes_to_the_same_transcripts(
    finished: Lab, size_bytes_max: int, where: str
) -> None:
    """A file that may not grow is the part of a full disk that a test can have anywhere.

    Two writers reach 4,000 bytes at about the same time: that of the journal, and that of the events.
    """
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size_bytes_max, size_bytes_max))
    ended = ending(finished.start("small.yaml", "--out", "full", preexec=limit))

    ended.ends(Exit.STORAGE_FAILED, "run: cannot write", "EFBIG", "same command again")
    assert re.search(where, ended.stderr)
    finished.play("small.yaml", "--out", "full")

    assert finished.dir("full").transcripts == finished.run_dir().transcripts
    finished.verified(finished.path / "full")


def test_run_directory_removed_while_it_runs_is_reported(lab: Lab) -> None:
    # More games than it can play until its directory is gone.
    process = lab.start(lab.write(experiment(conversations=1000, models={"m": scripted(capacity=2, latency_ms=5)})))
    wait_for(lambda: process.poll() is not None or lab.run_dir().events("EVENT_INFER_DONE"), "a reply")

    # At one blow: a file that is written meanwhile would be in the way of its removal.
    shutil.rmtree(lab.run_dir().path.rename(lab.path / "elsewhere"))

    ending(process).ends(Exit.STORAGE_FAILED, "mac-run: cannot")


def test_place_that_takes_no_directory_is_reported(at_once: AtOnce) -> None:
    at_once(experiment(), "--out", "/proc/small").ends(Exit.STORAGE_FAILED, "directory /proc/small")


@pytest.mark.parametrize(
    "name",
    some(
        3,
        [
            *("tos_100games", "tos_grid", "tos_information_lag"),
            *("bbq_moderated", "discussion_small", "discussion_openai", "echo"),
        ],
    ),
)
def test_room_that_a_run_is_said_to_need_before_its_first_ending_is_below_what_it_takes_and_near_it(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command = (ROOT / "experiments" / f"{name}.yaml", "--out", name, "--limit", "10", "--quiet")
    with monkeypatch.context() as full:
        full.setattr(System, "free", lambda _self, _path: Free(size_bytes=0, files=None, block_bytes=4096))
        refused = at_once(*command).ends(Exit.STORAGE_FAILED)
    told = re.search(r"conversations left need at least \S+ .B \((\d+) bytes\)", refused.stderr)
    assert told is not None, refused.stderr
    assert not (lab.path / name).exists()
    at_once(*command).done()

    taken = sum(path.stat().st_blocks * 512 for path in (lab.path / name).rglob("*"))
    assert 0.25 * taken < int(told[1]) < taken
