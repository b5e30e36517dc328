from __future__ import annotations

import pytest

from mac_runner.backends.openai import data_plane, endpoints


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rests and canaries as short as a test wants them."""
    monkeypatch.setattr(data_plane, "CANARY_S_MAX", 1.5)
    for name in ("CANARY_S_MAX", "ENDPOINT_REST_S", "ENDPOINT_REST_S_MAX"):
        monkeypatch.setattr(endpoints, name, 0.05)
