"""Says in one line that the tests of the server were left out."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: the tests of mac-serve are left out")
def test_engine_is_installed() -> None:
    assert find_spec("torch") is not None
