"""Tests of the server of nano. They need what `[nano]` brings; elsewhere one line says that they were left out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.sim.nano_model import make_nano_model

HAS_ENGINE = all(find_spec(package) is not None for package in ("torch", "tokenizers", "fastapi", "uvicorn"))

collect_ignore_glob = [] if HAS_ENGINE else ["test_[!i]*.py"]
"""Without the engine all but test_installed.py."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model called `tiny`, made once."""
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny")


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a template that can have it think."""
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny", can_think=True)
