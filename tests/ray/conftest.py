from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Not as elsewhere: nodes that a test adds belong to the cluster, which outlives it."""
