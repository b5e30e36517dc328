"""New weights for a vLLM while it works, whichever backend it is reached by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest
import torch
from safetensors.torch import load_file, save_file

from mac_runner.errors import StaleVersionError, WeightMismatchError, WeightUpdateError
from mac_runner.types import PolicySpan, Reply, Request
from mac_runner.weights import Broadcast, Weights, WeightUpdate
from tests.patience import LIMIT_S
from tests.sim.requests import request
from tests.vllm.table import sampling

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
