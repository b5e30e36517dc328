"""Attention over the KV cache: what a pass computes, the protocol of attention, and torch's implementation.

A `ForwardBatch` is what one forward pass computes, as plain numbers: the same for every rank, and easily sent. On a
CPU compiled kernels attend (`cpu/attention.py`). They read blocks in place, for all sequences in one pass, and give a
token the same bits whatever is computed beside it. On other devices torch attends, one sequence after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import pad, rms_norm, scaled_dot_product_attention

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
        """Prepare for a batch."""
        return TorchAttention(self, batch, cosine, sine)

    def slots(self, span: Span) -> torch.Tensor:
        """The slots of the keys that a sequence's last row sees."""
        device = self.memory.device
        starts = torch.tensor(span.block_ids, device=device).unsqueeze(1) * self.block_size
        return (starts + torch.arange(self.block_size, device=device)).flatten()[: span.start + span.num_tokens]


class TorchAttention:
    """One batch; see `Attention`."""

    def __init__(self, store: TorchKVStore, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> None:
        device = store.memory.device
        positions = torch.tensor(batch.positions, device=device)
        self._store = store
        self._slots = torch.tensor(batch.slots, device=device)
        self._cosine, self._sine = cosine[positions].unsqueeze(1), sine[positions].unsqueeze(1)
        self._spans = [(span, store.slots(span)) for span in batch.spans]

    def attend(self, index: int, qkv: torch.Tensor, head_norms: torch.Tensor | None) -> torch.Tensor:
        """See `Attention`."""
        config, memory = self._store.config, self._store.memory[index]
        query_norm, key_norm = (None, None) if head_norms is None else head_norms.to(qkv.dtype).unbind()
        heads = qkv[: len(self._slots)].unflatten(-1, (-1, config.head_dim))
        queries, keys, values = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        memory[0].index_copy_(0, self._slots, self._turn(keys, key_norm))
        memory[1].index_copy_(0, self._slots, values)
        queries = self._turn(queries, query_norm)
        found = [
            scaled_dot_product_attention(
                queries[span.first_row : span.first_row + span.num_tokens].transpose(0, 1).unsqueeze(0),
                *memory[:, slots].transpose(1, 2).unsqueeze(1).unbind(),
                attn_mask=_sees(span, config.windows[index], memory.device),
                enable_gqa=True,
            )
            .squeeze(0)
            .transpose(0, 1)
            for span, slots in self._spans
        ]
        attended = torch.cat(found).flatten(1)
        return pad(attended, (0, 0, 0, len(qkv) - len(attended)))

    def _turn(self, heads: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """Normalize heads if the model does, and turn each pair (i, i + dim/2) of their numbers by its angle."""
        if norm is not None:
            heads = rms_norm(heads, heads.shape[-1:], norm, self._store.config.rms_norm_eps)
        turned = heads * self._cosine + heads.roll(heads.shape[-1] // 2, dims=-1) * self._sine
        return turned.to(heads.dtype)


def _sees(span: Span, window: int | None, device: torch.device) -> torch.Tensor | None:
    """The mask [rows, keys] of the keys that each row sees; None if all see all."""
    end = span.start + span.num_tokens
    if span.num_tokens == 1 and window is None:
        return None
    distance = torch.arange(span.start, end, device=device).unsqueeze(1) - torch.arange(end, device=device)
    return (distance >= 0) & (distance < (window or end))
