"""How an engine starts and ends, where its processes print, and that none of them outlives who started it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import spawn
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mac_runner.backends.testing import (
    OF_A_PROCESS,
    EngineLog,
    ProcessLogs,
    Release,
    VllmBackend,
    cause_in,
    handing_on,
)
from mac_runner.backends.vllm import VllmConfig, backend, child
from mac_runner.errors import ConfigError
from tests.kit import StridingClock
from tests.patience import LIMIT_S, wait_for
from tests.sim.building import request_for
from tests.sim.held_time import real

VARIABLES = ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_LOGGING_CONFIG_PATH", "MAC_RUNNER_VLLM_LOG")
LINE = "2026-11-22 00:40:13,604 32119 vllm.v1"
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 9, in run\n    run(\n        ^^^\n'
TOO_SMALL = "ValueError: 0.5 GiB of KV cache is needed, and 0.1 GiB is there."


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessLogs:
    """They stand in the folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return ProcessLogs()


@contextmanager
def engine(logs: ProcessLogs, name: str = "a") -> Iterator[EngineLog]:
    """The log of an engine, which leaves at the end."""
    log = logs.acquire(name)
    try:
        yield log
    finally:
        logs.release(is_kept=False)


# Threads start a process each, as engines do; in a program of its own, for `multiprocessing` leaves its tracker behind.
ENGINES = """
import json, logging, os, sys
from logging.config import dictConfig
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from mac_runner.backends.vllm.process_logs import ProcessLogs

def work(name):
    configured = Path(os.environ["VLLM_LOGGING_CONFIG_PATH"]).name
    print(f"{name}, {configured}, leads: {os.getsid(0) == os.getpid()}", flush=True)
    os.write(2, b"an error\\n")
    if configured == "logging.json":
        dictConfig(json.loads(Path(os.environ["VLLM_LOGGING_CONFIG_PATH"]).read_text()))
        logging.getLogger("vllm.engine").warning("a warning of %s", name)

def start(log, name):
    log.adopt()
    process = get_context("spawn").Process(target=work, args=(name,))
    process.start()
    process.join()
    return log.path.read_text()

if __name__ == "__main__":
    logs = ProcessLogs()
    found = [logs.acquire(name) for name in sys.argv[1:]]
    with ThreadPoolExecutor(2) as threads:
        print(json.dumps([*threads.map(start, found, sys.argv[1:])]))
    for _ in found:
        logs.release(is_kept=False)
"""


def said_by_engines(tmp_path: Path, *names: str) -> list[str]:
    """What the processes of engines of these names print to their logs; nothing of it is printed elsewhere."""
    program = tmp_path / "engines.py"
    program.write_text(ENGINES)
    run = subprocess.run([sys.executable, str(program), *names], capture_output=True, check=True)
    assert run.stderr == b""
    said: list[str] = json.loads(run.stdout)
    return said


@pytest.mark.ci
def test_processes_of_each_engine_print_to_a_log_of_its_own_in_sessions_of_their_own(tmp_path: Path) -> None:
    said = said_by_engines(tmp_path, "a", "b/c")

    assert [text.splitlines()[:2] for text in said] == [
        ["a, logging.json, leads: True", "an error"],
        ["b/c, logging.json, leads: True", "an error"],
    ]
    assert [text.splitlines()[2].rpartition("vllm.engine ")[2] for text in said] == [
        "a warning of a",
        "a warning of b/c",
    ]


def program_of_processes() -> str:
    """What the next process of this thread is started by."""
    return os.fsdecode(spawn.get_executable())


def test_threads_of_nobody_start_processes_as_ever(logs: ProcessLogs) -> None:
    with engine(logs) as log:
        assert program_of_processes() == sys.executable
        with ThreadPoolExecutor(1) as thread:
            thread.submit(log.adopt).result()
            assert thread.submit(program_of_processes).result() != sys.executable
        assert program_of_processes() == sys.executable


def test_log_tells_its_last_error_and_where_it_is_beside_that_of_this_process(logs: ProcessLogs) -> None:
    with engine(logs) as log:
        logging.getLogger("vllm.engine").warning("something")
        assert (log.path.parent / "mac_runner.log").read_text().endswith("vllm.engine something\n")
        assert log.hint().endswith(f" in {log.path}")
        log.path.write_text(f"ERROR {LINE}.core It failed.\nValueError: no room\nINFO {LINE}.core bye\n")
        assert "ValueError: no room; " in log.hint()
    assert log.hint().endswith(f" in {log.path}")


def test_everything_is_as_before_when_the_last_engine_has_left_and_the_next_gets_its_own(logs: ProcessLogs) -> None:
    with engine(logs, "a") as first:
        with engine(logs, "b") as second:
            assert first.path.parent == second.path.parent
        assert first.path.exists()

    assert not first.path.parent.exists()
    assert program_of_processes() == sys.executable
    assert not any(name in os.environ for name in VARIABLES)
    assert logging.getLogger("vllm").handlers == []
    with engine(logs, "a") as third:
        assert third.path != first.path
        assert os.environ["VLLM_LOGGING_CONFIG_PATH"] == str(third.path.parent / "logging.json")


def test_logs_are_kept_when_one_engine_broke(logs: ProcessLogs) -> None:
    with engine(logs) as log:
        logs.acquire("b")
        logs.release(is_kept=True)

    assert log.path.exists()


@pytest.mark.ci
def test_what_the_user_has_set_stands(logs: ProcessLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "/mine.json")
    with engine(logs):
        assert "mine.json, leads: True" in said_by_engines(tmp_path, "a")[0]
        assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"

    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"
    assert os.environ["VLLM_LOGGING_CONFIG_PATH"] == "/mine.json"


def test_level_of_logging_is_taken_in_any_letters_and_a_wrong_one_is_told(
    logs: ProcessLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {**os.environ}
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "loud")
    with pytest.raises(ConfigError, match=r"VLLM_LOGGING_LEVEL is 'LOUD'; .*DEBUG"):
        logs.acquire("a")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "debug")
    with engine(logs) as log:
        assert log.path.exists()
        assert logging.getLogger("vllm").level == logging.DEBUG

    assert {**os.environ} == {**before, "VLLM_LOGGING_LEVEL": "debug"}


def test_engine_that_found_no_room_on_the_disk_has_not_acquired(
    logs: ProcessLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {**os.environ}
    for part in ("mkdir", "write_text", "touch", "chmod"):
        with monkeypatch.context() as patch:
            patch.setattr(os if part == "mkdir" else Path, part, no_room)
            with pytest.raises(OSError, match="no room"):
                logs.acquire("a")
        assert {**os.environ} == before
        assert program_of_processes() == sys.executable
        assert list(tmp_path.iterdir()) == []
    with engine(logs) as log:
        pass

    assert not log.path.parent.exists()


def no_room(*_: object, **__: object) -> None:
    raise OSError("no room")


def error(message: str, raised: str) -> str:
    return f"ERROR {LINE}.core {message}\n{TRACE}{raised}\n"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("", None),
        (f"INFO {LINE}.core ERROR is what it does not say\nValueError: nor here\n", None),
        (f"ERROR {LINE}.core No room is left.\nINFO {LINE}.core bye\nValueError: not of it\n", "No room is left."),
        (error("EngineCore failed to start.", TOO_SMALL), TOO_SMALL),
        (error("An early one.", "KeyError: 'a'") + error("EngineCore failed to start.", TOO_SMALL), TOO_SMALL),
        (error("EngineCore failed to start.", TOO_SMALL) + f"ERROR {LINE}.core Worker died unexpectedly.\n", TOO_SMALL),
        (error("A worker failed.", "torch.OutOfMemoryError: no more\n  of it"), "torch.OutOfMemoryError: no more"),
    ],
)
def test_cause_is_the_last_error_of_the_log(log: str, cause: str | None) -> None:
    assert cause_in(log) == cause


@pytest.mark.parametrize(
    ("message", "raised"),
    [
        ("WorkerProc failed to start.", "BrokenPipeError: [Errno 32] Broken pipe"),
        ("EngineCore failed.", "Exception: WorkerProc initialization failed. See stack trace for root cause."),
        ("output_handler failed.", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."),
    ],
)
def test_what_an_error_brought_down_is_not_the_cause(message: str, raised: str) -> None:
    follow_on = error(message, raised)

    assert cause_in(follow_on) is None
    assert cause_in(error("A worker failed.", TOO_SMALL) + follow_on) == TOO_SMALL


NEST = """
import multiprocessing, os, time
from multiprocessing.shared_memory import SharedMemory
from mac_runner.backends.vllm.process_logs import PROCESS_LOGS

def worker(pipe, memory):
    pipe.send((os.getppid(), os.getpid(), memory))
    time.sleep(600)

def engine(pipe):
    memory = SharedMemory(create=True, size=64)
    multiprocessing.get_context("spawn").Process(target=worker, args=(pipe, memory.name)).start()
    time.sleep(600)

if __name__ == "__main__":
    log = PROCESS_LOGS.acquire("m")
    log.adopt()
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=engine, args=(theirs,)).start()
    print(*ours.recv(), log.is_in_use(), flush=True)
    while log.is_in_use():
        time.sleep(0.01)
    print("none is left", flush=True)
    time.sleep(600)
"""


@pytest.mark.ci
@on_linux
@pytest.mark.parametrize("victim", ["mac-run", "engine"])
def test_nobody_outlives_who_started_it_and_nothing_stays_in_memory(victim: str, tmp_path: Path) -> None:
    script = tmp_path / "nest.py"
    script.write_text(NEST)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        engine, worker, memory, is_in_use = run.stdout.readline().split()
        assert is_in_use == "True"
        try:
            assert Path("/dev/shm", memory).exists()
            os.kill({"mac-run": run.pid, "engine": int(engine)}[victim], signal.SIGKILL)
            assert run.stdout.readline() == ("none is left\n" if victim == "engine" else "")
            wait_for(lambda: not is_running(engine) and not is_running(worker), f"the end of {engine} and {worker}")
        finally:
            run.kill()

    wait_for(lambda: not Path("/dev/shm", memory).exists(), f"the end of {memory}")


@pytest.mark.ci
@on_linux
@pytest.mark.parametrize("is_gone", [True, False])
def test_process_whose_parent_is_gone_before_it_begins_does_not_begin(is_gone: bool) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    parent = gone.pid if is_gone else os.getpid()
    started = subprocess.run(
        [sys.executable, child.__file__, "/starter", str(parent), sys.executable, "-c", "print('begun')", OF_A_PROCESS],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
    )

    assert started.stdout == ("" if is_gone else "begun\n")


def test_what_else_a_command_says_is_handed_on_as_it_is() -> None:
    command = ["/usr/bin/python3", "-B", "-c", "spawn_main(7)", OF_A_PROCESS]

    told = handing_on("/tmp/it's/python", command)

    assert told[:3] == command[:3]
    assert told[3] == (
        "import gc; gc.set_threshold(30000); from multiprocessing import set_executable; "
        'set_executable("/tmp/it\'s/python"); spawn_main(7)'
    )
    assert told[4:] == command[4:]


def is_running(pid: str) -> bool:
    try:
        state = Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., VllmBackend]:
    """Makes backends that take `load` for the loading of the model, and `shutdown` for the end of the engine."""
    arguments = frozenset({*VllmConfig.model_fields, "max_num_seqs", "disable_log_stats"})
    monkeypatch.setattr(backend, "find_release", lambda: Release(version="0", arguments=arguments))

    def make(*, load: Callable[[], object], shutdown: Callable[[], object]) -> VllmBackend:
        made = VllmBackend(request_for(VllmConfig(model="/m"), StridingClock(0.0), say=print))
        running: Any = SimpleNamespace(
            engine=SimpleNamespace(shutdown=shutdown),
            renderers={None: SimpleNamespace(shape=SimpleNamespace(opens_thought=False))},
        )

        def launch(_log: EngineLog) -> None:
            load()
            made._running = running

        monkeypatch.setattr(made, "_launch", launch)
        return made

    return make


@real
async def test_start_that_is_cancelled_again_and_again_leaves_no_engine_that_nobody_owns(
    stubbed: Callable[..., VllmBackend],
) -> None:
    before = {**os.environ}
    loading, loaded, ends = threading.Event(), threading.Event(), list[str]()

    def load() -> None:
        loading.set()
        loaded.wait(LIMIT_S)

    given_up = stubbed(load=load, shutdown=lambda: ends.append("ended"))
    start = asyncio.create_task(given_up.start())
    await asyncio.to_thread(loading.wait, LIMIT_S)
    for _ in range(5):
        start.cancel()
        for _ in range(5):  # More turns than a cancellation takes to arrive.
            await asyncio.sleep(0)
    assert not start.done()
    loaded.set()
    with pytest.raises(asyncio.CancelledError):
        await start
    await given_up.close()

    assert ends == ["ended"]
    assert {**os.environ} == before


@pytest.mark.ci
@real
async def test_engine_that_will_not_end_leaves_nothing_in_this_process(stubbed: Callable[..., VllmBackend]) -> None:
    before = {**os.environ}
    ending, ended = threading.Event(), threading.Event()

    def linger() -> None:
        ending.set()
        ended.wait(LIMIT_S)

    def refuse() -> None:
        raise RuntimeError("no")

    rude, slow = (stubbed(load=lambda: None, shutdown=shutdown) for shutdown in (refuse, linger))
    await rude.start()
    await slow.start()
    with pytest.raises(RuntimeError, match="no"):
        await rude.close()
    closing = asyncio.create_task(slow.close())
    await asyncio.to_thread(ending.wait, LIMIT_S)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    ended.set()

    assert {**os.environ} == before
