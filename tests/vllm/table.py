"""A started engine to ask, in this process, and new weights for a vLLM while it works, however it is reached."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
import torch
from safetensors.torch import load_file, save_file

from mac_runner.backends.testing import VllmBackend
from mac_runner.backends.vllm import VllmConfig
from mac_runner.clock import SystemClock
from mac_runner.errors import StaleVersionError, WeightMismatchError, WeightUpdateError
from mac_runner.types import PolicySpan, Reply, Request, Sampling
from mac_runner.weights import Broadcast, Weights, WeightUpdate
from tests.patience import LIMIT_S
from tests.sim.building import request_for
from tests.sim.requests import request

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
        core = self.backend.running.engine.engine_core
        copies: Mapping[str, bytes] = getattr(core, "reqs_in_flight", {})
        return len(set(copies.values())) or 1

    def is_known_to_rest(self) -> bool:
        """Whether the copies of the model have no requests by the counts that requests are spread by."""
        counts: Sequence[Sequence[float]] = getattr(self.backend.running.engine.engine_core, "lb_engines", ())
        return not any(waiting or running for waiting, running, *_ in counts)


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
    backend = VllmBackend(request_for(settings, SystemClock(), record_tokens=True, say=told.append))
    with asyncio.Runner() as runner:
        try:
            runner.run(backend.start())
            yield Table(runner, backend, told)
        finally:
            runner.run(backend.close())


def sampling(seed: int = 1, *, max_tokens: int = 24, stop: tuple[str, ...] = (), temperature: float = 1.0) -> Sampling:
    return Sampling(seed=seed, max_tokens=max_tokens, stop=stop, temperature=temperature)


ASKED = request("Night falls over the town. " * 40, sampling=sampling())
LONG = request("Go on.", sampling=sampling(max_tokens=600))
NORM = "model.norm.weight"


class Updated(Protocol):
    """A backend that takes new weights."""

    async def generate(self, request: Request) -> Reply: ...

    async def update_weights(self, update: WeightUpdate) -> object: ...


async def check_new_weights(
    backend: Updated, is_running: Callable[[], Awaitable[bool]], model: Path, place: Path
) -> None:
    """Replies are made with the new weights, and name their versions; what does not fit is refused and changes nothing.

    `is_running` says whether the engine works at a request.
    """
    own = load_file(model / "model.safetensors")
    others = {name: torch.roll(tensor, 1, 0) for name, tensor in own.items()}
    save_file(others, place / "others.safetensors")

    async def brought_into_a_reply() -> int:
        """The version of an update that came during a reply. If the reply ended before it, another one is asked for."""
        for version in range(3, 9):
            long = asyncio.create_task(backend.generate(LONG))
            async with asyncio.timeout(LIMIT_S):
                while not (long.done() or await is_running()):
                    pass
            await backend.update_weights(WeightUpdate(version=version, weights=others))
            if (await long).policy == PolicySpan(version - 1, version):
                return version
        raise AssertionError("no reply names the weights before and after an update")

    before = await backend.generate(ASKED)
    await backend.update_weights(WeightUpdate(version=1, weights=place / "others.safetensors"))
    changed = await backend.generate(ASKED)
    await backend.update_weights(WeightUpdate(version=2, weights=model))
    back = await backend.generate(ASKED)
    latest = await brought_into_a_reply()
    again = await backend.generate(ASKED)

    assert [reply.policy for reply in (before, changed, back)] == [(0, 0), (1, 1), (2, 2)]
    assert back.trace == before.trace
    assert changed.trace != before.trace
    assert again.trace == changed.trace
    bad: list[tuple[Weights, int, type[WeightUpdateError], str]] = [
        ({name: tensor for name, tensor in own.items() if name != NORM}, 9, WeightMismatchError, f"{NORM} .* missing"),
        ({**own, NORM: own[NORM][1:]}, 9, WeightMismatchError, f"{NORM} has shape .127., expected .128."),
        ({**own, NORM: own[NORM].int()}, 9, WeightMismatchError, f"{NORM} is of I32, expected F32"),
        ({**own, "extra": own[NORM]}, 9, WeightMismatchError, "extra"),
        (place / "weights.bin", 9, WeightUpdateError, "other formats"),
        (Broadcast("localhost:1"), 9, WeightUpdateError, "trainer"),
        (own, latest, StaleVersionError, f"version {latest}; give"),
    ]
    for weights, version, kind, text in bad:
        with pytest.raises(kind, match=text):
            await backend.update_weights(WeightUpdate(version=version, weights=weights))
    kept = await backend.generate(ASKED)
    # A cached prefix rounds in other ways, so the logprobs are others.
    assert (kept.policy, kept.text) == (PolicySpan(latest, latest), changed.text)
