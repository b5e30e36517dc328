"""Attention by torch alone, for any device: each sequence by itself, its keys and values gathered from their slots."""

from __future__ import annotations

import torch
from torch.nn.functional import pad, rms_norm, scaled_dot_product_attention

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.forward_batch import ForwardBatch, Span


class TorchKVStore:
    """Keys and values as [layer, 2, slot, KV head, dim]."""

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.block_size = block_size
        shape = (config.num_layers, 2, num_blocks * block_size, config.num_kv_heads, config.head_dim)
        # Zeros, for a product with what memory held before could be NaN.
        self.memory = torch.zeros(shape, dtype=dtype, device=device)

    def attention(self, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> TorchAttention:
        """Prepare for a batch."""
        return TorchAttention(self, batch, cosine, sine)

    def slots(self, span: Span) -> torch.Tensor:
        """Where the keys of a sequence lie that its last row sees."""
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
        """Normalize heads, if they are, and turn each pair (i, i + dim/2) of their numbers by its angle."""
        if norm is not None:
            heads = rms_norm(heads, heads.shape[-1:], norm, self._store.config.rms_norm_eps)
        turned = heads * self._cosine + heads.roll(heads.shape[-1] // 2, dims=-1) * self._sine
        return turned.to(heads.dtype)


def _sees(span: Span, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Which keys each row may look at: [rows, keys]; None if all may look at all."""
    end = span.start + span.num_tokens
    if span.num_tokens == 1 and window is None:
        return None
    distance = torch.arange(span.start, end, device=device).unsqueeze(1) - torch.arange(end, device=device)
    return (distance >= 0) & (distance < (window or end))
