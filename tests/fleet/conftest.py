"""Engines of a busy machine take their time to end."""

from __future__ import annotations

import pytest

from mac_runner.fleet import supervisor
from tests.patience import LIMIT_S


@pytest.fixture(autouse=True)
def every_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CLOSE_S", LIMIT_S)
