"""Says in one line that the tests of the embedded engine were left out."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed; `.ci/nano` runs these tests")
def test_torch_is_installed() -> None:
    assert find_spec("torch") is not None
