"""The contract of every backend, kept by vLLM; most tests share one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.vllm.backend import VllmBackend
from mac_runner.clock import SystemClock
from mac_runner.testing.backends import BackendContract, BackendHarness, CannotError, Trouble
from mac_runner.types import Request
from tests.vllm.processes import engine_processes
from tests.vllm.table import Table, config, started
from tests.vllm.tiny_model import CONTEXT_TOKENS


class VllmHarness(BackendHarness):
    patience_s = 600.0

    def __init__(self, table: Table, model: Path) -> None:
        self.table = table
        self.model = model

    def build(self) -> Backend:
        return VllmBackend(
            name="m", config=config(self.model), traces=False, clock=SystemClock(), say=lambda line: None
        )

    @asynccontextmanager
    async def started(self, *, is_fresh: bool) -> AsyncIterator[Backend]:
        if is_fresh:
            raise CannotError("test_endings ends engines, one by one")
        yield self.table.backend

    def run(self, program: Coroutine[None, None, None]) -> None:
        self.table.runner.run(program)

    def unfinished(self) -> int:
        return self.table.unfinished()

    async def trouble(self, kind: Trouble) -> None:
        raise CannotError(f"the engine cannot be made {kind} from outside")

    async def heal(self) -> None:
        raise CannotError("the engine was never in trouble")

    def request_too_long(self) -> Request:
        return self.request("a" + " the" * CONTEXT_TOKENS)

    def request_cut_off(self) -> Request:
        return self.request(max_tokens=2)

    def request_slow(self) -> Request:
        return self.request(max_tokens=4000)


@pytest.fixture(scope="module")
def table(tiny_model: Path) -> Iterator[Table]:
    with started(config(tiny_model)) as table:
        yield table
    assert engine_processes() == []


class TestVllm(BackendContract):
    @pytest.fixture
    def harness(self, table: Table, tiny_model: Path) -> BackendHarness:
        return VllmHarness(table, tiny_model)
