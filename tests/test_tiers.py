"""The tiers of the tests: what the guard of the first one fails, and that the report of the last one is honest."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import nightly, patience
from tests.nightly import FIGURES, Figure, Scaled, Seen, chunks, report, row, see, see_scaled
from tests.sim import storm

ROOT = Path(__file__).parents[1]

CONFTEST = """
from tests import tiers

def pytest_configure(config):
    for mark in tiers.MARKS:
        config.addinivalue_line("markers", mark)
    tiers._slowness = lambda: 1.0  # Else a busy machine would allow the long one more.
    config.pluginmanager.register(tiers.Guard())
"""


TESTS = """
import asyncio, multiprocessing, os, subprocess, sys, threading, time
import pytest

NOTHING = [sys.executable, "-c", ""]

def start():
    subprocess.run(NOTHING, check=True)

def spawn():
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()

async def create():
    await (await asyncio.create_subprocess_exec(*NOTHING)).wait()

def compute(cpu_s):
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        pass

def test_process(): start()
def test_fork(): os.waitpid(os.fork() or os._exit(0), 0)
def test_spawn(): spawn()
def test_posix_spawn(): os.waitpid(os.posix_spawn(sys.executable, NOTHING, os.environ), 0)
def test_system(): os.system("true")
def test_create_subprocess(): asyncio.run(create())
def test_sleep(): time.sleep(0.3)
def test_many_short_sleeps(): [time.sleep(0.01) for _ in range(30)]
def test_loop_sleeps(): asyncio.run(asyncio.sleep(0.3))
def test_event_never_comes(): threading.Event().wait(0.3)
def test_long(): compute(2.1)

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
def test_event_comes_after_looks():
    event = threading.Event()
    threading.Timer(0.5, event.set).start()
    while not event.wait(0.1):
        pass
"""


BROKEN = {
    "test_process": "it starts subprocess.Popen",
    "test_fork": "it starts os.fork",
    "test_spawn": "it starts <SpawnProcess",
    "test_posix_spawn": "it starts os.posix_spawn",
    "test_system": "it starts os.system",
    "test_create_subprocess": "it starts subprocess.Popen",
    "test_sleep": "it sleeps 0.30 s",
    "test_many_short_sleeps": "it sleeps 0.30 s",
    "test_loop_sleeps": "it sleeps 0.30 s",
    "test_event_never_comes": "it sleeps 0.30 s",
    "test_long": "it takes 2.",
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
        assert re.search(rf"teardown of {name} _+\n.*: {re.escape(why)}", process.stdout), process.stdout
    assert f"{len(BROKEN)} errors" in process.stdout, process.stdout


def figure(promised: int) -> Figure:
    return Figure("C1", "storm", promised, 1.0, first=7)


def played(promised: int, limit_s: float = 100.0) -> Seen:
    """What is seen of the figure in a thread of this process."""
    with ThreadPoolExecutor(1) as pool:
        return see(figure(promised), pool, 1, limit_s)


def test_figure_is_played_to_the_last_seed_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(storm, "play", seeds.append)
    seen = played(120)

    assert seeds == list(range(7, 127))
    assert (seen.played, seen.violations) == (120, [])
    assert "ok" in row(figure(120), seen)


def test_figure_that_was_not_begun_or_cut_short_is_not_called_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "play", lambda seed: pytest.fail("it was played"))

    assert "not begun" in row(figure(120), played(120, 0.0))
    assert "ok so far" in row(figure(120), Seen(played=119))


def test_violation_is_told_with_its_seed_and_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(seed: int) -> None:
        assert seed != 9, "a conversation is lost"

    monkeypatch.setattr(storm, "play", play)
    seen = played(10)
    told = report([(figure(10), seen)])

    assert seen.played == 10
    assert "1 BROKEN" in told
    assert "storm 9: AssertionError: " in told
    assert "seeds storm 9" in told


def test_shares_are_those_of_one_night_and_seeds_are_other_than_by_day() -> None:
    assert sum(figure.share for figure in FIGURES) == pytest.approx(1.0)
    seeded = [figure for figure in FIGURES if isinstance(figure, Figure)]
    assert all(figure.first for figure in seeded)
    assert all(sum(size for _, size in chunks(figure)) == figure.promised for figure in seeded)


def test_scaled_figure_is_played_as_by_day_then_once_as_large_as_fits_and_not_on_where_it_does_not_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scaled = Scaled("A1", "tests/test_examples.py", 100, 2_000, 1.0)
    broken = see_scaled(scaled, lambda test, scale: f"{test} {scale}", 1e6)
    assert (broken.played, broken.violations) == (100, ["tests/test_examples.py 1"])
    assert "1 BROKEN" in row(scaled, broken)
    now_s, scales = 0.0, list[int]()

    def run(_test: str, scale: int) -> None:
        nonlocal now_s
        now_s += 2.0 * scale
        scales.append(scale)

    monkeypatch.setattr(nightly, "time", SimpleNamespace(monotonic=lambda: now_s))
    for limit_s, played in ((100.0, [1, 20]), (12.0, [1, 5]), (6.0, [1, 2]), (5.0, [1]), (1.0, [1]), (0.0, [])):
        scales.clear()
        seen = see_scaled(scaled, run, limit_s)
        assert scales == played, limit_s
        assert (seen.played, seen.took_s) == (100 * max(played, default=0), 2.0 * sum(played)), limit_s


def test_scripts_and_the_night_name_nothing_that_is_gone() -> None:
    """`-k` takes a word that fits no test without complaint."""
    tests = [*ROOT.glob("tests/**/test_*.py")]
    known = {path.stem for path in tests}.union(*(re.findall(r"def (test_\w+)", path.read_text()) for path in tests))
    for script in (*ROOT.glob(".ci/[!_]*"), ROOT / "tests/nightly.py"):
        text = script.read_text()
        paths = re.findall(r"(?<![\w/])(?:\.ci|docs|examples|mac_runner|tests|viewer)/[\w./-]*\w", text)
        chosen = " ".join(re.findall(r'-k "(.*?)"', text))
        named = {*re.findall(r"\btest_\w+", text), *re.findall(r"\w+", chosen)} - {"and", "not", "or"}
        assert [path for path in paths if not (ROOT / path).exists()] == [], script
        assert named <= known, script


@pytest.mark.nightly
def test_power_cuts_are_played_beside_each_other() -> None:
    program = (sys.executable, "-m", "tests.sim.seeds", "crash")
    both = [subprocess.Popen([*program, *seeds], cwd=ROOT) for seeds in ("12", "34")]

    assert [one.wait() for one in both] == [0, 0]
