"""The example backend over `transformers.generate` keeps the contract of every backend, and plays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.testing import own_spec
from mac_runner.clock import SystemClock
from mac_runner.plugins import find_plugin
from mac_runner.testing.backends import BackendContract, BackendHarness
from mac_runner.types import Request
from tests.sim.building import request_for

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "./transformers_backend.py:Transformers"


class TransformersHarness(BackendHarness):
    patience_s = 600.0

    def __init__(self, model: Path) -> None:
        self.model = model

    def build(self) -> Backend:
        spec = own_spec(find_plugin("backends", NAME, EXAMPLES))
        settings = spec.settings(model=str(self.model), context_tokens=512)
        return spec.build(request_for(settings, SystemClock(), backend=NAME))

    def request_too_long(self) -> Request:
        return self.request("a" + " the" * 600)

    def request_cut_off(self) -> Request:
        return self.request(max_tokens=2)

    def request_slow(self) -> Request:
        return self.request(max_tokens=400)


class TestTransformers(BackendContract):
    @pytest.fixture
    def harness(self, tiny_model: Path) -> BackendHarness:
        return TransformersHarness(tiny_model)


def test_its_file_plays_with_another_model(tiny_model: Path, tmp_path: Path) -> None:
    file, out = EXAMPLES / "transformers.yaml", tmp_path / "run"
    chosen = ["--set", f"model_definitions.qwen.settings.model={tiny_model}", "--out", str(out), "--quiet"]
    chosen += [f"--set=agent_definitions.{agent}.max_tokens=8" for agent in range(2)]

    played = subprocess.run(
        [sys.executable, "-m", "mac_runner", str(file), *chosen], capture_output=True, text=True, check=False
    )

    assert played.returncode == 0, played.stderr
    assert len([*(out / "transcripts").iterdir()]) == 3
