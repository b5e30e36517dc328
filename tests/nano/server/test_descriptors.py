"""Connections are bounded by the file descriptors that there are."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from mac_runner.nano.server.descriptors import connections_within
from mac_runner.nano.server.limits import DESCRIPTORS_KEPT


@pytest.mark.parametrize(
    ("limit", "connections"),
    [(None, 3000), (1 << 20, 3000), (1024, 1024 - DESCRIPTORS_KEPT), (3, 1)],
)
def test_connections_leave_descriptors_for_all_else(limit: int | None, connections: int) -> None:
    assert connections_within(3000, limit) == connections


def test_soft_limit_is_raised_to_the_hard_one() -> None:
    """In a process of its own: the limit is the whole process's."""
    program = (
        "import resource as r; from mac_runner.nano.server.descriptors import raise_limit; "
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 300)); print(raise_limit(), r.getrlimit(r.RLIMIT_NOFILE))"
    )
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 300:
        pytest.skip("this machine allows no 300 descriptors")
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert told.stdout == "300 (300, 300)\n"
