"""What the two prefix caches have in common.

A block holds the KV of `block_size` consecutive tokens. A sequence acquires blocks when it is admitted. First come
those that already hold a prefix of its tokens, which it shares and only reads. Then come fresh ones, which it alone
writes. Blocks become findable when they have been computed (`register`), never before. When a sequence releases its
blocks, the findable ones keep their contents until their room is needed; the longest unused go first.

At any moment a block is in exactly one of three states, and `check()` derives them again:

    free      holds nothing findable
    cached    findable, in no table: is taken when no block is free
    held      in the table of at least one sequence, or on the way to such a block

The version of the weights is the root of every key, so what other weights computed cannot be found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAllocation:
    """The blocks of a sequence, and the number of its tokens whose KV they hold already."""

    block_ids: tuple[int, ...]
    cached_length: int


class CacheHit(NamedTuple):
    """How many tokens of a prefix the cache has, and how many of their blocks no sequence holds."""

    num_tokens: int
    num_idle_blocks: int


class BlockCounts(NamedTuple):
    """The number of blocks in each state."""

    free: int
    cached: int
    held: int


@dataclass(slots=True)
class Table:
    """One sequence's blocks, in order."""

    block_ids: list[int] = field(default_factory=list)


class KVCache(ABC):
    """A prefix cache. `schedule()` asks it questions, which change nothing; the other methods act."""

    _tables: Mapping[int, Table]

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(num_blocks))

    @property
    @abstractmethod
    def num_cached(self) -> int:
        """The blocks that are findable and in no table."""

    @property
    def num_available(self) -> int:
        """The blocks that can be acquired now: free and cached ones."""
        return len(self._free) + self.num_cached

    @abstractmethod
    def lookup(self, tokens: Sequence[int]) -> CacheHit:
        """The longest prefix in the cache, at most all but the last token."""

    def num_held(self, seq_id: int) -> int:
        """The number of blocks in a sequence's table; 0 if it has none."""
        return len(self.block_ids(seq_id)) if seq_id in self._tables else 0

    @abstractmethod
    def num_reclaimed(self, seq_id: int) -> int:
        """The number of blocks that would become available if this sequence released its own."""

    def block_ids(self, seq_id: int) -> list[int]:
        """A sequence's table, in order; not to be changed."""
        return self._tables[seq_id].block_ids

    def counts(self) -> BlockCounts:
        """The number of blocks in each state."""
        free, cached = len(self._free), self.num_cached
        return BlockCounts(free=free, cached=cached, held=self.num_blocks - free - cached)

    @abstractmethod
    def acquire(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> CacheAllocation:
        """Give a sequence a table with room for `num_tokens`, beginning with what `lookup` finds."""

    @abstractmethod
    def extend(self, seq_id: int, num_tokens: int) -> None:
        """Add fresh blocks to a table until it has room for `num_tokens`."""

    @abstractmethod
    def register(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> None:
        """Make the blocks findable that the first `num_tokens` fill; their KV must be computed."""

    @abstractmethod
    def release(self, seq_id: int) -> None:
        """Remove a sequence's table."""

    @abstractmethod
    def set_version(self, version: int) -> None:
        """Find and register only under this version of the weights from now on."""

    @abstractmethod
    def flush(self) -> None:
        """Forget everything findable; tables in use stay valid, and register nothing more."""

    @abstractmethod
    def check(self) -> None:
        """Derive every invariant again from the tables. Raises AssertionError."""

    def _require_room(self, seq_id: int, num_tokens: int, hit: CacheHit) -> None:
        """Raise NoBlocksError unless a sequence without a table can acquire blocks for so many tokens."""
        assert seq_id not in self._tables, f"sequence {seq_id} has a table already"
        fresh = blocks_for(num_tokens, self.block_size) - hit.num_tokens // self.block_size
        if fresh + hit.num_idle_blocks > self.num_available:
            raise NoBlocksError(f"sequence {seq_id} asks for {num_tokens} tokens, {self.num_available} blocks are left")


def blocks_for(num_tokens: int, block_size: int) -> int:
    """The number of blocks for so many tokens."""
    return -(-num_tokens // block_size)


def hit_limit(num_tokens: int, block_size: int) -> int:
    """The longest prefix, in whole blocks, that may be found for so many tokens.

    The last token is always computed, because the logits come from it.
    """
    return max(num_tokens - 1, 0) // block_size * block_size


class NoBlocksError(AssertionError):
    """More blocks were asked for than are available: a bug of the scheduler."""
