"""File descriptors are shared out: so many for connections, so many for run directories, and some for all else."""

from __future__ import annotations

import resource
import subprocess
import sys
from itertools import pairwise

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.descriptors import (
    DESCRIPTORS_PER_RUN,
    GRID_RUNS_OPEN_MAX,
    connections_within,
    first_kept,
    kept,
    runs_within,
)
from mac_runner.errors import lacks_descriptors, shortage_of
from mac_runner.runs.testing import DESCRIPTORS_MIN, bound


@pytest.mark.ci
def test_soft_limit_is_raised_to_the_hard_one() -> None:
    """In a process of its own: the limit is the whole process's."""
    program = (
        "import resource as r; from mac_runner.descriptors import raise_limit; "
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 300)); print(raise_limit(), r.getrlimit(r.RLIMIT_NOFILE))"
    )
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 300:
        pytest.skip("this machine allows no 300 descriptors")
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert told.stdout == "300 (300, 300)\n"


def test_whatever_the_limit_there_is_room_for_connections_and_for_run_directories() -> None:
    for limit in range(DESCRIPTORS_MIN, 5_000):
        runs = runs_within(limit)
        connections = connections_within(limit, runs)
        assert 1 <= runs <= GRID_RUNS_OPEN_MAX
        assert connections == max(limit - limit // 2, limit - kept(runs))
        # What no connection is given is more than a run needs to open at any one moment.
        assert limit - first_kept(limit) >= min(48, DESCRIPTORS_PER_RUN)
        if limit >= 1_024:
            assert connections + kept(runs) == limit
            assert connections < first_kept(limit)
    assert runs_within(None) == GRID_RUNS_OPEN_MAX


def test_requests_in_flight_are_as_many_as_there_is_room_for() -> None:
    for limit, wanted, asked, concurrency in (
        (None, 10_000, None, None),
        (1_024, 900, None, None),
        (1_024, 0, 5_000, 5_000),
        (1_024, 1_500, 100, 100),
        (1_024, 1_500, None, 928),
        (1_024, 1_500, 1_200, 928),
        (64, 1_500, None, 32),
    ):
        found = bound(limit, wanted=wanted, concurrency=asked)

        assert found.concurrency == concurrency, (limit, wanted, asked)
        assert (found.notice is None) == (concurrency == asked)


def test_bound_is_told_with_what_was_done_and_what_helps(snapshot: SnapshotAssertion) -> None:
    told = bound(1_024, wanted=1_500, concurrency=None).notice

    assert told == snapshot


def _chained(*faults: BaseException) -> BaseException:
    for cause, fault in pairwise(faults):
        fault.__cause__ = cause
    return faults[-1]


def test_shortage_is_seen_behind_what_libraries_make_of_it() -> None:
    descriptors, memory = OSError(24, "Too many open files"), MemoryError()
    told: list[tuple[BaseException, str | None]] = [
        (_chained(descriptors, OSError("All connection attempts failed"), ValueError("x")), "no file descriptor left"),
        (_chained(ExceptionGroup("tried", [OSError("refused"), descriptors]), OSError("x")), "no file descriptor left"),
        (
            OSError("Multiple exceptions: [Errno 111] no, [Errno 24] Too many open files"),
            "no file descriptor left",
        ),
        (ImportError("x.so: cannot open shared object file: Error 24"), "no file descriptor left"),
        (ImportError("x.so: failed to map segment from shared object"), "no memory left"),
        (OSError(12, "Cannot allocate memory"), "no memory left"),
        (_chained(memory, SystemError("returned NULL")), "no memory left"),
        (RuntimeError("can't start new thread"), "no further thread can be started"),
        (RuntimeError("no running event loop"), None),
        (ImportError("no module named x"), None),
        (OSError(2, "No such file or directory"), None),
    ]

    for fault, words in told:
        shortage = shortage_of(fault, "work")
        assert (shortage is None) == (words is None), fault
        assert words is None or words in str(shortage)
        assert lacks_descriptors(fault) == (words == "no file descriptor left")
