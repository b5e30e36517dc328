"""Tests against a real vLLM on the CPU. `.ci/vllm` runs them, where vLLM is installed; elsewhere one line says so."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.vllm.tiny_model import make_tiny_model

collect_ignore_glob = [] if find_spec("vllm") else ["test_[!i]*.py"]
"""Without vLLM all but test_installed.py."""


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """In place of the check for all tests: torch and vLLM leave threads and a helper of `multiprocessing` behind.

    That no engine is left behind is tested for each way an engine ends.
    """


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Logs of engines that broke are kept where the tests keep their own files."""
    with pytest.MonkeyPatch.context() as patch:
        directory = str(tmp_path_factory.mktemp("scratch"))
        patch.setattr(tempfile, "tempdir", directory)
        patch.setenv("TMPDIR", directory)
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model that runs on a CPU in no time."""
    return make_tiny_model(tmp_path_factory.mktemp("model"))
