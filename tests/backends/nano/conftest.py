"""Tests of the backend `nano`. They need what `[nano]` brings; elsewhere one line says that they were left out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.sim.nano_model import make_nano_model

HAS_ENGINE = find_spec("torch") is not None and find_spec("tokenizers") is not None

NEED_ENGINE = ["test_contract.py", "test_engine.py", "test_sampling.py", "test_updates.py"]
collect_ignore_glob = [] if HAS_ENGINE else NEED_ENGINE


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model, made once."""
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny", can_think=True)
