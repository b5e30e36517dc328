"""Tests of the backend `nano`. They need what `[nano]` brings; elsewhere one line says that they were left out."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.sim.held_steps import HeldSteps, held_steps
from tests.sim.nano_model import make_nano_model

HAS_ENGINE = find_spec("torch") is not None and find_spec("tokenizers") is not None

collect_ignore_glob = [] if HAS_ENGINE else ["test_[!s]*.py", "test_s[!e]*.py"]
"""Without the engine all but test_settings.py."""


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model, made once."""
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny", can_think=True)


@pytest.fixture
def steps() -> Iterator[HeldSteps]:
    """Holds the engines of this process where the test needs a request under way."""
    with held_steps() as steps:
        yield steps
