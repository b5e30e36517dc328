from __future__ import annotations

import pytest

from mac_runner.backends.openai import endpoints


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rests as short as a test wants them."""
    for name in ("CANARY_S_MAX", "ENDPOINT_REST_S", "ENDPOINT_REST_S_MAX"):
        monkeypatch.setattr(endpoints, name, 0.05)
