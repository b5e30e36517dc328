"""File descriptors: how many this process may have, and how many connections may take.

A program raises its limit at its start; the usual one (1,024) exists for old programs. Connections are bounded so that
enough descriptors are left for everything else, above all for run directories.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

DESCRIPTORS_MAX: Final = 1 << 20
"""The highest limit that is requested."""
DESCRIPTORS_KEPT: Final = 90
"""Kept from connections for the process itself."""
DESCRIPTORS_PER_RUN: Final = 6
"""Kept from connections for each open run directory."""
DESCRIPTORS_LAST: Final = 48
"""How many of the last ones are given to no connection."""
GRID_RUNS_OPEN_MAX: Final = 64
"""Run directories of a grid open at once, each with a writer thread and three files."""


def raise_limit() -> int | None:
    """Raise the limit of this process as far as it may; returns the limit, None for no bound."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # The system may have a lower bound that it does not report; then the limit stays as it is.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def limit() -> int | None:
    """How many descriptors this process may have now; None for no bound."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def kept(runs_open: int) -> int:
    """Descriptors that a process with `runs_open` open run directories needs beside its connections."""
    return DESCRIPTORS_KEPT + runs_open * DESCRIPTORS_PER_RUN


def connections_within(descriptors: int, runs_open: int) -> int:
    """The most connections at a time, at least one: at most half of all descriptors are kept for the rest."""
    return max(descriptors - min(kept(runs_open), descriptors // 2), 1)


def first_kept(descriptors: int) -> int:
    """The first descriptor kept from connections. The system gives out the lowest free one first."""
    return descriptors - min(DESCRIPTORS_LAST, descriptors // 4)


def runs_within(descriptors: int | None) -> int:
    """The most open run directories of a grid: a third of all descriptors, at least one directory."""
    if descriptors is None:
        return GRID_RUNS_OPEN_MAX
    return max(min(GRID_RUNS_OPEN_MAX, descriptors // (3 * DESCRIPTORS_PER_RUN)), 1)
