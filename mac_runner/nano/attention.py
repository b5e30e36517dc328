"""Attention over the KV cache: each sequence by itself, at its exact length.

The cache is one tensor of rows, a row being the keys and values of one token in one layer. Where a sequence's blocks
are neighbours its rows are read in place, otherwise they are gathered first; both give the kernel the same strides.

The kernel's results for a query depend, in their last bits, on how many queries and keys it is called with. So a
prompt is always computed in blocks of EXACT_MULTIPLE queries that begin at multiples of it, each with the keys up to
its own end, however the prompt was cut into steps; and a generated token is a block of one. Heads that share keys are
laid side by side as further queries, which spares copying the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.config import EXACT_MULTIPLE
from mac_runner.nano.forward_batch import Span


class KVStore:
    """The memory behind the blocks: for every layer a row for every token, and one more where idle rows may write."""

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.idle_slot = num_blocks * block_size
        shape = (config.num_layers, self.idle_slot + 1, 2, config.num_kv_heads, config.head_dim)
        # Zeros, for a product with what memory held before could be NaN.
        self.rows = torch.zeros(shape, dtype=dtype, device=device)

    @staticmethod
    def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
        """What one token takes in all layers."""
        return config.num_layers * 2 * config.num_kv_heads * config.head_dim * int(dtype.itemsize)

    def write(self, layer: int, slots: torch.Tensor, keys_and_values: torch.Tensor) -> None:
        """Store the rows of new tokens."""
        self.rows[layer].index_copy_(0, slots, keys_and_values)


class _Block(NamedTuple):
    """Queries that are computed by one call: rows of the batch, the keys they see, and which of them each may not."""

    first_row: int
    num_rows: int
    first_key: int
    num_keys: int
    mask: torch.Tensor | None


class _Reading(NamedTuple):
    """One sequence: where its rows are, and its blocks of queries."""

    place: slice | torch.Tensor
    blocks: tuple[_Block, ...]


class AttentionPlan:
    """What of the cache a batch reads, found out once for all layers that look equally far back."""

    def __init__(self, spans: Sequence[Span], store: KVStore, config: ModelConfig, window: int | None) -> None:
        self._group = config.num_heads // config.num_kv_heads
        self._masks: dict[tuple[int, int, int], torch.Tensor] = {}
        self._dtype, self._device = store.rows.dtype, store.rows.device
        self._readings = [_Reading(_place(span, store), tuple(self._blocks(span, window))) for span in spans]

    def attend(self, queries: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Attend from `queries` [tokens, heads, dim] to one layer's `rows`, into `out` of the queries' shape."""
        for place, blocks in self._readings:
            found = rows[place] if isinstance(place, slice) else rows.index_select(0, place)
            keys, values = found.permute(1, 2, 0, 3).unsqueeze(1).unbind()
            for block in blocks:
                seen = slice(block.first_key, block.first_key + block.num_keys)
                own = slice(block.first_row, block.first_row + block.num_rows)
                result = scaled_dot_product_attention(
                    self._fold(queries[own]), keys[:, :, seen], values[:, :, seen], attn_mask=block.mask
                )
                out[own] = self._unfold(result, block.num_rows)

    def _fold(self, queries: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, dim] to [1, KV heads, group x tokens, dim]."""
        tokens, heads, dim = queries.shape
        grouped = queries.view(tokens, heads // self._group, self._group, dim).permute(1, 2, 0, 3)
        return grouped.reshape(1, heads // self._group, self._group * tokens, dim)

    def _unfold(self, result: torch.Tensor, tokens: int) -> torch.Tensor:
        _, kv_heads, _, dim = result.shape
        grouped = result.view(kv_heads, self._group, tokens, dim).permute(2, 0, 1, 3)
        return grouped.reshape(tokens, kv_heads * self._group, dim)

    def _blocks(self, span: Span, window: int | None) -> Iterator[_Block]:
        start, end = span.start, span.start + span.num_tokens
        while start < end:
            next_start = min((start // EXACT_MULTIPLE + 1) * EXACT_MULTIPLE, end)
            first_key = 0 if window is None else max(start - window + 1, 0)
            num_rows = next_start - start
            mask = self._mask(num_rows, next_start - first_key, window)
            yield _Block(span.first_row + start - span.start, num_rows, first_key, next_start - first_key, mask)
            start = next_start

    def _mask(self, num_rows: int, num_keys: int, window: int | None) -> torch.Tensor | None:
        """Minus infinity where a query may not look: ahead of itself, and out of its window."""
        if num_rows == 1:
            return None
        known = self._masks.get((num_rows, num_keys, window or 0))
        if known is None:
            own = torch.arange(num_keys - num_rows, num_keys).unsqueeze(1)
            distance = own - torch.arange(num_keys)
            hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
            known = torch.zeros(num_rows, num_keys).masked_fill_(hidden, float("-inf"))
            known = known.repeat(self._group, 1).to(self._dtype).to(self._device)
            self._masks[num_rows, num_keys, window or 0] = known
        return known


def _place(span: Span, store: KVStore) -> slice | torch.Tensor:
    """A sequence's rows: a slice if its blocks are neighbours, their numbers if not."""
    first, size = span.block_ids[0], store.block_size
    end = span.start + span.num_tokens
    if span.block_ids == tuple(range(first, first + len(span.block_ids))):
        return slice(first * size, first * size + end)
    blocks = torch.tensor(span.block_ids, device=store.rows.device).unsqueeze(1) * size
    return (blocks + torch.arange(size, device=store.rows.device)).flatten()[:end]
