"""Attention over the KV cache: what a pass computes, and the protocol of attention.

A `ForwardBatch` is what one forward pass computes, as plain numbers: the same for every rank, and easily sent. On a
CPU compiled kernels attend (`cpu/attention.py`). They read blocks in place, for all sequences in one pass, and give a
token the same bits whatever is computed beside it.

On other devices torch attends. The sequences of a pass differ in their rows, one for a token and many for a piece of a
prompt, and in their keys. Those of like size form a rectangle: their keys are gathered from the blocks, the shorter
ones are padded to the longest, and one call of torch's attention computes all. What a rectangle may gather is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import pad, rms_norm, scaled_dot_product_attention

from mac_runner.nano.architecture import ModelConfig

GATHERED_BYTES = 1 << 28
"""What one rectangle may gather in a layer, if it holds more than one sequence."""
SCORES = 1 << 24
"""The rows times keys that one rectangle may have, if it holds more than one sequence."""
FREE_SCORES = 1 << 14
"""So much padding costs less than another call."""


class Span(NamedTuple):
    """The rows of one sequence: its tokens from `start` to `start + num_tokens`, and its table of blocks."""

    first_row: int
    num_tokens: int
    start: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """Tokens of several sequences, one row each, with their positions.

    `slots` are the places of the rows' keys and values in the KV cache, `logit_rows` the rows whose logits are wanted.
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    slots: tuple[int, ...]
    spans: tuple[Span, ...]
    logit_rows: tuple[int, ...]


class Piece(NamedTuple):
    """The next `num_tokens` of a sequence to compute, and its table of blocks."""

    tokens: Sequence[int]
    start: int
    num_tokens: int
    block_ids: Sequence[int]


def make_batch(pieces: Iterable[Piece], block_size: int) -> ForwardBatch:
    """Join pieces to a batch. Logits are wanted for those that end with the sequence's last token."""
    token_ids, positions, slots = list[int](), list[int](), list[int]()
    spans, logit_rows = list[Span](), list[int]()
    for tokens, start, num_tokens, block_ids in pieces:
        end = start + num_tokens
        needed = tuple(block_ids[: -(-end // block_size)])
        spans.append(Span(len(token_ids), num_tokens, start, needed))
        token_ids.extend(tokens[start:end])
        positions.extend(range(start, end))
        slots.extend(needed[place // block_size] * block_size + place % block_size for place in range(start, end))
        if end == len(tokens):
            logit_rows.append(len(token_ids) - 1)
    return ForwardBatch(
        token_ids=tuple(token_ids),
        positions=tuple(positions),
        slots=tuple(slots),
        spans=tuple(spans),
        logit_rows=tuple(logit_rows),
    )


class Attention(Protocol):
    """How one batch reads and writes the cache; prepared once for all layers."""

    def attend(self, index: int, qkv: torch.Tensor, head_norms: torch.Tensor | None) -> torch.Tensor:
        """Attend in layer `index`: [rows, heads x dim].

        `qkv` is [rows, (heads + 2 x KV heads) x dim], not yet rotated. Its keys and values go into the cache.
        `head_norms`, if the model has them, are weights [2, dim] for queries and keys, in float32. Rows beyond the
        batch's are padding, and attend to nothing.
        """
        ...


class KVStore(Protocol):
    """The memory behind the blocks: a slot for every token in every layer."""

    def attention(self, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> Attention:
        """Prepare for a batch. The rotations are [positions, dim], in float32; the sine carries the sign."""
        ...


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """The bytes of one token's keys and values in all layers."""
    return config.num_layers * 2 * config.num_kv_heads * config.head_dim * int(dtype.itemsize)


def first_key(span: Span, window: int | None) -> int:
    return max(span.start + 1 - window, 0) if window else 0


@dataclass(slots=True)
class _Sizes:
    """The sequences of a rectangle, and what it pads them to."""

    spans: list[Span]
    num_keys: int
    num_scores: int

    def take(self, span: Span, num_keys: int, keys_most: int) -> bool:
        """Add a sequence with as many rows as the others or more, unless padding or memory would be too much."""
        widest, scores = max(self.num_keys, num_keys), self.num_scores + span.num_tokens * num_keys
        keys = (len(self.spans) + 1) * widest
        padded = keys * span.num_tokens
        if keys > keys_most or padded > min(SCORES, 2 * scores + FREE_SCORES):
            return False
        self.spans.append(span)
        self.num_keys, self.num_scores = widest, scores
        return True


def rectangles(spans: Iterable[Span], window: int | None, keys_most: int) -> list[list[Span]]:
    """Divide sequences by size. At most half of a large rectangle is padding."""
    found = list[_Sizes]()
    sized = ((span, span.start + span.num_tokens - first_key(span, window)) for span in spans)
    for span, num_keys in sorted(sized, key=lambda each: (each[0].num_tokens, each[1])):
        if not found or not found[-1].take(span, num_keys, keys_most):
            found.append(_Sizes([span], num_keys, span.num_tokens * num_keys))
    return [each.spans for each in found]


class Rectangle(NamedTuple):
    """The rows [sequences, rows] and the slots [sequences, keys] to gather, and what sees what [sequences, 1, …, keys].

    A sequence is padded with its own last row and key. So no number of one sequence reaches another.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    sees: torch.Tensor


class TorchKVStore:
    """Keys and values as [layer, 2, slot, KV head, dim], read by torch."""

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.block_size = block_size
        shape = (config.num_layers, 2, num_blocks * block_size, config.num_kv_heads, config.head_dim)
        # Zeros, because a product with earlier contents of the memory could be NaN.
        self.memory = torch.zeros(shape, dtype=dtype, device=device)

    def attention(self, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> TorchAttention:
        return TorchAttention(self, batch, cosine, sine)

    @property
    def keys_most(self) -> int:
        return GATHERED_BYTES // (2 * self.config.num_kv_heads * self.config.head_dim * int(self.memory.itemsize))


class TorchAttention:
    """One batch; see `Attention`."""

    def __init__(self, store: TorchKVStore, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> None:
        device = store.memory.device
        positions = torch.tensor(batch.positions, device=device)
        self._store = store
        self._slots = torch.tensor(batch.slots, device=device)
        self._cosine, self._sine = cosine[positions].unsqueeze(1), sine[positions].unsqueeze(1)
        self._plans = {window: _plan(store, batch.spans, window) for window in set(store.config.windows)}

    def attend(self, index: int, qkv: torch.Tensor, head_norms: torch.Tensor | None) -> torch.Tensor:
        config, memory = self._store.config, self._store.memory[index]
        query_norm, key_norm = (None, None) if head_norms is None else head_norms.to(qkv.dtype).unbind()
        heads = qkv[: len(self._slots)].unflatten(-1, (-1, config.head_dim))
        queries, keys, values = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        memory[0].index_copy_(0, self._slots, self._turn(keys, key_norm))
        memory[1].index_copy_(0, self._slots, values)
        # Heads that share keys are further rows of one head.
        queries = self._turn(queries, query_norm).unflatten(1, (config.num_kv_heads, -1))
        plan, places = self._plans[config.windows[index]]
        attended = torch.cat([_attend(queries, memory, rectangle) for rectangle in plan])[places]
        return pad(attended, (0, 0, 0, len(qkv) - len(attended)))

    def _turn(self, heads: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """Normalize heads if the model does, and turn each pair (i, i + dim/2) of their numbers by its angle."""
        if norm is not None:
            heads = rms_norm(heads, heads.shape[-1:], norm, self._store.config.rms_norm_eps)
        turned = heads * self._cosine + heads.roll(heads.shape[-1] // 2, dims=-1) * self._sine
        return turned.to(heads.dtype)


def _attend(queries: torch.Tensor, memory: torch.Tensor, rectangle: Rectangle) -> torch.Tensor:
    """What the rows of a rectangle attend to, with its padding: [sequences x rows, heads x dim]."""
    count = rectangle.rows.shape[1]
    asked = queries[rectangle.rows].transpose(1, 2)  # [sequences, KV heads, rows, heads that share one, dim]
    keys, values = memory[:, rectangle.slots].transpose(2, 3)
    found = scaled_dot_product_attention(asked.flatten(2, 3), keys, values, attn_mask=rectangle.sees)
    return found.unflatten(2, (count, -1)).transpose(1, 2).flatten(2).flatten(0, 1)


def _plan(store: TorchKVStore, spans: Sequence[Span], window: int | None) -> tuple[list[Rectangle], torch.Tensor]:
    """The rectangles of a batch, and the place of each row among all that they compute."""
    groups = rectangles(spans, window, store.keys_most)
    places, begin = [0] * sum(span.num_tokens for span in spans), 0
    for group in groups:
        for span in group:
            places[span.first_row : span.first_row + span.num_tokens] = range(begin, begin + span.num_tokens)
            begin += group[-1].num_tokens  # The group's last sequence has the most rows.
    return [_rectangle(store, group, window) for group in groups], torch.tensor(places, device=store.memory.device)


def _rectangle(store: TorchKVStore, spans: Sequence[Span], window: int | None) -> Rectangle:
    device, size = store.memory.device, store.block_size
    starts = [first_key(span, window) for span in spans]
    widest = max(len(span.block_ids) for span in spans)
    tables = torch.tensor([span.block_ids + (0,) * (widest - len(span.block_ids)) for span in spans], device=device)
    numbers = [(span.first_row, span.start, span.num_tokens, start) for span, start in zip(spans, starts, strict=True)]
    first_row, position, num_tokens, start = torch.tensor(numbers, device=device).unsqueeze(-1).unbind(1)
    num_keys = max(span.start + span.num_tokens - begin for span, begin in zip(spans, starts, strict=True))
    row = torch.arange(spans[-1].num_tokens, device=device).minimum(num_tokens - 1)
    key = start + torch.arange(num_keys, device=device)
    held = key.minimum(position + num_tokens - 1)
    distance = (position + row).unsqueeze(2) - key.unsqueeze(1)
    sees = (distance >= 0) & (distance < window) if window else distance >= 0
    if row.shape[1] > 1:
        sees = sees.repeat_interleave(store.config.num_heads // store.config.num_kv_heads, dim=1)
    return Rectangle(
        rows=first_row + row, slots=tables.gather(1, held // size) * size + held % size, sees=sees.unsqueeze(1)
    )
