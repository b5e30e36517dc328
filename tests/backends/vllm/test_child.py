from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mac_runner.backends.vllm import child
from mac_runner.backends.vllm.testing import OF_A_PROCESS, handing_on
from tests.patience import LIMIT_S, wait_for

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
    PROCESS_LOGS.acquire("m").adopt()
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=engine, args=(theirs,)).start()
    print(*ours.recv(), flush=True)
    time.sleep(600)
"""


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
@pytest.mark.parametrize("victim", ["mac-run", "engine"])
def test_nobody_outlives_who_started_it_and_nothing_stays_in_memory(victim: str, tmp_path: Path) -> None:
    script = tmp_path / "nest.py"
    script.write_text(NEST)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        engine, worker, memory = run.stdout.readline().split()
        try:
            assert Path("/dev/shm", memory).exists()
            os.kill({"mac-run": run.pid, "engine": int(engine)}[victim], signal.SIGKILL)
            wait_for(lambda: not is_running(engine) and not is_running(worker), f"the end of {engine} and {worker}")
        finally:
            run.kill()

    wait_for(lambda: not Path("/dev/shm", memory).exists(), f"the end of {memory}")


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
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
    assert told[3] == ('from multiprocessing import set_executable; set_executable("/tmp/it\'s/python"); spawn_main(7)')
    assert told[4:] == command[4:]


def is_running(pid: str) -> bool:
    try:
        state = Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
