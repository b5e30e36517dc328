"""The contract of every backend, kept by nano on its real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.nano import NanoConfig
from mac_runner.backends.nano.backend import NanoBackend
from mac_runner.testing.backends import BackendContract, BackendHarness, CannotError, Trouble
from mac_runner.types import Request
from tests.sim.nano_model import CONTEXT_TOKENS


class NanoHarness(BackendHarness):
    def __init__(self, model: Path) -> None:
        self.model = model

    def build(self) -> Backend:
        settings = {"model": str(self.model), "num_threads": 1, "kv_cache_gib": 0.02, "max_num_seqs_upper_bound": 6}
        config = NanoConfig.model_validate(settings)
        return NanoBackend(name="m", config=config, traces=False, say=lambda line: None)

    async def trouble(self, kind: Trouble) -> None:
        raise CannotError(f"the engine is part of this process, and cannot be made {kind} from outside")

    async def heal(self) -> None:
        raise CannotError("the engine was never in trouble")

    def request_too_long(self) -> Request:
        return self.request("word " * CONTEXT_TOKENS)

    def request_cut_off(self) -> Request:
        return self.request(max_tokens=2)

    def request_slow(self) -> Request:
        return self.request(max_tokens=4000)


class TestNano(BackendContract):
    @pytest.fixture
    def harness(self, model_directory: Path) -> BackendHarness:
        return NanoHarness(model_directory)
