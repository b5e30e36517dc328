"""What tests of several backends take."""

from __future__ import annotations

import pytest

from tests.backends.asking import WIRES, Wire


@pytest.fixture(params=[*WIRES])
def wire(request: pytest.FixtureRequest) -> Wire:
    """Each protocol in turn."""
    return WIRES[request.param]
