from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.attacks.tally import PROPERTY, Tally


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Tally:
    """Has the terminal say what a test tried, behind all results."""
    return lambda tried, faults: record_property(PROPERTY, f"{tried}; {faults or 'no'} faults")
