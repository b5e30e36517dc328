"""Tests of the embedded engine. They need what `[nano]` brings; elsewhere one line says that they were left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tqdm import tqdm

from tests.sim.held_steps import HeldSteps, held_steps

HAS_TORCH = find_spec("torch") is not None and find_spec("tokenizers") is not None

collect_ignore_glob = [] if HAS_TORCH else ["test_[!i]*.py"]
"""Without torch all but test_installed.py."""

os.environ["HF_HUB_OFFLINE"] = "1"  # Read when the library is loaded: no test asks a server for anything.

if HAS_TORCH:
    from tests.nano.tiny_models import ModelMaker, make_model


@pytest.fixture(scope="session", autouse=True)
def no_monitor() -> None:
    """Transformers shows progress when it loads weights; the thread that would watch over that is never ended."""
    tqdm.monitor_interval = 0


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelMaker:
    """Makes the directory of a small random model, each kind once."""
    made = dict[str, Path]()

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = make_model(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return make


@pytest.fixture(scope="session")
def path(model: ModelMaker) -> Path:
    """The directory of a model, where one kind is as good as another."""
    return model("qwen2")


@pytest.fixture
def steps() -> Iterator[HeldSteps]:
    """Holds the engines of this process where the test needs a request under way."""
    with held_steps() as steps:
        yield steps
