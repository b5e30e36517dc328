"""How much is tried: what a change must pass, or as many times that as MAC_RUNNER_TEST_SCALE says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

SCALE = int(os.environ.get("MAC_RUNNER_TEST_SCALE", "1"))
T = TypeVar("T")


def one_in(every: int, cases: Iterable[T]) -> list[T]:
    """One in `every` of the cases by day, and all of them at a larger scale."""
    return [*cases][:: every if SCALE == 1 else 1]
