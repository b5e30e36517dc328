"""New weights for a real vLLM in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mac_runner.backends.base import updating
from mac_runner.errors import StaleVersionError, WeightMismatchError, WeightUpdateError
from mac_runner.types import PolicySpan, Reply
from mac_runner.weights import Broadcast, Weights, WeightUpdate
from tests.sim.requests import request
from tests.vllm.processes import until
from tests.vllm.table import Table, config, sampling, started

ASKED = request("Who is suspicious?", sampling=sampling())
LONG = request("Go on.", sampling=sampling(max_tokens=400))
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def table(tiny_model: Path) -> Iterator[Table]:
    with started(config(tiny_model)) as table:
        yield table


def update(table: Table, version: int, weights: Weights) -> None:
    table.runner.run(table.backend.update_weights(WeightUpdate(version=version, weights=weights)))


def test_updated_vllm_computes_with_the_new_weights_and_says_so(table: Table, tiny_model: Path, tmp_path: Path) -> None:
    async def under_way() -> Reply:
        long = asyncio.create_task(table.backend.generate(LONG))
        await until(lambda: table.unfinished() > 0)
        await table.backend.update_weights(WeightUpdate(version=3, weights=others))
        return await long

    assert updating(table.backend, name="m", kind="vllm") is table.backend
    own = load_file(tiny_model / "model.safetensors")
    others = {name: torch.roll(tensor, 1, 0) for name, tensor in own.items()}
    save_file(others, tmp_path / "others.safetensors")
    (before,) = table.ask(ASKED)
    update(table, 1, tmp_path / "others.safetensors")
    (changed,) = table.ask(ASKED)
    update(table, 2, tiny_model)
    (back,) = table.ask(ASKED)
    mixed = table.runner.run(under_way())
    (again,) = table.ask(ASKED)

    assert [reply.policy for reply in (before, changed, back)] == [(0, 0), (1, 1), (2, 2)]
    assert back.trace == before.trace
    assert changed.trace != before.trace
    assert again.trace == changed.trace
    assert mixed.policy in (PolicySpan(2, 3), PolicySpan(3, 3))  # It may have waited for its first step.
    bad: list[tuple[Weights, int, type[WeightUpdateError], str]] = [
        ({name: tensor for name, tensor in own.items() if name != NORM}, 4, WeightMismatchError, f"{NORM} .* missing"),
        ({**own, NORM: own[NORM][1:]}, 4, WeightMismatchError, f"{NORM} has shape .127., expected .128."),
        ({**own, NORM: own[NORM].int()}, 4, WeightMismatchError, f"{NORM} is of I32, expected F32"),
        ({**own, "extra": own[NORM]}, 4, WeightMismatchError, "extra has no place"),
        (tmp_path / "weights.bin", 4, WeightUpdateError, "other formats can run code"),
        (Broadcast("localhost:1"), 4, WeightUpdateError, "trainer"),
        (own, 3, StaleVersionError, "version 3; give a version above it"),
    ]
    for weights, version, kind, text in bad:
        with pytest.raises(kind, match=text):
            update(table, version, weights)
    (kept,) = table.ask(ASKED)
    assert (kept.policy, kept.trace) == (PolicySpan(3, 3), changed.trace)
