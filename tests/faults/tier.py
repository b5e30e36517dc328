"""How much is tried: what a change must pass, or as many times that as MAC_RUNNER_TEST_SCALE says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

SCALE = int(os.environ.get("MAC_RUNNER_TEST_SCALE", "1"))
T = TypeVar("T")


def one_in(every: int, cases: Iterable[T]) -> list[T]:
    """One in `every` of the cases by day, and as many times that at a larger scale, up to all of them."""
    return [*cases][:: step_of(every)]


def step_of(every: int) -> int:
    """How far apart the cases lie of which one in `every` is tried by day."""
    return max(1, every // SCALE)
