from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import spawn
from pathlib import Path

import pytest

from mac_runner.backends.vllm.testing import EngineLog, ProcessLogs
from mac_runner.errors import ConfigError

VARIABLES = ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_LOGGING_CONFIG_PATH", "MAC_RUNNER_VLLM_LOG")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def logs() -> Iterator[ProcessLogs]:
    """A place that nothing is left of, whatever was kept."""
    logs = ProcessLogs()
    made: list[EngineLog] = []
    acquire = logs.acquire

    def acquired(name: str) -> EngineLog:
        made.append(acquire(name))
        return made[-1]

    logs.acquire = acquired  # type: ignore[method-assign]
    yield logs
    for log in made:
        shutil.rmtree(log.path.parent, ignore_errors=True)


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


def test_threads_of_nobody_start_processes_as_ever(logs: ProcessLogs) -> None:
    log = logs.acquire("a")
    try:
        assert os.fsdecode(spawn.get_executable()) == sys.executable
        with ThreadPoolExecutor(1) as thread:
            thread.submit(log.adopt).result()
            assert thread.submit(lambda: os.fsdecode(spawn.get_executable())).result() != sys.executable
        assert os.fsdecode(spawn.get_executable()) == sys.executable
    finally:
        logs.release(is_kept=False)


def test_vllms_lines_from_this_process_go_to_a_log_beside_them(logs: ProcessLogs) -> None:
    place = logs.acquire("a").path.parent
    try:
        logging.getLogger("vllm.engine").warning("something")

        assert (place / "mac_runner.log").read_text().endswith("vllm.engine something\n")
    finally:
        logs.release(is_kept=False)


def test_log_tells_its_last_error_and_where_it_is(logs: ProcessLogs) -> None:
    log = logs.acquire("a")
    try:
        assert log.hint().endswith(f" in {log.path}")
        line = "2026-11-22 00:40:13,604 32119 vllm.v1.core"
        log.path.write_text(f"ERROR {line} It failed.\nValueError: no room\nINFO {line} bye\n")
        assert "ValueError: no room; " in log.hint()
    finally:
        logs.release(is_kept=False)
    assert log.hint().endswith(f" in {log.path}")


def test_everything_is_as_before_when_the_last_engine_has_left(logs: ProcessLogs) -> None:
    place = logs.acquire("a").path.parent
    assert logs.acquire("b").path.parent == place

    logs.release(is_kept=False)
    assert place.exists()
    logs.release(is_kept=False)

    assert not place.exists()
    assert os.fsdecode(spawn.get_executable()) == sys.executable
    assert not any(name in os.environ for name in VARIABLES)
    assert logging.getLogger("vllm").handlers == []


def test_next_engine_after_the_last_gets_a_place_of_its_own(logs: ProcessLogs) -> None:
    first = logs.acquire("a")
    logs.release(is_kept=False)
    second = logs.acquire("a")
    try:
        assert second.path != first.path
        assert os.environ["VLLM_LOGGING_CONFIG_PATH"] == str(second.path.parent / "logging.json")
    finally:
        logs.release(is_kept=False)


def test_logs_are_kept_when_one_engine_broke(logs: ProcessLogs) -> None:
    log = logs.acquire("a")
    logs.acquire("b")
    logs.release(is_kept=True)
    logs.release(is_kept=False)

    assert log.path.exists()


@pytest.mark.ci
def test_what_the_user_has_set_stands(logs: ProcessLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "/mine.json")
    logs.acquire("a")
    assert "mine.json, leads: True" in said_by_engines(tmp_path, "a")[0]
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"
    logs.release(is_kept=False)

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
    assert logs.acquire("a").path.exists()
    assert logging.getLogger("vllm").level == logging.DEBUG
    logs.release(is_kept=False)

    assert {**os.environ} == {**before, "VLLM_LOGGING_LEVEL": "debug"}


def test_engine_that_found_no_room_on_the_disk_has_not_acquired(
    logs: ProcessLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {**os.environ}
    for part in ("mkdir", "write_text", "touch", "chmod"):
        with monkeypatch.context() as patch:
            patch.setattr(os if part == "mkdir" else Path, part, no_room)
            with pytest.raises(OSError, match="no room"):
                logs.acquire("a")
        assert {**os.environ} == before
        assert os.fsdecode(spawn.get_executable()) == sys.executable
        assert list(tmp_path.iterdir()) == []
    place = logs.acquire("a").path.parent
    logs.release(is_kept=False)

    assert not place.exists()


def no_room(*_: object, **__: object) -> None:
    raise OSError("no room")
