"""A prefix cache that finds blocks by a hash of all tokens up to their end.

Each full block's key is the hash of its own tokens and its predecessor's key. The first predecessor is the version of
the weights. A hit counts only when the tokens are equal, too. Equal blocks that were computed side by side are not
merged: the first one registered is found, the other stays with its sequence. So a table changes only at its end.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

from mac_runner.nano.cache.base import CacheAllocation, CacheHit, KVCache, NoBlocksError, Table, blocks_for, hit_limit

_KEY_BYTES = 16
HashFunction = Callable[[Sequence[int], int], int]


def compute_block_hash(token_ids: Sequence[int], prefix_hash: int = -1) -> int:
    """The key of a block: a hash of its tokens and, through `prefix_hash`, of all before; -1 is the beginning."""
    digest = blake2b(prefix_hash.to_bytes(_KEY_BYTES + 1, "little", signed=True), digest_size=_KEY_BYTES)
    digest.update(array("q", token_ids).tobytes())
    return int.from_bytes(digest.digest(), "little")


@dataclass(slots=True)
class _Block:
    """One block. `key` is None while it cannot be found."""

    num_holders: int = 0
    key: int | None = None
    tokens: tuple[int, ...] = ()


@dataclass(slots=True)
class _Table(Table):
    """One sequence's blocks; the first `num_keyed` have keys. `key` is None if it may register nothing."""

    num_keyed: int = 0
    key: int | None = None


class PagedKVCache(KVCache):
    """Blocks found by hash. Every operation is O(blocks concerned); finding a cached block again is O(1)."""

    def __init__(self, num_blocks: int, block_size: int, *, hash_block: HashFunction = compute_block_hash) -> None:
        super().__init__(num_blocks, block_size)
        self._hash_block = hash_block
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._cached = OrderedDict[int, None]()  # The longest unused first.
        self._index: dict[int, int] = {}
        self._tables: dict[int, _Table] = {}
        self._root = 0
        self.set_version(0)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def lookup(self, tokens: Sequence[int]) -> CacheHit:
        return self._hit(self._find(tokens))

    def num_reclaimed(self, seq_id: int) -> int:
        return sum(self._blocks[block_id].num_holders == 1 for block_id in self.block_ids(seq_id))

    def acquire(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> CacheAllocation:
        found = self._find(tokens)
        hit = self._hit(found)
        self._require_room(seq_id, num_tokens, hit)
        for block_id in found:
            self._cached.pop(block_id, None)
            self._blocks[block_id].num_holders += 1
        key = self._blocks[found[-1]].key if found else self._root
        self._tables[seq_id] = _Table(block_ids=found, num_keyed=len(found), key=key)
        self.extend(seq_id, num_tokens)
        return CacheAllocation(block_ids=tuple(self.block_ids(seq_id)), cached_length=hit.num_tokens)

    def extend(self, seq_id: int, num_tokens: int) -> None:
        table = self._tables[seq_id].block_ids
        while len(table) < blocks_for(num_tokens, self.block_size):
            table.append(self._take())

    def register(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> None:
        table = self._tables[seq_id]
        while table.key is not None and (table.num_keyed + 1) * self.block_size <= num_tokens:
            start = table.num_keyed * self.block_size
            block_id = table.block_ids[table.num_keyed]
            table.key = self._register_block(block_id, tuple(tokens[start : start + self.block_size]), table.key)
            table.num_keyed += 1

    def release(self, seq_id: int) -> None:
        table = self._tables.pop(seq_id).block_ids
        for block_id in table:
            self._blocks[block_id].num_holders -= 1
        idle = [block_id for block_id in table if self._blocks[block_id].num_holders == 0]
        self._free.extend(block_id for block_id in idle if self._blocks[block_id].key is None)
        # In reverse, so that the end of a prefix is taken first.
        self._cached.update((block_id, None) for block_id in reversed(idle) if self._blocks[block_id].key is not None)

    def set_version(self, version: int) -> None:
        self._root = compute_block_hash((version,))
        for table in self._tables.values():
            table.key = None

    def flush(self) -> None:
        self._free.extend(self._cached)
        self._cached.clear()
        for block_id in self._index.values():
            self._blocks[block_id].key = None
        self._index.clear()
        for table in self._tables.values():
            table.key = None

    def check(self) -> None:
        holders = [0] * self.num_blocks
        for block_id in chain.from_iterable(table.block_ids for table in self._tables.values()):
            holders[block_id] += 1
        assert [block.num_holders for block in self._blocks] == holders
        states = [*self._free, *self._cached, *(i for i, count in enumerate(holders) if count)]
        assert sorted(states) == list(range(self.num_blocks)), "a block is not in exactly one state"
        # A sequence writes behind its computed blocks; no other sequence has those.
        assert all(
            holders[block_id] == 1 for table in self._tables.values() for block_id in table.block_ids[table.num_keyed :]
        )
        keyed = {block.key: i for i, block in enumerate(self._blocks) if block.key is not None}
        assert keyed == self._index
        assert all(self._blocks[i].key is not None for i in self._cached)
        assert all(self._blocks[i].key is None for i in self._free)

    def _find(self, tokens: Sequence[int]) -> list[int]:
        """The blocks of the longest prefix in the cache."""
        found = list[int]()
        for block_id in self._chain(tokens[: hit_limit(len(tokens), self.block_size)]):
            if block_id is None:
                break
            found.append(block_id)
        return found

    def _hit(self, found: list[int]) -> CacheHit:
        idle = sum(block_id in self._cached for block_id in found)
        return CacheHit(len(found) * self.block_size, idle)

    def _chain(self, tokens: Sequence[int]) -> Iterator[int | None]:
        key = self._root
        for start in range(0, len(tokens), self.block_size):
            part = tuple(tokens[start : start + self.block_size])
            key = self._hash_block(part, key)
            block_id = self._index.get(key)
            yield block_id if block_id is not None and self._blocks[block_id].tokens == part else None

    def _register_block(self, block_id: int, tokens: tuple[int, ...], prefix_key: int) -> int | None:
        """The key of a block with these tokens; None if other tokens have the same key."""
        key = self._hash_block(tokens, prefix_key)
        known = self._index.get(key)
        if known is not None:
            return key if self._blocks[known].tokens == tokens else None
        self._index[key] = block_id
        self._blocks[block_id].key = key
        self._blocks[block_id].tokens = tokens
        return key

    def _take(self) -> int:
        """A block that one sequence alone may write."""
        if self._free:
            block_id = self._free.popleft()
        elif self._cached:
            block_id, _ = self._cached.popitem(last=False)
            key = self._blocks[block_id].key
            assert key is not None
            del self._index[key]
            self._blocks[block_id].key = None
        else:
            raise NoBlocksError("no block is left")
        self._blocks[block_id].num_holders = 1
        return block_id
