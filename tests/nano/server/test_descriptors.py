"""Connections are bounded by the file descriptors that there are."""

from __future__ import annotations

import pytest

from mac_runner.nano.testing import DESCRIPTORS_KEPT, connections_within


@pytest.mark.parametrize(
    ("limit", "connections"),
    [(None, 3000), (1 << 20, 3000), (1024, 1024 - DESCRIPTORS_KEPT), (3, 1)],
)
def test_connections_leave_descriptors_for_all_else(limit: int | None, connections: int) -> None:
    assert connections_within(3000, limit) == connections
