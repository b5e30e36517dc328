from __future__ import annotations

import gc
import weakref

from mac_runner.runs.testing import COLLECTION_OBJECTS, rare_collections


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.self = self


def test_collector_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with rare_collections():
        during, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0

    assert during == (COLLECTION_OBJECTS, *before[1:])
    assert is_frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_cycles_made_meanwhile_are_still_found() -> None:
    with rare_collections():
        knots = [weakref.ref(Knot()) for _ in range(4 * COLLECTION_OBJECTS)]
        alive = sum(knot() is not None for knot in knots)

    assert alive <= 2 * COLLECTION_OBJECTS
