"""What the engine hands back. Immutable, and free of tensors: it can be kept, sent and pickled.

~~~~
Which block of the KV cache belongs to whom: the protocol of the two prefix caches. Bookkeeping only, no tensors.

A block holds the KV of `block_size` consecutive tokens. A sequence acquires blocks when it is admitted: first those
that hold a prefix of its tokens already, which it shares and may only read, then fresh ones, which it alone writes.
Blocks become findable when they have been computed (`register`), never before. When a sequence releases its blocks
the findable ones stay where they are until their room is needed; the longest unused go first.

At any moment a block is in exactly one of three states, and `check()` derives it again:

    free      holds nothing that could be found
    cached    findable, held by nobody: will be taken when there is no free one
    held      in the table of at least one sequence, or on the way to such a block

The version of the weights is the root of every key, so what was computed with other weights cannot be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAllocation:
    """The blocks a sequence was given, and how many of its tokens are in them already."""

    block_ids: tuple[int, ...]
    cached_length: int


class CacheHit(NamedTuple):
    """What the prefix cache has of some tokens, and how many blocks of that nobody holds at the moment."""

    num_tokens: int
    num_idle_blocks: int


class BlockCounts(NamedTuple):
    """How many blocks are in each state."""

    free: int
    cached: int
    held: int


class CacheView(Protocol):
    """What `schedule()` may ask of a cache: questions that change nothing."""

    @property
    def num_available(self) -> int:
        """Blocks that could be acquired now: free ones and cached ones."""
        ...

    def lookup(self, tokens: Sequence[int]) -> CacheHit:
        """How much of a prefix is there, at most all but the last token."""
        ...

    def num_held(self, seq_id: int) -> int:
        """Blocks in the table of a sequence; 0 if it has none."""
        ...

    def num_reclaimed(self, seq_id: int) -> int:
        """Blocks that would become available if this sequence let go of its own."""
        ...


class KVCache(CacheView, Protocol):
    """A prefix cache."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        ...

    def acquire(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> CacheAllocation:
        """Give a sequence a table with room for `num_tokens`, beginning with what `lookup` finds."""
        ...

    def extend(self, seq_id: int, num_tokens: int) -> None:
        """Add fresh blocks to a table until it has room for `num_tokens`."""
        ...

    def register(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> None:
        """Make the blocks findable that the first `num_tokens` fill; their KV must have been computed."""
        ...

    def release(self, seq_id: int) -> None:
        """Take a sequence's table away."""
        ...

    def block_ids(self, seq_id: int) -> list[int]:
        """A sequence's table, in order; not to be changed."""
        ...

    def set_version(self, version: int) -> None:
        """From now on find and register under this version of the weights only."""
        ...

    def flush(self) -> None:
        """Forget everything that could be found; tables in use stay valid, and register nothing more."""
        ...

    def counts(self) -> BlockCounts:
        """How many blocks are in each state."""
        ...

    def check(self) -> None:
        """Derive every invariant again from the tables; raises AssertionError."""
        ...


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks so many tokens take."""
    return -(-num_tokens // block_size)


def hit_limit(num_tokens: int, block_size: int) -> int:
    """The longest prefix that may be found of so many tokens, in whole blocks.

    At least the last token is computed anew, for without it there are no logits.
    """
    return max(num_tokens - 1, 0) // block_size * block_size


class NoBlocksError(AssertionError):
    """More blocks were asked for than are available: the scheduler has made a mistake."""
