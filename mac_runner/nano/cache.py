"""The KV cache: which block belongs to which sequence. Bookkeeping only, no tensors.

A block holds the KV of `block_size` consecutive tokens. A sequence shares the blocks that already hold a prefix of its
tokens, and writes its own. A block is findable once it was computed (`register`), and keeps its contents after its
sequences until its room is needed. At any moment it is in exactly one of three states:

    free      holds nothing findable
    cached    findable, in no table: is taken when no block is free, the longest unused first
    held      in the table of at least one sequence, or on the way to such a block

The version of the weights is the root of every key, so what other weights computed cannot be found. Equal blocks that
were computed side by side are not merged, so a table changes only at its end.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from mac_runner.nano.config import EngineConfig

_KEY_BYTES = 16
HashFunction = Callable[[Sequence[int], int], int]
Key = tuple[int, ...]
"""The tokens of a block."""


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
class _Table:
    """One sequence's blocks, in order."""

    block_ids: list[int] = field(default_factory=list)


class KVCache(ABC):
    """A prefix cache. `schedule()` asks it questions, which change nothing; the other methods act."""

    _tables: Mapping[int, _Table]

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
        """The blocks that can be acquired now."""
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
        free, cached = len(self._free), self.num_cached
        return BlockCounts(free=free, cached=cached, held=self.num_blocks - free - cached)

    @abstractmethod
    def acquire(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> CacheAllocation:
        """Give a sequence a table with room for `num_tokens`, beginning with what `lookup` finds."""

    def extend(self, seq_id: int, num_tokens: int) -> None:
        """Add fresh blocks to a table until it has room for `num_tokens`."""
        table = self._tables[seq_id]
        while len(table.block_ids) < blocks_for(num_tokens, self.block_size):
            table.block_ids.append(self._take(table))

    @abstractmethod
    def _take(self, table: Any) -> int:
        """A block that the sequence of this table alone may write."""

    @abstractmethod
    def register(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> None:
        """Make the blocks findable that the first `num_tokens` fill; their KV must be computed."""

    @abstractmethod
    def release(self, seq_id: int) -> None: ...

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
    return -(-num_tokens // block_size)


def hit_limit(num_tokens: int, block_size: int) -> int:
    """The longest prefix, in whole blocks, that may be found for so many tokens.

    The last token is always computed, because the logits come from it.
    """
    return max(num_tokens - 1, 0) // block_size * block_size


class NoBlocksError(AssertionError):
    """More blocks were asked for than are available: a bug of the scheduler."""


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
class _PagedTable(_Table):
    """One sequence's blocks; the first `num_keyed` have keys. `key` is None if it may register nothing."""

    num_keyed: int = 0
    key: int | None = None


class PagedKVCache(KVCache):
    """Blocks found by hash. Every operation is O(blocks concerned); finding a cached block again is O(1).

    A block's key is the hash of its own tokens and its predecessor's key; the first predecessor is the version of the
    weights. A hit counts only when the tokens are equal, too.
    """

    def __init__(self, num_blocks: int, block_size: int, *, hash_block: HashFunction = compute_block_hash) -> None:
        super().__init__(num_blocks, block_size)
        self._hash_block = hash_block
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._cached = OrderedDict[int, None]()  # The longest unused first.
        self._index: dict[int, int] = {}
        self._tables: dict[int, _PagedTable] = {}
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
        self._tables[seq_id] = _PagedTable(block_ids=found, num_keyed=len(found), key=key)
        self.extend(seq_id, num_tokens)
        return CacheAllocation(block_ids=tuple(self.block_ids(seq_id)), cached_length=hit.num_tokens)

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
        found, key = list[int](), self._root
        for start in range(0, hit_limit(len(tokens), self.block_size), self.block_size):
            part = tuple(tokens[start : start + self.block_size])
            key = self._hash_block(part, key)
            block_id = self._index.get(key)
            if block_id is None or self._blocks[block_id].tokens != part:
                break
            found.append(block_id)
        return found

    def _hit(self, found: list[int]) -> CacheHit:
        idle = sum(block_id in self._cached for block_id in found)
        return CacheHit(len(found) * self.block_size, idle)

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

    def _take(self, table: _PagedTable) -> int:
        del table
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


@dataclass(slots=True, eq=False)
class _Node:
    """The blocks on the edge to this node: `keys[i]` are the tokens of `block_ids[i]`."""

    parent: _Node | None
    keys: list[Key] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    children: dict[Key, _Node] = field(default_factory=dict)
    num_locks: int = 0
    last_used: int = 0
    is_offered: bool = False

    @property
    def is_spare(self) -> bool:
        """Whether it is the next of its branch to be given up."""
        return self.parent is not None and not self.children and self.num_locks == 0


@dataclass(slots=True, kw_only=True)
class _RadixTable(_Table):
    """One sequence's blocks; the first `num_walked` lead to `node`, which is None if it may register nothing."""

    node: _Node | None
    locked: _Node
    num_walked: int
    own: set[int] = field(default_factory=set)
    """Blocks outside the tree: fresh ones, and duplicates."""


class RadixKVCache(KVCache):
    """Blocks found by walking a tree. Every operation is O(blocks concerned + log nodes).

    Each edge carries the tokens of one or more whole blocks, and is split where sequences part. Each version of the
    weights has its own root. A sequence locks the path to the blocks it uses. Unlocked blocks are given up leaf by
    leaf, the longest unused first, and each leaf from its end. With blocks of one token, which only torch's attention
    reads, prefixes are shared to the token.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._num_cached = 0
        self._tables: dict[int, _RadixTable] = {}
        self._roots: dict[int, _Node] = {}
        self._version = 0
        self._uses = 0
        self._spare: list[tuple[int, int, _Node]] = []  # A heap; each node is in it once at most.
        self._num_pushed = 0

    @property
    def num_cached(self) -> int:
        return self._num_cached

    def lookup(self, tokens: Sequence[int]) -> CacheHit:
        found = 0
        idle = 0
        for node, count in self._walk(self._wanted(tokens)):
            found += count
            idle += count if node.num_locks == 0 else 0
        return CacheHit(found * self.block_size, idle)

    def num_reclaimed(self, seq_id: int) -> int:
        table = self._tables[seq_id]
        return len(table.own) + sum(len(node.block_ids) for node in _path_up(table.locked) if node.num_locks == 1)

    def acquire(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> CacheAllocation:
        hit = self.lookup(tokens)
        num_found = hit.num_tokens // self.block_size
        self._require_room(seq_id, num_tokens, hit)
        node, found = self._descend(self._wanted(tokens)[:num_found])
        self._lock(node)
        table = _RadixTable(block_ids=list(found), node=node, locked=node, num_walked=num_found)
        self._tables[seq_id] = table
        self.extend(seq_id, num_tokens)
        return CacheAllocation(block_ids=tuple(table.block_ids), cached_length=hit.num_tokens)

    def register(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> None:
        table = self._tables[seq_id]
        first, last = table.num_walked, num_tokens // self.block_size
        if table.node is None or first >= last:
            return
        keys = self._keys(tokens, first, last)
        below, there = self._descend(keys, table.node)
        new = table.block_ids[first + len(there) : last]
        if new:
            # They count as unlocked until a sequence locks them.
            keys = keys[len(there) :]
            leaf = _Node(parent=below, keys=keys, block_ids=new, last_used=self._uses)
            below.children[keys[0]] = leaf
            below = leaf
            self._num_cached += len(new)
            table.own.difference_update(new)
        self._lock(below)
        self._unlock(table.locked)
        table.node = table.locked = below
        table.num_walked = last

    def release(self, seq_id: int) -> None:
        table = self._tables.pop(seq_id)
        self._unlock(table.locked)
        self._free.extend(block_id for block_id in table.block_ids if block_id in table.own)

    def set_version(self, version: int) -> None:
        self._version = version
        self._roots = {known: root for known, root in self._roots.items() if root.children}
        for table in self._tables.values():
            table.node = None

    def flush(self) -> None:
        for table in self._tables.values():
            table.node = None
        while self._num_cached:
            self._evict()
        # What is left is locked. It stays until its sequences release it, below roots that no lookup starts from.
        self._roots = {-1 - index: root for index, root in enumerate(self._roots.values()) if root.children}

    def check(self) -> None:
        locks = dict[_Node, int]()
        for table in self._tables.values():
            for node in _path_up(table.locked):
                locks[node] = locks.get(node, 0) + 1
        nodes = [node for root in self._roots.values() for node in _below(root)]
        assert all(node.num_locks == locks.get(node, 0) for node in nodes), "a lock is wrong"
        assert set(locks) <= {*nodes, *(table.locked for table in self._tables.values())}
        assert all(node.parent is None or node.block_ids for node in nodes), "an edge without blocks"
        assert all(child.keys[0] == key for node in nodes for key, child in node.children.items())
        cached = [block_id for node in nodes if not node.num_locks for block_id in node.block_ids]
        assert len(cached) == self._num_cached
        shared = [block_id for node in nodes if node.num_locks for block_id in node.block_ids]
        own = [block_id for table in self._tables.values() for block_id in table.own]
        states = [*self._free, *cached, *shared, *own]
        assert sorted(states) == list(range(self.num_blocks)), "a block is not in exactly one state"
        held = {block_id for table in self._tables.values() for block_id in table.block_ids}
        assert held <= {*shared, *own}, "a table points to a block it does not hold"

    def _keys(self, tokens: Sequence[int], first: int, last: int) -> list[Key]:
        size = self.block_size
        return [tuple(tokens[index * size : (index + 1) * size]) for index in range(first, last)]

    def _wanted(self, tokens: Sequence[int]) -> list[Key]:
        return self._keys(tokens, 0, hit_limit(len(tokens), self.block_size) // self.block_size)

    def _walk(self, keys: list[Key], start: _Node | None = None) -> Iterator[tuple[_Node, int]]:
        """The nodes on the path of these keys, each with how many of its blocks are on it."""
        node = start or self._roots.get(self._version)
        done = 0
        while node is not None and done < len(keys) and (child := node.children.get(keys[done])) is not None:
            count = 0
            while count < len(child.keys) and done < len(keys) and child.keys[count] == keys[done]:
                count, done = count + 1, done + 1
            yield child, count
            node = child if count == len(child.keys) else None

    def _descend(self, keys: list[Key], start: _Node | None = None) -> tuple[_Node, list[int]]:
        """Follow these keys as far as they lead, and split the last edge there; the node and the blocks passed."""
        self._uses += 1
        node = start or self._roots.setdefault(self._version, _Node(parent=None))
        passed = list[int]()
        for child, count in list(self._walk(keys, node)):
            node = self._split(child, count) if count < len(child.keys) else child
            node.last_used = self._uses
            passed += node.block_ids
        return node, passed

    def _split(self, node: _Node, count: int) -> _Node:
        """Split an edge after `count` blocks; the new node is the upper one, so a lock of the lower locks both."""
        assert node.parent is not None
        upper = _Node(
            parent=node.parent,
            keys=node.keys[:count],
            block_ids=node.block_ids[:count],
            num_locks=node.num_locks,
            last_used=node.last_used,
        )
        node.parent.children[upper.keys[0]] = upper
        node.keys, node.block_ids, node.parent = node.keys[count:], node.block_ids[count:], upper
        upper.children[node.keys[0]] = node
        return upper

    def _lock(self, node: _Node) -> None:
        for each in _path_up(node):
            each.num_locks += 1
            if each.num_locks == 1:
                self._num_cached -= len(each.block_ids)

    def _unlock(self, node: _Node) -> None:
        for each in _path_up(node):
            each.num_locks -= 1
            if each.num_locks == 0:
                self._num_cached += len(each.block_ids)
                self._offer(each)

    def _offer(self, node: _Node) -> None:
        if node.is_spare and not node.is_offered:
            node.is_offered = True
            self._num_pushed += 1
            heapq.heappush(self._spare, (node.last_used, self._num_pushed, node))

    def _take(self, table: _RadixTable) -> int:
        if not self._free:
            self._evict()
        block_id = self._free.popleft()
        table.own.add(block_id)
        return block_id

    def _evict(self) -> None:
        """Free the last block of the longest unused leaf."""
        node = self._longest_unused()
        key = node.keys.pop()
        self._free.append(node.block_ids.pop())
        self._num_cached -= 1
        if node.keys:
            self._offer(node)
        elif node.parent is not None:
            del node.parent.children[key]
            self._offer(node.parent)

    def _longest_unused(self) -> _Node:
        """Take the longest unused spare leaf from the heap."""
        while self._spare:
            last_used, _, node = heapq.heappop(self._spare)
            node.is_offered = False
            if node.is_spare and node.last_used == last_used:
                return node
            # It was used again meanwhile, so its place is further back.
            self._offer(node)
        raise NoBlocksError("no block is left")


def _path_up(node: _Node) -> Iterator[_Node]:
    current: _Node | None = node
    while current is not None:
        yield current
        current = current.parent


def _below(node: _Node) -> Iterator[_Node]:
    waiting = [node]
    while waiting:
        waiting.extend((current := waiting.pop()).children.values())
        yield current


def make_cache(config: EngineConfig, num_blocks: int) -> KVCache:
    kind = PagedKVCache if config.cache_type == "paged" else RadixKVCache
    return kind(num_blocks, config.block_size)
