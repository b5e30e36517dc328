"""What holds for every test: the machine's settings do not reach in, and nothing is left behind."""

from __future__ import annotations

import compileall
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mac_runner import steps
from mac_runner.cli import process
from tests import tiers
from tests.patience import wait_for

# How long a case or its draw takes says something about the machine, not about us. A change is tried on the same
# examples everywhere; the nightly draws new ones (--hypothesis-profile=nightly).
settings.register_profile("nightly", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("mac_runner", settings.get_profile("nightly"), derandomize=True)
settings.load_profile("mac_runner")

# What changes the looks of our output, is read by an experiment, or leads requests to servers of the tests elsewhere.
_SETTINGS = frozenset(
    {"columns", "lines", "no_color", "force_color", "clicolor", "clicolor_force", "mac_runner_api_key"}
    | {"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"}
)
_FDS = "/proc/self/fd"
_CHILDREN = Path("/proc/self/task") / str(os.getpid()) / "children"
_PACKAGE = Path(__file__).parents[1] / "mac_runner"


def pytest_configure(config: pytest.Config) -> None:
    """Make the place the same for everybody, and say what the marks of the tiers mean."""
    for name in [name for name in os.environ if name.lower() in _SETTINGS]:
        del os.environ[name]
    os.environ["TERM"] = "xterm-256color"
    # A job in the background of a shell ignores Ctrl-C from its start, and so would all processes that tests start.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for mark, meaning in tiers.MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")
    config.pluginmanager.register(tiers.Guard(), "tiers")
    config.option.warn_unused_snapshots = True  # One whose case is of another tier is unused in this one.
    # Else each worker would compile the tests in each run, and each process that a test starts the package.
    if sys.dont_write_bytecode:
        sys.dont_write_bytecode = False
        if not hasattr(config, "workerinput"):
            compileall.compile_dir(_PACKAGE, quiet=2)


@pytest.hookimpl(optionalhook=True)  # Some environments have no pytest-xdist.
def pytest_xdist_auto_num_workers() -> int:
    """Four at least: beside four other programs two workers get a third of two cores."""
    return max(4, os.cpu_count() or 1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Do before the tests what would fall to one of them by chance.

    hypothesis prepares its alphabet and reads the constants of the package at its first draw. The garbage collector
    would go over five thousand tests in the middle of one. Either takes a second.
    """
    if any(getattr(getattr(item, "obj", None), "is_hypothesis_test", False) for item in session.items):
        _draw_once()
    gc.collect()
    gc.freeze()


@settings(max_examples=1, database=None)
@given(st.tuples(st.text(), st.integers(), st.floats(), st.binary()))
def _draw_once(_: object) -> None:
    pass


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What looped tests tried, whoever ran them."""
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    lines = {
        str(value) for report in reports for name, value in getattr(report, "user_properties", ()) if name == "tried"
    }
    if lines:
        terminalreporter.section("tried")
        for line in sorted(lines):
            terminalreporter.line(line)


@contextmanager
def kept_signals() -> Iterator[None]:
    """Whoever calls the entry point of a program in this process: it takes over the signals for good."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, steps.WAKING)
    handlers = {number: signal.getsignal(number) for number in numbers}
    hook, endless = sys.unraisablehook, steps.StepLimit.endless
    try:
        yield
    finally:
        sys.unraisablehook, steps.StepLimit.endless = hook, staticmethod(endless)
        process._ended_with.clear()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """A test may call such an entry point."""
    with kept_signals():
        yield


@pytest.fixture(autouse=True)
def no_leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test leaves a thread, a child process or an open file of its own behind."""
    scratch = str(tmp_path_factory.getbasetemp())
    before = _possessions(scratch)
    yield
    left: set[str] = set()

    def is_cleared() -> bool:
        left.clear()
        left.update(_possessions(scratch) - before)
        return not left

    # A thread that was told to end may need a moment; one that was not is waited for in vain.
    try:
        wait_for(is_cleared, "what the test left behind")
    except AssertionError as fault:
        raise AssertionError(f"left behind: {', '.join(sorted(left))}") from fault


def _possessions(scratch: str) -> set[str]:
    """Threads, child processes, and open files under `scratch`: those elsewhere belong to pytest or the libraries."""
    threads = {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}
    if not os.path.exists(_FDS):
        return threads
    children = {f"process {pid}" for pid in _CHILDREN.read_text().split()} if _CHILDREN.exists() else set()
    return threads | children | {f"file {target}" for target in _open_files() if target.startswith(scratch)}


def _open_files() -> Iterator[str]:
    for name in os.listdir(_FDS):
        try:
            yield os.readlink(f"{_FDS}/{name}")
        except OSError:  # The descriptor that listed the directory.
            continue
