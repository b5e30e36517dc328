"""A started engine to ask, in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mac_runner.backends.vllm import VllmConfig
from mac_runner.backends.vllm.testing import VllmBackend
from mac_runner.clock import SystemClock
from mac_runner.types import Reply, Request, Sampling

CONTEXT_TOKENS = 2048
"""Less than the model's, for a prompt that fills a context is computed in the square of its length."""
BLOCK_SIZE = 32
BOUND = 32
THREADS = "VLLM_CPU_OMP_THREADS_BIND"
"""Which cores each worker of a split model computes on; left alone, vLLM wants a NUMA node for each."""


class Table:
    """A started backend, the event loop it was started on, and what it told at its start."""

    def __init__(self, runner: asyncio.Runner, backend: VllmBackend, told: list[str]) -> None:
        self.runner = runner
        self.backend = backend
        self.told = told

    def ask(self, *requests: Request) -> list[Reply]:
        """The replies to requests that are all sent at once."""

        async def program() -> list[Reply]:
            return await asyncio.gather(*map(self.backend.generate, requests))

        return self.runner.run(program())

    def unfinished(self) -> int:
        """How many requests the engine still works at."""
        count: Callable[[], int] = self.backend.running.engine.output_processor.get_num_unfinished_requests  # type: ignore[attr-defined]
        return count()

    def copies_at_work(self) -> int:
        """How many copies of the model have requests to work at."""
        core = self.backend.running.engine.engine_core  # type: ignore[attr-defined]
        copies: Mapping[str, bytes] = getattr(core, "reqs_in_flight", {})
        return len(set(copies.values())) or 1


def two_cores() -> str:
    """A core for each of two workers, or the one there is for both."""
    cores = sorted(os.sched_getaffinity(0))
    return f"{cores[0]}|{cores[-1]}"


def config(model: Path, **more: object) -> VllmConfig:
    settings = {
        "model": str(model),
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": BLOCK_SIZE,
        "max_model_len": CONTEXT_TOKENS,
        "max_num_seqs_upper_bound": BOUND,
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    return VllmConfig.model_validate(settings | more)


@contextmanager
def started(settings: VllmConfig) -> Iterator[Table]:
    told: list[str] = []
    backend = VllmBackend(name="m", config=settings, traces=True, clock=SystemClock(), say=told.append)
    with asyncio.Runner() as runner:
        try:
            runner.run(backend.start())
            yield Table(runner, backend, told)
        finally:
            runner.run(backend.close())


def sampling(seed: int = 1, *, max_tokens: int = 24, stop: tuple[str, ...] = (), temperature: float = 1.0) -> Sampling:
    return Sampling(seed=seed, max_tokens=max_tokens, stop=stop, temperature=temperature)
