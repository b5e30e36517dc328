"""Attention over the KV cache: each sequence by itself, at its exact length.

The cache is one tensor, in which the keys (and the values) of a layer's head lie one behind the other, a slot for each
token: that is the order in which a head is read. Where a sequence's blocks are neighbours it is read in place,
otherwise it is gathered first.

The kernel's results for a query depend, in their last bits, on how many queries and keys it is called with. So a prompt
is always computed in blocks of EXACT_MULTIPLE queries that begin at multiples of it, each with the keys up to its own
end, however the prompt was cut into steps; and a generated token is a block of one. Heads that share keys are laid side
by side as further queries, which spares copying the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention as _attention

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.config import EXACT_MULTIPLE
from mac_runner.nano.forward_batch import Span


class KVStore:
    """The memory behind the blocks: in every layer a slot for every token, and one more where idle rows may write."""

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.idle_slot = num_blocks * block_size
        shape = (2 * config.num_layers, config.num_kv_heads, self.idle_slot + 1, config.head_dim)
        # Keys and values of the layers in turn. Zeros, for a product with what memory held before could be NaN.
        self.heads = torch.zeros(shape, dtype=dtype, device=device)

    @staticmethod
    def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
        """What one token takes in all layers."""
        return config.num_layers * 2 * config.num_kv_heads * config.head_dim * int(dtype.itemsize)

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the keys and values [tokens, heads, dim] of new tokens."""
        self.heads[2 * layer].index_copy_(1, slots, keys.transpose(0, 1))
        self.heads[2 * layer + 1].index_copy_(1, slots, values.transpose(0, 1))


class _Block(NamedTuple):
    """Queries that are computed by one call: rows of the batch, the keys they see, and which of them each may not."""

    first_row: int
    num_rows: int
    keys: slice
    mask: torch.Tensor | None


class _Reading(NamedTuple):
    """One sequence: its keys and values, in place in all layers or their slots to gather, and its blocks of queries."""

    views: tuple[torch.Tensor, ...]
    slots: torch.Tensor | None
    blocks: tuple[_Block, ...]


class AttentionPlan:
    """What of the cache a batch reads, found out once for all layers that look equally far back."""

    def __init__(self, spans: Sequence[Span], store: KVStore, config: ModelConfig, window: int | None) -> None:
        self._store = store
        self._window = window
        self._kv_heads = config.num_kv_heads
        self._group = config.num_heads // config.num_kv_heads
        self._longest = max(span.start + span.num_tokens for span in spans)
        self._masks = dict[int, torch.Tensor]()
        self._readings = [self._reading(span) for span in spans]

    def attend(self, queries: torch.Tensor, layer: int) -> torch.Tensor:
        """Attend from `queries` [tokens, heads, dim] to one layer's keys and values."""
        single = queries.unflatten(1, (self._kv_heads, self._group)).unsqueeze(1).unbind()
        found = list[torch.Tensor]()
        for views, slots, blocks in self._readings:
            if slots is None:
                keys, values = views[2 * layer], views[2 * layer + 1]
            else:
                heads = self._store.heads[2 * layer : 2 * layer + 2]
                keys, values = heads.index_select(2, slots).unsqueeze(1).unbind()
            for first_row, num_rows, seen, mask in blocks:
                if mask is None and seen == slice(0, keys.shape[2]):
                    # By far the most frequent: a generated token, which looks at all there is.
                    found.append(_attention(single[first_row], keys, values).flatten(1, 2))
                    continue
                asking = self._fold(queries[first_row : first_row + num_rows])
                result = _attention(asking, keys[:, :, seen], values[:, :, seen], attn_mask=mask)
                found.append(self._unfold(result, num_rows))
        return torch.cat(found)

    def _fold(self, queries: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, dim] to [1, KV heads, group x tokens, dim]."""
        grouped = queries.unflatten(1, (self._kv_heads, self._group)).permute(1, 2, 0, 3)
        return grouped.flatten(1, 2).unsqueeze(0)

    def _unfold(self, result: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Back to [tokens, heads, dim]."""
        return result.squeeze(0).unflatten(1, (self._group, num_rows)).permute(2, 0, 1, 3).flatten(1, 2)

    def _reading(self, span: Span) -> _Reading:
        end, blocks = span.start + span.num_tokens, tuple(self._blocks(span))
        first, size = span.block_ids[0], self._store.block_size
        if span.block_ids == tuple(range(first, first + len(span.block_ids))):
            place = self._store.heads[:, :, first * size : first * size + end]
            return _Reading(place.unsqueeze(1).unbind(), None, blocks)
        device = self._store.heads.device
        starts = torch.tensor(span.block_ids, device=device).unsqueeze(1) * size
        return _Reading((), (starts + torch.arange(size, device=device)).flatten()[:end], blocks)

    def _blocks(self, span: Span) -> Iterator[_Block]:
        start, end = span.start, span.start + span.num_tokens
        while start < end:
            stop = min((start // EXACT_MULTIPLE + 1) * EXACT_MULTIPLE, end)
            first_key = 0 if self._window is None else max(start - self._window + 1, 0)
            mask = self._mask(stop - start, stop - first_key) if stop - start > 1 else None
            yield _Block(span.first_row + start - span.start, stop - start, slice(first_key, stop), mask)
            start = stop

    def _mask(self, num_rows: int, num_keys: int) -> torch.Tensor:
        """Minus infinity where a query may not look: ahead of itself, and out of its window.

        The last query's own key is the last one. So of all masks for so many queries, the shorter ones are the ends of
        the longest.
        """
        longest = self._masks.get(num_rows)
        if longest is None:
            own = torch.arange(self._longest - num_rows, self._longest).unsqueeze(1)
            distance = own - torch.arange(self._longest)
            hidden = (distance < 0) | (distance >= (self._window or self._longest))
            longest = torch.zeros(num_rows, self._longest).masked_fill_(hidden, float("-inf"))
            longest = longest.repeat(self._group, 1).to(self._store.heads)
            self._masks[num_rows] = longest
        return longest[:, self._longest - num_keys :]
