"""The KV cache: which block belongs to which sequence. Bookkeeping only, no tensors.

base.py     the protocol of both caches, and the three states of a block
paged.py    blocks found by the hash of all tokens up to their end
radix.py    blocks found in a tree of token sequences
"""

from __future__ import annotations

from mac_runner.nano.cache.base import (
    BlockCounts,
    CacheAllocation,
    CacheHit,
    KVCache,
    NoBlocksError,
    blocks_for,
    hit_limit,
)
from mac_runner.nano.cache.paged import PagedKVCache, compute_block_hash
from mac_runner.nano.cache.radix import RadixKVCache
from mac_runner.nano.config import EngineConfig

__all__ = [
    "BlockCounts",
    "CacheAllocation",
    "CacheHit",
    "KVCache",
    "NoBlocksError",
    "PagedKVCache",
    "RadixKVCache",
    "blocks_for",
    "compute_block_hash",
    "hit_limit",
    "make_cache",
]


def make_cache(config: EngineConfig, num_blocks: int) -> KVCache:
    """The prefix cache that a configuration asks for."""
    kind = PagedKVCache if config.cache_type == "paged" else RadixKVCache
    return kind(num_blocks, config.block_size)
