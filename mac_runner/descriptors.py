"""File descriptors: how many this process may have, and how many of them are for connections. Each is one of both.

A program raises its limit at its start, for the usual one (1,024) is there for programs that cannot count further. What
is left to connections leaves enough to everything else that a program opens: a run directory, above all, must never
find that connections have taken all there are.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

DESCRIPTORS_MAX: Final = 1 << 20
"""How many are asked for at most."""
DESCRIPTORS_KEPT: Final = 90
"""Kept from connections for the process itself."""
DESCRIPTORS_PER_RUN: Final = 6
"""Kept from connections for each open run directory."""
DESCRIPTORS_LAST: Final = 48
"""How many of the last ones are given to no connection."""
GRID_RUNS_OPEN_MAX: Final = 64
"""Run directories of a grid open at once, each with a writer thread and three files."""


def raise_limit() -> int | None:
    """Let this process have as many descriptors as it is allowed, and say how many that are; None for no bound."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Where the system has a lower bound of its own, which it does not tell, the limit stays as it is.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def limit() -> int | None:
    """How many descriptors this process may have as things stand; None for no bound."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def kept(runs_open: int) -> int:
    """How many descriptors a process with so many open run directories needs beside its connections."""
    return DESCRIPTORS_KEPT + runs_open * DESCRIPTORS_PER_RUN


def connections_within(descriptors: int, runs_open: int) -> int:
    """How many connections there may be at once, at least one: what is kept for the rest is half of all at most."""
    return max(descriptors - min(kept(runs_open), descriptors // 2), 1)


def first_kept(descriptors: int) -> int:
    """The first of the last descriptors, which no connection is given: the lowest that is free is given out first."""
    return descriptors - min(DESCRIPTORS_LAST, descriptors // 4)


def runs_within(descriptors: int | None) -> int:
    """How many run directories of a grid may be open at once: for a third of all descriptors, and one at least."""
    if descriptors is None:
        return GRID_RUNS_OPEN_MAX
    return max(min(GRID_RUNS_OPEN_MAX, descriptors // (3 * DESCRIPTORS_PER_RUN)), 1)
