"""The guard of the first tier: what it fails, and what it lets pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience

ROOT = Path(__file__).parents[1]

CONFTEST = """
from tests import tiers

def pytest_configure(config):
    for mark in tiers.MARKS:
        config.addinivalue_line("markers", mark)
    config.pluginmanager.register(tiers.Guard())
"""
TESTS = """
import asyncio, os, subprocess, sys, threading, time
import pytest

def start():
    subprocess.run([sys.executable, "-c", ""], check=True)

def compute(cpu_s):
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        pass

def test_process(): start()
def test_fork(): os.waitpid(os.fork() or os._exit(0), 0)
def test_sleep(): time.sleep(0.3)
def test_many_short_sleeps(): [time.sleep(0.01) for _ in range(30)]
def test_loop_sleeps(): asyncio.run(asyncio.sleep(0.3))
def test_event_never_comes(): threading.Event().wait(0.3)
def test_long(): compute(4)

@pytest.mark.smoke
def test_declared(): start()
@pytest.mark.ci
def test_ci(): start()
def test_quick(): compute(0.01)
def test_other_thread_sleeps():
    thread = threading.Thread(target=time.sleep, args=(0.3,))
    thread.start()
    thread.join()
def test_event_comes():
    event = threading.Event()
    threading.Timer(0.01, event.set).start()
    event.wait(60)
"""
BROKEN = {
    "test_process": "it starts subprocess.Popen",
    "test_fork": "it starts os.fork",
    "test_sleep": "it sleeps 0.30 s",
    "test_many_short_sleeps": "it sleeps 0.30 s",
    "test_loop_sleeps": "it sleeps 0.30 s",
    "test_event_never_comes": "it sleeps 0.30 s",
    "test_long": "it takes 4.",
}


@pytest.mark.ci
def test_first_tier_lets_no_test_start_a_process_sleep_or_take_long(tmp_path: Path) -> None:
    """Played by a pytest of its own, whose report names each test that breaks a rule, and no other."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)

    process = patience.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )

    for name, why in BROKEN.items():
        assert f"teardown of {name} " in process.stdout, process.stdout
        assert why in process.stdout, process.stdout
    assert f"{len(BROKEN)} errors" in process.stdout, process.stdout
