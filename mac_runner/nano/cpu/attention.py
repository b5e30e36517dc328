"""Attention by kernels compiled for this CPU: one pass over the cache, in place, for all sequences.

Keys lie in tiles of 16 tokens, transposed: [dim, 16]. So a vector holds one number of 16 keys, and a query's products
with all of them take one pass. Values lie in tiles of [16, dim]. Both products are panels (see `vectors`), and a row of
a panel is one head of one token. So a token's result has the same bits whatever is computed beside it, in any thread,
and however its prompt was cut into steps.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

import numba
import numpy as np
import torch
from numba import prange

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.attention import ForwardBatch, Piece, make_batch
from mac_runner.nano.cpu.vectors import (
    LANES,
    Floats,
    Ints,
    add,
    compiled,
    exp_from,
    flat,
    get,
    inverse_root_mean_square,
    load,
    make_panel,
    max_of,
    maximum,
    put,
    rows_at_once,
    store,
    sum_of,
    zeros,
)
from mac_runner.nano.errors import ConfigError

TILE = LANES
UNIT_ROWS = 32
"""Rows that share one read of the cache; each head of a token is a row."""
TOGETHER_FROM = 2_000_000
"""From so many multiplications on other threads pay off; to wake them takes some ten microseconds."""
_NO_NORMS = np.empty(0, dtype=np.float32)
_one_at_a_time = Lock()
"""Not all of numba's threading layers allow two callers at once."""


class Heads(NamedTuple):
    """The numbers of query heads and of key and value heads, and the size of each."""

    query: int
    kv: int
    dim: int


class Rows(NamedTuple):
    """The rows of a step: their projections, their positions and their slots in the cache; and how to change them.

    `qkv` is [rows, heads + 2 x KV heads, dim], not yet rotated. `norms` [2, dim] are weights for queries and keys;
    empty, nothing is normalized. The rotations are of all positions.
    """

    qkv: Floats
    positions: Ints
    slots: Ints
    norms: Floats
    eps: float
    cosine: Floats
    sine: Floats


class Work(NamedTuple):
    """The work of one attention.

    A unit [units, 4] is a few tokens of one sequence: their first row, their number, the first one's position and the
    start of the sequence's table in `tiles`. `window` is the number of keys that a token sees, 0 for all.
    """

    units: Ints
    tiles: Ints
    window: int


# Two sums each, the even numbers' and the odd ones': a head has an even number of them.
_score_panel = make_panel(1, 2)
_mix_narrow, _mix_wide = make_panel(1, 1), make_panel(4, 1)


@compiled()
def store_share(
    rows: Rows, heads: Heads, queries: Floats, keys: Floats, values: Floats, worker: int, num_workers: int
) -> None:
    """Normalize, rotate and store one of `num_workers` parts of a step's rows.

    Queries go to [KV heads, rows, heads that share one, dim], divided by the root of `dim`; keys and values into the
    tiles of their slots.
    """
    qkv, norms = rows.qkv, rows.norms
    num_rows, group, size = len(rows.slots), heads.query // heads.kv, len(keys) // heads.kv
    scale = np.float32(1.0 / np.sqrt(heads.dim))
    head, turned = np.empty(heads.dim, np.float32), np.empty(heads.dim, np.float32)
    for row in range(num_rows * worker // num_workers, num_rows * (worker + 1) // num_workers):
        tile, lane = rows.slots[row] // TILE * TILE * heads.dim, rows.slots[row] % TILE
        start = row * (heads.query + 2 * heads.kv) * heads.dim
        for index in range(heads.query + heads.kv):
            is_query = index < heads.query
            for i in range(heads.dim):
                head[i] = get(qkv, start + index * heads.dim + i)
            if len(norms) > 0:
                _normalize(head, turned, norms, 0 if is_query else heads.dim, rows.eps)
            _rotate(head, turned, rows.cosine, rows.sine, rows.positions[row] * heads.dim)
            if is_query:
                place = ((index // group * num_rows + row) * group + index % group) * heads.dim
                for i in range(heads.dim):
                    queries[place + i] = turned[i] * scale
            else:
                place = (index - heads.query) * size + tile + lane
                for i in range(heads.dim):
                    put(keys, place + i * TILE, turned[i])
        start += (heads.query + heads.kv) * heads.dim
        for index in range(heads.kv):
            place = index * size + tile + lane * heads.dim
            for i in range(heads.dim):
                values[place + i] = qkv[start + index * heads.dim + i]


@compiled()
def _normalize(head: Floats, squares: Floats, weights: Floats, first: int, eps: float) -> None:
    """Divide a head by the root of its mean square, and multiply it by its weights."""
    factor = inverse_root_mean_square(head, squares, len(head), eps)
    for i in range(len(head)):
        head[i] = head[i] * factor * weights[first + i]


@compiled()
def _rotate(head: Floats, turned: Floats, cosine: Floats, sine: Floats, angle: int) -> None:
    """Turn each pair (i, i + dim/2) of a head's numbers by its angle; the sine carries the sign."""
    half = len(head) // 2
    for i in range(half):
        j = i + half
        turned[i] = head[i] * cosine[angle + i] + head[j] * sine[angle + i]
        turned[j] = head[j] * cosine[angle + j] + head[i] * sine[angle + j]


@compiled()
def attend_share(
    queries: Floats, keys: Floats, values: Floats, work: Work, heads: Heads, out: Floats, worker: int, num_workers: int
) -> None:
    """Compute every `num_workers`-th piece of work, from the `worker`-th on; a piece is a unit and a KV head.

    `queries`, `keys` and `values` are as `store_share` leaves them; `out` is [rows, heads, dim].
    """
    group, size = heads.query // heads.kv, len(keys) // heads.kv
    num_rows = len(queries) // (heads.query * heads.dim)
    most, widest = 0, 0
    for unit in range(len(work.units)):
        most = max(most, work.units[unit, 1] * group)
        widest = max(widest, work.units[unit, 2] + work.units[unit, 1] + TILE)
    scores, mixed = np.empty(most * widest, np.float32), np.empty(most * heads.dim, np.float32)
    totals = np.empty(most, np.float32)
    for piece in range(worker, len(work.units) * heads.kv, num_workers):
        unit, kv_head = piece // heads.kv, piece % heads.kv
        row, num_tokens, position, table = work.units[unit]
        # Tiles that no token here sees are left out; in the others, keys before the window weigh nothing.
        skipped = max(position + 1 - work.window, 0) // TILE if work.window > 0 else 0
        num_tiles = (position + num_tokens + TILE - 1) // TILE - skipped
        tiles = work.tiles[table + skipped : table + skipped + num_tiles]
        num, seen, width = num_tokens * group, position + 1 - skipped * TILE, num_tiles * TILE
        query = (kv_head * num_rows + row) * group * heads.dim
        _score(queries, query, num, keys, kv_head * size, tiles, heads.dim, scores)
        for i in range(num):
            end = seen + i // group
            first = max(end - work.window, 0) if work.window > 0 else 0
            totals[i] = _weigh(scores, i * width, width, first, end)
        _mix(scores, num, group, seen, values, kv_head * size, tiles, heads.dim, mixed)
        for i in range(num):
            share = np.float32(1.0) / totals[i]
            place = ((row + i // group) * heads.query + kv_head * group + i % group) * heads.dim
            for k in range(heads.dim):
                put(out, place + k, mixed[i * heads.dim + k] * share)


@compiled(parallel=True)
def compute_together(
    rows: Rows, heads: Heads, queries: Floats, keys: Floats, values: Floats, work: Work, out: Floats, num_workers: int
) -> None:
    """Store all rows, then compute all pieces of work, divided among threads."""
    for worker in prange(num_workers):
        store_share(rows, heads, queries, keys, values, worker, num_workers)
    for worker in prange(num_workers):
        attend_share(queries, keys, values, work, heads, out, worker, num_workers)


@compiled()
def _score(
    queries: Floats, query: int, num: int, keys: Floats, begin: int, tiles: Ints, dim: int, scores: Floats
) -> None:
    """The products of `num` queries with all keys of some tiles: [num, tiles x 16]."""
    width = len(tiles) * TILE
    scores[: num * width] = 0.0
    for tile in range(len(tiles)):
        key = begin + tiles[tile] * dim * TILE
        row = 0
        while row < num:
            rows, place = rows_at_once(num - row), row * width + tile * TILE
            _score_panel(rows, queries, query + row * dim, dim, keys, key, TILE, dim, scores, place, width)
            row += rows


@compiled()
def _weigh(scores: Floats, start: int, width: int, first: int, end: int) -> np.float32:
    """Turn one row's scores into weights, 0 for keys before `first` and from `end` on; their sum."""
    scores[start : start + first] = -np.inf
    scores[start + end : start + width] = -np.inf
    largest = load(scores, start)
    for place in range(start + TILE, start + width, TILE):
        largest = maximum(load(scores, place), largest)
    origin, total = max_of(largest), zeros()
    for place in range(start, start + width, TILE):
        weights = exp_from(load(scores, place), origin)
        total = add(total, weights)
        store(scores, place, weights)
    return sum_of(total)


@compiled()
def _mix(
    weights: Floats, num: int, group: int, seen: int, values: Floats, begin: int, tiles: Ints, dim: int, mixed: Floats
) -> None:
    """The sums of values by weight: [num, dim]. The first token sees `seen` keys, each next one more."""
    width = len(tiles) * TILE
    mixed[: num * dim] = 0.0
    for tile in range(len(tiles)):
        value = begin + tiles[tile] * dim * TILE
        row = 0
        while row < num:
            rows = rows_at_once(num - row)
            # Values that a row may not see are not read: the memory there may hold NaN.
            common = _within(seen + row // group - tile * TILE)
            _mix_rows(weights, row * width + tile * TILE, width, rows, values, value, common, dim, mixed, row * dim)
            for other in range(row, row + rows):
                more = _within(seen + other // group - tile * TILE) - common
                if more > 0:
                    start, further = other * width + tile * TILE + common, value + common * dim
                    _mix_rows(weights, start, width, 1, values, further, more, dim, mixed, other * dim)
            row += rows


@compiled()
def _within(count: int) -> int:
    """The number of a tile's keys among the first `count`."""
    return min(max(count, 0), TILE)


@compiled()
def _mix_rows(
    weights: Floats, x: int, width: int, num: int, values: Floats, y: int, count: int, dim: int, mixed: Floats, out: int
) -> None:
    """Add `count` values by weight to `num` rows, as many as a panel takes."""
    column = 0
    while column < dim:
        if column + 4 * LANES <= dim:
            _mix_wide(num, weights, x, width, values, y + column, dim, count, mixed, out + column, dim)
            column += 4 * LANES
        else:
            _mix_narrow(num, weights, x, width, values, y + column, dim, count, mixed, out + column, dim)
            column += LANES


class CompiledKVStore:
    """Keys and values in the tiles that the kernels read. Memory is taken when it is first written."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        if block_size % TILE:
            raise ConfigError(f"EngineConfig.block_size = {block_size}: on a CPU it is a multiple of {TILE}")
        if config.head_dim % TILE:
            raise ConfigError(
                f"the model's heads have {config.head_dim} numbers: on a CPU that is a multiple of {TILE}, "
                "unless EngineConfig.attention = 'torch'"
            )
        if dtype == torch.float16:
            raise ConfigError("EngineConfig.dtype = 'float16': on a CPU it is 'bfloat16' or 'float32'")
        self.config = config
        self.block_size = block_size
        self.num_slots = num_blocks * block_size
        shape = (config.num_layers, 2, config.num_kv_heads * self.num_slots * config.head_dim)
        # Numpy's, which asks the system for large pages. Not zeroed: only what was written is read.
        self.memory = np.empty(shape, dtype=np.int16 if dtype == torch.bfloat16 else np.float32)
        self._start_threads(dtype)

    def attention(self, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> CompiledAttention:
        return CompiledAttention(self, batch, cosine, sine)

    def _start_threads(self, dtype: torch.dtype) -> None:
        """Compile the kernel for several threads; an engine's first batches may be too small for it."""
        num_threads = torch.get_num_threads()
        if num_threads == 1:
            return
        batch = make_batch([Piece([0], 0, 1, [0])], self.block_size)
        rotation = torch.ones(1, self.config.head_dim)
        width = (self.config.num_heads + 2 * self.config.num_kv_heads) * self.config.head_dim
        attention = self.attention(batch, rotation, rotation)
        attention.num_threads = num_threads
        attention.attend(0, torch.zeros(1, width, dtype=dtype), None)
        if torch.get_num_threads() != num_threads:
            # Numba changes this thread's number when it first starts its own; torch's products depend on it.
            torch.set_num_threads(num_threads)


class CompiledAttention:
    """One batch; see `Attention`."""

    def __init__(self, store: CompiledKVStore, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> None:
        config = store.config
        self._config, self._memory = config, store.memory
        self._heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
        positions, slots = (np.array(numbers, dtype=np.int64) for numbers in (batch.positions, batch.slots))
        self._rows = Rows(_NO_NORMS, positions, slots, _NO_NORMS, config.rms_norm_eps, flat(cosine), flat(sine))
        self._queries = np.empty(len(batch.slots) * config.num_heads * config.head_dim, dtype=np.float32)
        self._units, self._tiles = _units(batch, store.block_size // TILE, _tokens_per_unit(config))
        # Kernels check no bounds.
        _require_within("slot", slots, store.num_slots)
        _require_within("tile", self._tiles, store.num_slots // TILE)
        _require_within("position", positions, len(cosine))
        _require_within("row", self._units[:, :2].sum(axis=1) - 1, len(slots))
        self.num_threads = self._worthwhile_threads()

    def attend(self, index: int, qkv: torch.Tensor, head_norms: torch.Tensor | None) -> torch.Tensor:
        config, (keys, values) = self._config, self._memory[index]
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        projections, num_rows = flat(qkv), len(self._rows.slots)
        if len(qkv) < num_rows or qkv.shape[1] != width or projections.dtype != self._memory.dtype:
            raise ValueError(f"qkv is {tuple(qkv.shape)} of {qkv.dtype}, for {num_rows} rows of {width} numbers")
        attended = qkv.new_zeros(len(qkv), config.num_heads * config.head_dim)
        norms = _NO_NORMS if head_norms is None else flat(head_norms)
        rows = self._rows._replace(qkv=projections, norms=norms)
        work = Work(self._units, self._tiles, config.windows[index] or 0)
        heads, cache, out = self._heads, (self._queries, keys, values), flat(attended)
        if self.num_threads == 1:
            store_share(rows, heads, *cache, 0, 1)
            attend_share(*cache, work, heads, out, 0, 1)
        else:
            with _one_at_a_time:
                numba.set_num_threads(min(self.num_threads, numba.config.NUMBA_NUM_THREADS))
                compute_together(rows, heads, *cache, work, out, self.num_threads)
        return attended

    def _worthwhile_threads(self) -> int:
        """The number of threads to use; the result does not depend on it."""
        tokens, ends = self._units[:, 1], self._units[:, 1] + self._units[:, 2]
        per_key = 2 * self._config.num_heads * self._config.head_dim
        return torch.get_num_threads() if int((tokens * ends).sum()) * per_key > TOGETHER_FROM else 1


def _require_within(name: str, numbers: np.ndarray, count: int) -> None:
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
        raise IndexError(f"{name}s from {numbers.min()} to {numbers.max()} where there are {count}")


def _tokens_per_unit(config: ModelConfig) -> int:
    return max(UNIT_ROWS * config.num_kv_heads // config.num_heads, 1)


def _units(batch: ForwardBatch, tiles_per_block: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Units of at most `num_tokens` tokens [units, 4] (see `Work`), and the sequences' tables of tiles."""
    units, blocks = list[tuple[int, int, int, int]](), list[int]()
    for span in batch.spans:
        if len(span.block_ids) * tiles_per_block * TILE < span.start + span.num_tokens:
            raise IndexError(f"{len(span.block_ids)} blocks do not hold {span.start + span.num_tokens} tokens")
        table = len(blocks) * tiles_per_block
        blocks.extend(span.block_ids)
        for offset in range(0, span.num_tokens, num_tokens):
            count = min(num_tokens, span.num_tokens - offset)
            units.append((span.first_row + offset, count, span.start + offset, table))
    tiles = np.array(blocks, dtype=np.int64)[:, None] * tiles_per_block + np.arange(tiles_per_block)
    return np.array(units, dtype=np.int64), tiles.reshape(-1)
