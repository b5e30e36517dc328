"""Attention over the KV cache: what the model asks of it, and which of the two implementations answers.

On a CPU kernels of our own are compiled (`compiled_attention`): they read blocks where they lie, for all sequences in
one pass, and give a token the same bits whoever is computed beside it. Elsewhere torch computes (`torch_attention`),
sequence by sequence.
"""

from __future__ import annotations

from typing import Protocol

import torch

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.forward_batch import ForwardBatch


class Attention(Protocol):
    """One batch's reading and writing of the cache, prepared once for all layers."""

    def attend(self, index: int, qkv: torch.Tensor, head_norms: torch.Tensor | None) -> torch.Tensor:
        """What the rows of layer `index` attend to: [rows, heads x dim].

        `qkv` is [rows, (heads + 2 x KV heads) x dim], not yet rotated. Its keys and values go into the cache.
        `head_norms`, if the model has them, are weights [2, dim] for queries and keys, in float32. Rows beyond the
        batch's belong to nobody and attend to nothing.
        """
        ...


class KVStore(Protocol):
    """The memory behind the blocks: in every layer a slot for every token."""

    def attention(self, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> Attention:
        """Prepare for a batch. The rotations are [positions, dim], in float32; the sine carries the sign."""
        ...


def make_kv_store(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device, *, compiled: bool
) -> KVStore:
    """Memory for so many blocks, on this device. Raises ConfigError for what the kernels cannot be compiled for."""
    if compiled:
        from mac_runner.nano.compiled_attention import CompiledKVStore

        return CompiledKVStore(config, num_blocks, block_size, dtype)
    from mac_runner.nano.torch_attention import TorchKVStore

    return TorchKVStore(config, num_blocks, block_size, dtype, device)


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """What one token's keys and values take in all layers."""
    return config.num_layers * 2 * config.num_kv_heads * config.head_dim * int(dtype.itemsize)
