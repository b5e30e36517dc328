from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from multiprocessing import spawn
from pathlib import Path

import pytest

from mac_runner.backends.vllm.housing import Housing

VARIABLES = ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_LOGGING_CONFIG_PATH")
PROGRAM = "import os, sys; print('to the log'); sys.stderr.write(f'session {os.getsid(0) == os.getpid()}')"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_process_started_through_it_has_a_session_of_its_own_and_prints_to_the_log() -> None:
    housing = Housing()
    log = housing.enter()
    try:
        run = subprocess.run([spawn.get_executable(), "-c", PROGRAM], capture_output=True, check=True)

        assert (run.stdout, run.stderr) == (b"", b"")
        assert log.read_text() == "to the log\nsession True"
    finally:
        housing.leave(is_kept=False)


def test_vllms_lines_from_this_process_go_to_the_log_too() -> None:
    housing = Housing()
    log = housing.enter()
    try:
        logging.getLogger("vllm.engine").warning("something")

        assert log.read_text().endswith("vllm.engine something\n")
        assert json.loads(Path(os.environ["VLLM_LOGGING_CONFIG_PATH"]).read_text())["handlers"]["log"][
            "filename"
        ] == str(log)
    finally:
        housing.leave(is_kept=False)


def test_everything_is_as_before_when_the_last_engine_has_left() -> None:
    housing = Housing()
    log = housing.enter()
    assert housing.enter() == log

    housing.leave(is_kept=False)
    assert log.parent.exists()
    housing.leave(is_kept=False)

    assert not log.parent.exists()
    assert spawn.get_executable() in (sys.executable, sys.executable.encode())
    assert not any(name in os.environ for name in VARIABLES)
    assert logging.getLogger("vllm").handlers == []


def test_next_engine_after_the_last_gets_a_place_of_its_own() -> None:
    housing = Housing()
    first = housing.enter()
    housing.leave(is_kept=False)
    second = housing.enter()
    try:
        assert second != first
        assert os.environ["VLLM_LOGGING_CONFIG_PATH"] == str(second.parent / "logging.json")
    finally:
        housing.leave(is_kept=False)


def test_log_is_kept_when_one_engine_broke() -> None:
    housing = Housing()
    log = housing.enter()
    housing.enter()
    housing.leave(is_kept=True)
    housing.leave(is_kept=False)

    assert log.parent.exists()
    for file in log.parent.iterdir():
        file.unlink()
    log.parent.rmdir()


def test_what_the_user_has_set_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    housing = Housing()
    housing.enter()
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"
    housing.leave(is_kept=False)

    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"
