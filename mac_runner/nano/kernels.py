"""Attention on a CPU, compiled by numba: put the tokens of a step where they belong, then attend to all they may see.

Keys lie in tiles of 16 tokens, turned around: [dim, 16], so that a vector holds one number of 16 keys, and a query's
products with all of them take one pass. Values lie in tiles of [16, dim]. Both products are panels (see `vectors`), in
which a row is one head of one token. So a token's result has the same bits whoever is computed beside it, by whichever
thread, and however its prompt was cut into steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import prange

from mac_runner.nano.compiling import Floats, Ints, compiled
from mac_runner.nano.vectors import (
    LANES,
    add,
    exp_from,
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

TILE = LANES


class Heads(NamedTuple):
    """How many heads a model has for queries, how many for keys and values, and how many numbers each."""

    query: int
    kv: int
    dim: int


class Rows(NamedTuple):
    """The rows of a step: their places in their sequences and in the cache, and the rotations of all places."""

    positions: Ints
    slots: Ints
    cosine: Floats
    sine: Floats


class Work(NamedTuple):
    """What is to be attended to.

    A unit [units, 4] is a few tokens of one sequence: their first row, their number, the first one's position and where
    the sequence's table begins in `tiles`. `window` is how many keys a token sees, 0 for all.
    """

    units: Ints
    tiles: Ints
    window: int


# Two sums each, the even numbers' and the odd ones': a head has an even number of them.
_score_panel = make_panel(1, 2)
_mix_narrow, _mix_wide = make_panel(1, 1), make_panel(4, 1)


@compiled()
def store_rows(
    qkv: Floats, rows: Rows, norms: Floats, eps: float, heads: Heads, queries: Floats, keys: Floats, values: Floats
) -> None:
    """Normalize, rotate and put away the rows of a step.

    `qkv` is [rows, heads + 2 x KV heads, dim]. `norms` [2, dim] are weights for queries and keys; empty, nothing is
    normalized. Queries go to [KV heads, rows, heads that share one, dim], divided by the root of `dim`; keys and values
    into the tiles of their slots.
    """
    num_rows, group, size = len(rows.slots), heads.query // heads.kv, len(keys) // heads.kv
    scale = np.float32(1.0 / np.sqrt(heads.dim))
    head, turned = np.empty(heads.dim, np.float32), np.empty(heads.dim, np.float32)
    for row in range(num_rows):
        tile, lane = rows.slots[row] // TILE * TILE * heads.dim, rows.slots[row] % TILE
        start = row * (heads.query + 2 * heads.kv) * heads.dim
        for index in range(heads.query + heads.kv):
            is_query = index < heads.query
            for i in range(heads.dim):
                head[i] = get(qkv, start + index * heads.dim + i)
            if len(norms) > 0:
                _normalize(head, turned, norms, 0 if is_query else heads.dim, eps)
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
    """Compute every `num_workers`-th piece of work, from the `worker`-th on, a piece being a unit and a KV head.

    `queries`, `keys` and `values` are as `store_rows` leaves them; `out` is [rows, heads, dim].
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
        # Tiles that nobody here sees are left out, and of the others the keys before the window weigh nothing.
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
def attend_together(
    queries: Floats, keys: Floats, values: Floats, work: Work, heads: Heads, out: Floats, num_workers: int
) -> None:
    """Compute all pieces of work, shared out among threads."""
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
            # No value is touched that a row may not see: what lies there may be no number.
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
    """How many of a tile's keys are among the first `count`."""
    return min(max(count, 0), TILE)


@compiled()
def _mix_rows(
    weights: Floats, x: int, width: int, num: int, values: Floats, y: int, count: int, dim: int, mixed: Floats, out: int
) -> None:
    """Add `count` values by weight to `num` rows, which are as many as a panel takes."""
    column = 0
    while column < dim:
        if column + 4 * LANES <= dim:
            _mix_wide(num, weights, x, width, values, y + column, dim, count, mixed, out + column, dim)
            column += 4 * LANES
        else:
            _mix_narrow(num, weights, x, width, values, y + column, dim, count, mixed, out + column, dim)
            column += LANES
