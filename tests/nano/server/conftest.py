"""What the tests of the server serve, and a server of it with a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sim.nano_model import make_nano_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model called `tiny`, made once."""
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny")


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a template that can have it think."""
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny", can_think=True)


@pytest.fixture
def stage(model: Path, request: pytest.FixtureRequest) -> Any:
    """A server and a client, for a coroutine."""
    from tests.nano.server.stage import on_stage

    return on_stage(model, **getattr(request, "param", {}))
