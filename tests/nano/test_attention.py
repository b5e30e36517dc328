"""Attention over blocks anywhere in the cache: right in every shape, each row's bits decided by its own keys alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from mac_runner.nano import (
    ConfigError,
    ForwardBatch,
    KVStore,
    ModelConfig,
    Piece,
    make_batch,
    make_kv_store,
    read_model_config,
)
from mac_runner.nano.testing import Attention, CompiledKVStore, Span
from tests.nano.tiny_models import ModelMaker

NUM_BLOCKS = 64
CPU = torch.device("cpu")
SHAPES = [
    # KV heads, heads that share one, numbers of a head, window
    (1, 1, 16, None),
    (2, 2, 64, None),
    (2, 3, 32, 16),
    (1, 4, 48, None),
    (2, 7, 64, None),
    (4, 1, 80, 40),
    (1, 6, 128, 5),
    (1, 20, 16, None),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A sequence: projections of all its tokens, not yet rotated, and its blocks."""

    qkv: torch.Tensor
    block_ids: tuple[int, ...]


@pytest.fixture
def config(model: ModelMaker) -> ModelConfig:
    return read_model_config(model("qwen2"))


def shaped(config: ModelConfig, num_kv_heads: int, group: int, dim: int, window: int | None) -> ModelConfig:
    heads = {"num_heads": num_kv_heads * group, "num_kv_heads": num_kv_heads, "head_dim": dim}
    return replace(config, num_layers=1, windows=(window,), **heads)  # type: ignore[arg-type]


def rotations(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.rand(300, config.head_dim // 2, generator=torch.Generator().manual_seed(1)) * 6
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)


def sequences(config: ModelConfig, block_size: int, dtype: torch.dtype, seed: int) -> list[Asked]:
    """Some of all lengths, in blocks that lie anywhere."""
    chance, generator = Random(seed), torch.Generator().manual_seed(seed)
    blocks = list(range(NUM_BLOCKS))
    chance.shuffle(blocks)
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    found = list[Asked]()
    for _ in range(4):
        length = chance.randint(1, 150)
        table = tuple(blocks.pop() for _ in range(-(-length // block_size)))
        found.append(Asked(qkv=torch.randn(length, width, generator=generator).to(dtype), block_ids=table))
    return found


def expected(config: ModelConfig, qkv: torch.Tensor, norms: torch.Tensor | None) -> torch.Tensor:
    """By torch, the whole sequence at once, in float32 but for the keys, which the cache keeps in the model's type."""
    count, (cosine, sine) = len(qkv), rotations(config)
    heads = qkv.float().unflatten(-1, (-1, config.head_dim))
    queries, keys, values = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
    if norms is not None:
        queries, keys = (
            rms_norm(each, each.shape[-1:], norm, config.rms_norm_eps)
            for each, norm in zip((queries, keys), norms, strict=True)
        )

    def turned(each: torch.Tensor) -> torch.Tensor:
        rolled = each.roll(config.head_dim // 2, dims=-1)
        return each * cosine[:count].unsqueeze(1) + rolled * sine[:count].unsqueeze(1)

    distance = torch.arange(count).unsqueeze(1) - torch.arange(count)
    result = scaled_dot_product_attention(
        turned(queries).transpose(0, 1),
        turned(keys).to(qkv.dtype).float().transpose(0, 1),
        values.transpose(0, 1),
        attn_mask=(distance >= 0) & (distance < (config.windows[0] or count)),
        enable_gqa=True,
    )
    return result.transpose(0, 1).flatten(1)


def in_pieces(asked: Sequence[Asked], seed: int) -> Iterator[list[tuple[int, int, int]]]:
    """Steps until all is computed: who computes how many tokens from where."""
    chance = Random(seed)
    done = [0] * len(asked)
    while any(count < len(each.qkv) for count, each in zip(done, asked, strict=True)):
        step = list[tuple[int, int, int]]()
        for index, each in enumerate(asked):
            if done[index] < len(each.qkv) and chance.random() < 0.7:
                count = min(chance.choice((1, 1, 2, 3, 5, 16, 17, 40)), len(each.qkv) - done[index])
                step.append((index, done[index], count))
                done[index] += count
        if step:
            yield step


def batch_of(asked: Sequence[Asked], step: Sequence[tuple[int, int, int]], block_size: int) -> ForwardBatch:
    return make_batch(
        [Piece([0] * len(asked[index].qkv), start, count, asked[index].block_ids) for index, start, count in step],
        block_size,
    )


def attention(store: KVStore, config: ModelConfig, batch: ForwardBatch, num_threads: int = 1) -> Attention:
    found = store.attention(batch, *rotations(config))
    if isinstance(store, CompiledKVStore):
        found.num_threads = num_threads  # type: ignore[attr-defined]
    return found


def computed(
    store: KVStore, config: ModelConfig, asked: Sequence[Asked], norms: torch.Tensor | None, seed: int, block_size: int
) -> list[torch.Tensor]:
    """What each sequence attends to, computed in steps with the others."""
    found: list[list[torch.Tensor]] = [[] for _ in asked]
    for number, step in enumerate(in_pieces(asked, seed)):
        qkv = torch.cat([asked[index].qkv[start : start + count] for index, start, count in step])
        plan = attention(store, config, batch_of(asked, step, block_size), num_threads=1 + number % 2)
        parts = plan.attend(0, qkv, norms).split([count for _, _, count in step])
        for (index, _, _), part in zip(step, parts, strict=True):
            found[index].append(part)
    return [torch.cat(parts) for parts in found]


def poisoned(config: ModelConfig, block_size: int, dtype: torch.dtype) -> CompiledKVStore:
    """Memory in which nothing is a number before it was written."""
    store = CompiledKVStore(config, NUM_BLOCKS, block_size, dtype)
    store.memory[...] = 0x7FC0 if dtype == torch.bfloat16 else float("nan")
    return store


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attends_to_what_each_row_may_see(
    config: ModelConfig, shape: tuple[int, int, int, int | None], dtype: torch.dtype, *, is_compiled: bool
) -> None:
    config = shaped(config, *shape)
    norms = torch.rand(2, config.head_dim) + 0.5 if shape[0] == 2 else None
    asked = sequences(config, 16, dtype, seed=sum(shape[:3]))
    store = (
        poisoned(config, 16, dtype)
        if is_compiled
        else make_kv_store(config, NUM_BLOCKS, 16, dtype, CPU, compiled=False)
    )

    found = computed(store, config, asked, norms, 1, 16)

    for each, rows in zip(asked, found, strict=True):
        error = rows.float().sub(expected(config, each.qkv, norms)).abs().max()
        # Torch rounds queries to bfloat16 as well.
        assert error < (1e-5 if dtype == torch.float32 else 1e-2 if is_compiled else 5e-2)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_a_row_depend_on_its_own_keys_alone(
    config: ModelConfig, shape: tuple[int, int, int, int | None], dtype: torch.dtype, block_size: int
) -> None:
    """In steps and by two threads in a crowd, or all at once and alone."""
    config = shaped(config, *shape)
    asked = sequences(config, block_size, dtype, seed=block_size)

    found = computed(poisoned(config, block_size, dtype), config, asked, None, 2, block_size)

    for index, (each, rows) in enumerate(zip(asked, found, strict=True)):
        store = poisoned(config, block_size, dtype)
        batch = batch_of(asked, [(index, 0, len(each.qkv))], block_size)
        assert torch.equal(attention(store, config, batch).attend(0, each.qkv, None), rows)


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "torch"])
def test_rows_that_belong_to_nobody_attend_to_nothing(config: ModelConfig, *, is_compiled: bool) -> None:
    config = shaped(config, 2, 2, 16, None)
    store = make_kv_store(config, 4, 16, torch.float32, CPU, compiled=is_compiled)
    qkv = torch.ones(2, 8 * 16)

    attended = store.attention(make_batch([Piece([0], 0, 1, [3])], 16), *rotations(config)).attend(0, qkv, None)

    assert attended[0].abs().min() > 0
    assert attended[1].abs().max() == 0


def test_what_is_no_number_stays_in_its_own_rows(config: ModelConfig) -> None:
    config = shaped(config, 2, 2, 32, None)
    asked = sequences(config, 16, torch.float32, seed=3)
    healthy = computed(poisoned(config, 16, torch.float32), config, asked, None, 4, 16)
    asked[1].qkv[0, :] = float("nan")

    found = computed(poisoned(config, 16, torch.float32), config, asked, None, 4, 16)

    assert found[1].isnan().all()
    assert all(torch.equal(found[index], healthy[index]) for index in (0, 2, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": (4 * 16,)}, "slots from 64"),
        ({"slots": (-1,)}, "slots from -1"),
        ({"positions": (300,)}, "positions from 300"),
        ({"spans": (Span(0, 1, 0, (4,)),)}, "tiles from 4"),
        ({"spans": (Span(0, 1, 16, (3,)),)}, "1 blocks do not hold 17"),
        ({"spans": (Span(0, 2, 0, (3,)),)}, "rows from 1"),
    ],
)
def test_what_lies_outside_the_memory_is_refused(config: ModelConfig, changes: dict[str, object], message: str) -> None:
    """Kernels look at no bounds."""
    config = shaped(config, 2, 2, 16, None)
    store = make_kv_store(config, 4, 16, torch.float32, CPU, compiled=True)
    batch = replace(make_batch([Piece([0], 0, 1, [3])], 16), **changes)  # type: ignore[arg-type]

    with pytest.raises(IndexError, match=message):
        store.attention(batch, *rotations(config))


@pytest.mark.parametrize(
    "qkv", [torch.ones(0, 128), torch.ones(1, 96), torch.ones(1, 128).bfloat16()], ids=["rows", "width", "type"]
)
def test_projections_of_another_shape_are_refused(config: ModelConfig, qkv: torch.Tensor) -> None:
    config = shaped(config, 2, 2, 16, None)
    store = make_kv_store(config, 4, 16, torch.float32, CPU, compiled=True)
    attention = store.attention(make_batch([Piece([0], 0, 1, [3])], 16), *rotations(config))

    with pytest.raises(ValueError, match="1 rows of 128 numbers"):
        attention.attend(0, qkv, None)


@pytest.mark.parametrize(
    ("changes", "block_size", "dtype", "message"),
    [
        ({}, 24, torch.float32, "block_size = 24"),
        ({"head_dim": 24}, 16, torch.float32, "heads have 24"),
        ({}, 16, torch.float16, "float16"),
    ],
)
def test_what_kernels_cannot_do_is_refused(
    config: ModelConfig, changes: dict[str, int], block_size: int, dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_kv_store(replace(config, **changes), 4, block_size, dtype, CPU, compiled=True)  # type: ignore[arg-type]
