from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.forking import Forking


@pytest.fixture
def forking(tmp_path: Path) -> Iterator[Forking]:
    """Starts `mac-run` within milliseconds."""
    forking = Forking(tmp_path)
    yield forking
    forking.close()
