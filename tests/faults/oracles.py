"""What finds a bug out: each a small deterministic part of a test, silent as long as all is well.

An oracle raises AssertionError at the first violation. It is the very code of the test that it stands for, with few of
its cases, so that a planted bug is found in about a second.
"""

from __future__ import annotations

from tests.sim import cancelling, storm, workload
from tests.sim.seeds import told


def storms() -> None:
    """The scheduler on engines and a disk in a storm (`tests/scheduler/test_storms.py`)."""
    for seed in range(60):
        with told("storm", seed):
            storm.play(seed)


def worlds() -> None:
    """The pure scheduler in random worlds (`tests/scheduler/test_state.py`)."""
    for seed in range(60):
        with told("world", seed):
            workload.play(seed)


def cancellations() -> None:
    """A run cancelled at some of its awaits, its last ones among them (`tests/scheduler/test_cancelling.py`)."""
    turns = cancelling.turns()
    for turn in (*range(7, turns, 37), *range(turns - 6, turns)):
        with told("cancellation", turn):
            cancelling.play(turn)
