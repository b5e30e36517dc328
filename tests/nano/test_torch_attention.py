"""Torch's attention in rectangles: what a loop over the sequences computes, with bounded memory and bounded padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from mac_runner.nano import (
    EngineConfig,
    ForwardBatch,
    InferenceEngine,
    ModelConfig,
    Piece,
    SamplingParams,
    make_batch,
    read_model_config,
)
from mac_runner.nano import torch_attention as module
from mac_runner.nano.testing import FREE_SCORES, Span, TorchKVStore, first_key, rectangles
from tests.nano.tiny_models import VOCAB_SIZE, ModelMaker

CPU = torch.device("cpu")
NUM_SLOTS = 1_024


@pytest.fixture
def config(model: ModelMaker) -> ModelConfig:
    return read_model_config(model("qwen2"))


def looped(store: TorchKVStore, batch: ForwardBatch, queries: torch.Tensor, layer: int) -> torch.Tensor:
    """One sequence after the other, each with exactly its own keys."""
    window, found = store.config.windows[layer], list[torch.Tensor]()
    for span in batch.spans:
        end = span.start + span.num_tokens
        places = [span.block_ids[i // store.block_size] * store.block_size + i % store.block_size for i in range(end)]
        distance = torch.arange(span.start, end).unsqueeze(1) - torch.arange(end)
        attended = scaled_dot_product_attention(
            queries[span.first_row : span.first_row + span.num_tokens].transpose(0, 1).unsqueeze(0),
            *store.memory[layer][:, places].transpose(1, 2).unsqueeze(1).unbind(),
            attn_mask=(distance >= 0) & (distance < (window or end)),
            enable_gqa=True,
        )
        found.append(attended.squeeze(0).transpose(0, 1).flatten(1))
    return torch.cat(found)


def random_config(config: ModelConfig, chance: Random) -> ModelConfig:
    """Two layers, the second with a window."""
    num_kv_heads = chance.choice((1, 2, 4))
    return replace(
        config,
        num_layers=2,
        windows=(None, chance.choice((1, 7, 16, 40))),
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * chance.choice((1, 2, 3, 7)),
        head_dim=chance.choice((8, 16, 24, 64)),
    )


def random_batch(chance: Random, block_size: int) -> ForwardBatch:
    """Single tokens and pieces of prompts, some behind long prefixes that others share."""
    blocks = list(range(NUM_SLOTS // block_size))
    chance.shuffle(blocks)
    common = [blocks.pop() for _ in range(64 // block_size)]
    pieces = list[Piece]()
    for _ in range(chance.randint(1, 12)):
        start, count = chance.choice((0, 3, 64, 70)), chance.choice((1, 1, 1, 2, 15, 16, 33))
        shared = common if start >= 64 else []
        table = [*shared, *(blocks.pop() for _ in range(-(-(start + count) // block_size) - len(shared)))]
        pieces.append(Piece([0] * (start + count), start, count, table))
    return make_batch(pieces, block_size)


def unturned(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(200, config.head_dim), torch.zeros(200, config.head_dim)


def test_rectangles_compute_what_a_loop_over_the_sequences_does(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(24):
        chance, generator = Random(seed), torch.Generator().manual_seed(seed)
        shaped, block_size = random_config(config, chance), chance.choice((1, 4, 16, 32))
        # Without free padding, and with memory for a few sequences only, there are many rectangles.
        monkeypatch.setattr(module, "FREE_SCORES", chance.choice((0, FREE_SCORES)))
        monkeypatch.setattr(module, "GATHERED_BYTES", chance.choice((1 << 28, 1 << 16)))
        store = TorchKVStore(shaped, NUM_SLOTS // block_size, block_size, torch.float32, CPU)
        store.memory.copy_(torch.randn(store.memory.shape, generator=generator))
        batch = random_batch(chance, block_size)
        width = (shaped.num_heads + 2 * shaped.num_kv_heads) * shaped.head_dim
        qkv = torch.randn(len(batch.slots), width, generator=generator)
        queries = qkv.unflatten(1, (-1, shaped.head_dim))[:, : shaped.num_heads]

        plan = store.attention(batch, *unturned(shaped))

        for layer in range(2):
            attended = plan.attend(layer, qkv, None)
            torch.testing.assert_close(attended, looped(store, batch, queries, layer), atol=1e-5, rtol=0)


def test_what_is_no_number_stays_in_the_rows_of_its_sequence(config: ModelConfig) -> None:
    shaped = replace(config, num_layers=1, windows=(None,))
    store = TorchKVStore(shaped, 40, 16, torch.float32, CPU)
    pieces = [
        Piece([0] * length, length - 1, 1, [index * 4 + i for i in range(4)])
        for index, length in enumerate((50, 9, 60))
    ]
    batch = make_batch(pieces, 16)
    store.memory[:, :, 4 * 16 : 4 * 16 + 9] = float("nan")
    qkv = torch.ones(3, (shaped.num_heads + 2 * shaped.num_kv_heads) * shaped.head_dim)

    attended = store.attention(batch, *unturned(shaped)).attend(0, qkv, None)

    assert len(rectangles(batch.spans, None, store.keys_most)) == 1
    assert attended.isnan().all(1).tolist() == [False, True, False]


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
            assert len(group) == 1 or (len(group) * keys <= keys_most and padded <= module.SCORES)


def test_single_tokens_of_like_contexts_take_one_call() -> None:
    spans = [Span(row, 1, 2_000 + 40 * row, ()) for row in range(64)]

    assert len(rectangles(spans, None, 1 << 30)) == 1


@pytest.mark.parametrize("kind", ["qwen2-window", "qwen3"])
def test_engine_says_with_either_cache_what_compiled_kernels_say(model: ModelMaker, kind: str) -> None:
    """Prompts that share a beginning, cut into pieces beside tokens of others."""
    chance = Random(3)
    common = [chance.randrange(VOCAB_SIZE) for _ in range(40)]
    prompts = [[*common, *(chance.randrange(VOCAB_SIZE) for _ in range(chance.randint(1, 60)))] for _ in range(6)]
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)

    def said(**settings: object) -> list[tuple[tuple[int, ...], list[float]]]:
        config = EngineConfig(model_path=str(model(kind)), max_tokens_per_batch=48, num_threads=1, **settings)  # type: ignore[arg-type]
        with InferenceEngine(config) as engine:
            return [(sample.completion_tokens, list(sample.logprobs)) for sample in engine.generate(prompts, params)]

    expected = said()
    for cache_type in ("paged", "radix"):
        for (tokens, logprobs), (wanted, known) in zip(
            said(attention="torch", cache_type=cache_type), expected, strict=True
        ):
            assert tokens == wanted
            assert logprobs == pytest.approx(known, abs=1e-4)
