"""A prefix cache that finds blocks in a tree of token sequences.

Each edge of the tree carries the tokens of one or more whole blocks. Sequences that begin alike share the path from
the root, and an edge is split where they part. Each version of the weights has its own root. A sequence locks the
path to the blocks it uses. Unlocked blocks are given up leaf by leaf, the longest unused first, and each leaf from its
end. Prefixes are shared in whole blocks. With blocks of one token, which only torch's attention reads, they are
shared to the token.

As in the paged cache, equal blocks computed side by side are not merged: one is in the tree, the other stays with its
sequence.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mac_runner.nano.cache.base import CacheAllocation, CacheHit, KVCache, NoBlocksError, Table, blocks_for, hit_limit

Key = tuple[int, ...]


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
class _Table(Table):
    """One sequence's blocks; the first `num_walked` lead to `node`, which is None if it may register nothing."""

    node: _Node | None
    locked: _Node
    num_walked: int
    own: set[int] = field(default_factory=set)
    """Blocks outside the tree: fresh ones, and duplicates."""


class RadixKVCache(KVCache):
    """Blocks found by walking a tree. Every operation is O(blocks concerned + log nodes)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._num_cached = 0
        self._tables: dict[int, _Table] = {}
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
        table = _Table(block_ids=list(found), node=node, locked=node, num_walked=num_found)
        self._tables[seq_id] = table
        self.extend(seq_id, num_tokens)
        return CacheAllocation(block_ids=tuple(table.block_ids), cached_length=hit.num_tokens)

    def extend(self, seq_id: int, num_tokens: int) -> None:
        table = self._tables[seq_id]
        while len(table.block_ids) < blocks_for(num_tokens, self.block_size):
            block_id = self._take()
            table.block_ids.append(block_id)
            table.own.add(block_id)

    def register(self, seq_id: int, tokens: Sequence[int], num_tokens: int) -> None:
        table = self._tables[seq_id]
        first, last = table.num_walked, num_tokens // self.block_size
        if table.node is None or first >= last:
            return
        keys = self._keys(tokens, first, last)
        below, there = self._descend(keys, table.node)
        new = table.block_ids[first + len(there) : last]
        if new:
            below = self._append(below, keys[len(there) :], new)
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

    def _append(self, parent: _Node, keys: list[Key], block_ids: list[int]) -> _Node:
        """Add blocks below a node; they count as unlocked until a sequence locks them."""
        node = _Node(parent=parent, keys=keys, block_ids=block_ids, last_used=self._uses)
        parent.children[keys[0]] = node
        self._num_cached += len(block_ids)
        return node

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

    def _take(self) -> int:
        """A block that one sequence alone may write."""
        if not self._free:
            self._evict()
        return self._free.popleft()

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
    """The node and all above it."""
    current: _Node | None = node
    while current is not None:
        yield current
        current = current.parent


def _below(node: _Node) -> Iterator[_Node]:
    """The node and all below it."""
    waiting = [node]
    while waiting:
        waiting.extend((current := waiting.pop()).children.values())
        yield current
