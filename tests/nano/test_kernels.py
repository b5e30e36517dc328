"""Kernels compute what torch does, attention in blocks anywhere in the cache too; each row by its own numbers alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention

import mac_runner
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
from mac_runner.nano import attention as attention_module
from mac_runner.nano.cpu import vectors
from mac_runner.nano.testing import (
    FREE_SCORES,
    Attention,
    CompiledKVStore,
    Span,
    argmax_and_logsumexp,
    first_key,
    rectangles,
)
from mac_runner.nano.testing import rms_norm as norm_rows
from tests import patience
from tests.nano.tiny_models import ModelMaker

NUM_BLOCKS = 160
CPU = torch.device("cpu")
ONE = make_batch([Piece([0], 0, 1, [3])], 16)
"""A token of one sequence."""
Shape = tuple[int, int, int, int | None]
SHAPES: list[Shape] = [
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
ODD_SHAPES: list[Shape] = [(2, 3, 24, 7), (1, 2, 8, 40)]
"""For torch alone."""


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


def store_of(kind: str, config: ModelConfig, block_size: int, dtype: torch.dtype) -> KVStore:
    if kind == "compiled":
        return poisoned(config, block_size, dtype)
    return make_kv_store(config, NUM_BLOCKS, block_size, dtype, CPU, compiled=False)


STORES = ("compiled", "torch", "torch, tight")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [(kind, shape) for kind in STORES for shape in SHAPES + (ODD_SHAPES if kind != "compiled" else [])],
    ids=str,
)
def test_attends_to_what_each_row_may_see(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch, kind: str, shape: Shape, dtype: torch.dtype
) -> None:
    config, block_size = shaped(config, *shape), 4 if shape in ODD_SHAPES else 16
    if kind == "torch, tight":  # Without free padding, and with memory for few sequences: there are many rectangles.
        monkeypatch.setattr(attention_module, "FREE_SCORES", 0)
        monkeypatch.setattr(attention_module, "GATHERED_BYTES", 1 << 16)
    norms = torch.rand(2, config.head_dim) + 0.5 if shape[0] == 2 else None
    asked = sequences(config, block_size, dtype, seed=sum(shape[:3]))

    found = computed(store_of(kind, config, block_size, dtype), config, asked, norms, 1, block_size)

    for each, rows in zip(asked, found, strict=True):
        error = rows.float().sub(expected(config, each.qkv, norms)).abs().max()
        # Torch rounds queries to bfloat16 as well.
        assert error < (1e-5 if dtype == torch.float32 else 1e-2 if kind == "compiled" else 5e-2)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_a_row_depend_on_its_own_keys_alone(
    config: ModelConfig, shape: Shape, dtype: torch.dtype, block_size: int
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

    attended = store.attention(ONE, *rotations(config)).attend(0, torch.ones(2, 8 * 16), None)

    assert attended[0].abs().min() > 0
    assert attended[1].abs().max() == 0


@pytest.mark.parametrize("kind", STORES[:2])
def test_what_is_no_number_stays_in_its_own_rows(config: ModelConfig, kind: str) -> None:
    config = shaped(config, 2, 2, 32, None)
    asked = sequences(config, 16, torch.float32, seed=3)
    healthy, found = [
        computed(store_of(kind, config, 16, torch.float32), config, each, None, 4, 16)
        for each in (asked, [asked[0], replace(asked[1], qkv=spoilt(asked[1].qkv)), *asked[2:]])
    ]

    assert found[1].isnan().all()
    assert all(torch.equal(found[index], healthy[index]) for index in (0, 2, 3))


def spoilt(qkv: torch.Tensor) -> torch.Tensor:
    return torch.cat((torch.full_like(qkv[:1], float("nan")), qkv[1:]))


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
    batch = replace(ONE, **changes)  # type: ignore[arg-type]

    with pytest.raises(IndexError, match=message):
        store.attention(batch, *rotations(config))


def test_projections_of_another_shape_are_refused(config: ModelConfig) -> None:
    config = shaped(config, 2, 2, 16, None)
    store = make_kv_store(config, 4, 16, torch.float32, CPU, compiled=True)
    plan = store.attention(ONE, *rotations(config))

    for wrong in (torch.ones(0, 128), torch.ones(1, 96), torch.ones(1, 128).bfloat16()):
        with pytest.raises(ValueError, match="1 rows of 128 numbers"):
            plan.attend(0, wrong, None)


def test_what_kernels_cannot_do_is_refused(config: ModelConfig) -> None:
    for changes, block_size, dtype, message in (
        ({}, 24, torch.float32, "block_size = 24"),
        ({"head_dim": 24}, 16, torch.float32, "heads have 24"),
        ({}, 16, torch.float16, "float16"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_kv_store(replace(config, **changes), 4, block_size, dtype, CPU, compiled=True)  # type: ignore[arg-type]


# Torch's rectangles.


def random_spans(chance: Random) -> Iterator[Span]:
    for _ in range(chance.randint(1, 80)):
        yield Span(0, chance.choice((1, 1, 1, 16, chance.randint(1, 600))), chance.randint(0, 9_000), ())


def test_no_rectangle_is_mostly_padding_or_gathers_more_than_it_may() -> None:
    for seed in range(200):
        chance = Random(seed)
        spans, window = list(random_spans(chance)), chance.choice((None, None, 4_096))
        keys_most = chance.choice((500, 20_000, 1 << 30))

        found = rectangles(spans, window, keys_most)

        assert sorted(span for group in found for span in group) == sorted(spans)
        for group in found:
            sizes = [(span.num_tokens, span.start + span.num_tokens - first_key(span, window)) for span in group]
            rows, keys = (max(each) for each in zip(*sizes, strict=True))
            padded = len(group) * rows * keys
            assert group[-1].num_tokens == rows
            assert padded <= 2 * sum(count * width for count, width in sizes) + FREE_SCORES
            assert len(group) == 1 or (len(group) * keys <= keys_most and padded <= attention_module.SCORES)


def test_single_tokens_of_like_contexts_take_one_call() -> None:
    spans = [Span(row, 1, 2_000 + 40 * row, ()) for row in range(64)]

    assert len(rectangles(spans, None, 1 << 30)) == 1


# Operations on rows.


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0])) * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_is_that_of_torch(dtype: torch.dtype) -> None:
    for dim in (1, 15, 16, 64, 96, 100):
        rows, weights = random(7, dim).to(dtype), random(dim).to(dtype)
        found = norm_rows(rows, weights, 1e-6)
        known = rms_norm(rows.float(), (dim,), weights.float(), 1e-6)

        assert found.dtype == dtype
        assert found.float().sub(known).abs().max() <= (1e-5 if dtype == torch.float32 else known.abs().max() / 256), (
            dim
        )
        assert torch.equal(norm_rows(rows[2:4], weights, 1e-6), found[2:4])


def test_summary_is_that_of_torch() -> None:
    for width in (1, 2, 15, 16, 17, 272, 1000):
        logits = random(5, width)
        places, sums = argmax_and_logsumexp(logits)

        assert torch.equal(places, logits.argmax(-1)), width
        assert sums.sub(logits.logsumexp(-1)).abs().max() < 1e-5, width
        assert torch.equal(argmax_and_logsumexp(logits[3:])[1], sums[3:])


def test_first_of_equal_numbers_is_taken_and_impossible_tokens_count_for_nothing() -> None:
    logits = torch.zeros(3, 40)
    logits[1, [7, 20, 39]] = 1.0
    logits[2, :], logits[2, 33] = float("-inf"), 2.0
    places, sums = argmax_and_logsumexp(logits)

    assert places.tolist() == [0, 7, 33]
    assert sums[2] == 2.0


def test_sum_of_what_is_no_number_is_none() -> None:
    for place, wrong in product((0, 20, 39), (float("nan"), float("inf"))):
        logits = torch.zeros(2, 40)
        logits[1, place] = wrong

        assert argmax_and_logsumexp(logits)[1].isfinite().tolist() == [True, False]


# Kernels are compiled wherever the package lies.


PROGRAM = """
import os, numpy, torch
from mac_runner.nano.cpu.attention import _weigh
from mac_runner.nano.cpu.vectors import argmax_and_logsumexp
if os.environ.get("PROGRAM_SAYS") == "sum":
    print(_weigh(numpy.zeros(64, numpy.float32), 0, 64, 0, 64))
else:
    print(argmax_and_logsumexp(torch.tensor([[0.0, 3.0, 1.0]]))[0].tolist())
"""


def run(package: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH")}
    ended = patience.run(
        [sys.executable, "-c", PROGRAM],
        cwd="/",
        env={**kept, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package without anything compiled."""
    source = Path(mac_runner.__file__).parent
    shutil.copytree(source, tmp_path / "lib" / "mac_runner", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "lib"


def test_what_was_compiled_is_kept_where_the_user_says(package: Path, tmp_path: Path) -> None:
    assert run(package, NUMBA_CACHE_DIR=str(tmp_path / "kept")) == "[1]\n"

    assert list((tmp_path / "kept").rglob("vectors.*.nbc"))
    assert not list(package.rglob("*.nbc"))


def test_what_was_compiled_is_kept_beside_the_package_until_what_it_is_made_of_changes(package: Path) -> None:
    """The file of a kernel is the same, the vectors that it is made of are others."""
    changed = package / "mac_runner" / "nano" / "cpu" / "vectors.py"
    before = run(package, PROGRAM_SAYS="sum")
    assert list((changed.parent / "__pycache__").rglob("attention.*.nbc"))
    text = changed.read_text()
    assert "6.9314718e-1, 1.0)" in text
    changed.write_text(text.replace("6.9314718e-1, 1.0)", "6.9314718e-1, 2.0)"))

    assert (before, run(package, PROGRAM_SAYS="sum")) == ("64.0\n", "128.0\n")


def test_what_two_processes_compile_and_keep_at_once_is_not_mistaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has read what is kept before the first adds to it, and writes while the first does."""
    monkeypatch.setattr(vectors, "_place", lambda: tmp_path)
    kernels: list[Any] = [vectors.compiled()(twice) for _ in range(3)]
    first, second, third = kernels
    files = first._cache._cache_file
    save_data = files._save_data

    def save_late(name: str, data: object) -> None:
        monkeypatch.setattr(second._cache._cache_file, "_load_index", dict)
        assert second(1.5) == 3.0
        save_data(name, data)

    monkeypatch.setattr(files, "_save_data", save_late)
    assert first(2) == 4
    assert (third(1.5), third(2)) == (3.0, 4)
    assert third.stats.cache_hits.total() == 2


def twice(number: float) -> float:
    return number + number


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a place that nobody can write to")
def test_where_nothing_can_be_kept_kernels_are_compiled_anew(package: Path) -> None:
    """Files in the places of the folders: not even root can make anything below them."""
    for folder in (package / "mac_runner").rglob("cpu"):
        (folder / "__pycache__").write_text("")

    assert run(package, HOME="/dev/full", XDG_CACHE_HOME="/dev/full/cache") == "[1]\n"
