"""Attention over the KV cache: what a pass computes, and the protocol of attention.

A `ForwardBatch` is what one forward pass computes, as plain numbers: the same for every rank, and easily sent. On a
CPU compiled kernels attend (`cpu/attention.py`). They read blocks in place, for all sequences in one pass, and give a
token the same bits whatever is computed beside it. On other devices torch attends (`torch_attention.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from mac_runner.nano.architecture import ModelConfig


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
