from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import at_once as at_once
from tests.cli.lab import Lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """An empty working directory, of this process too."""
    monkeypatch.chdir(tmp_path)
    lab = Lab(path=tmp_path)
    yield lab
    lab.close()
