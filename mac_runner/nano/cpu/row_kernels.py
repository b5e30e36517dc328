"""Two operations on each row of a matrix, compiled: they are frequent, and torch takes several passes for each."""

from __future__ import annotations

import numpy as np
import torch

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
    max_of,
    maximum,
    put,
    sum_of,
)


def rms_norm(rows: torch.Tensor, weights: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide each of `rows` [rows, dim] by the root of its mean square, and multiply it by `weights` [dim]."""
    if rows.device.type != "cpu":
        return torch.nn.functional.rms_norm(rows, weights.shape, weights, eps)
    result = torch.empty(rows.shape, dtype=rows.dtype)
    _normalize_rows(flat(rows.contiguous()), flat(weights), eps, flat(result))
    return result


def argmax_and_logsumexp(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index of each row's largest number, the first of several, and the logarithm of the sum of its exponentials.

    `logits` is [rows, vocabulary], in float32. Where a row holds NaN or an infinity, the logarithm is not finite.
    """
    if logits.device.type != "cpu":
        return logits.argmax(-1), logits.logsumexp(-1)
    places, sums = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
    _summarize(flat(logits.contiguous()), places.numpy(), sums.numpy())
    return places, sums


@compiled()
def _normalize_rows(rows: Floats, weights: Floats, eps: float, out: Floats) -> None:
    dim = len(weights)
    row, squares = np.empty(dim + LANES, np.float32), np.zeros(dim + LANES, np.float32)
    for start in range(0, len(rows), dim):
        for i in range(dim):
            row[i] = get(rows, start + i)
        factor = inverse_root_mean_square(row, squares, dim, eps)
        for i in range(dim):
            put(out, start + i, row[i] * factor * get(weights, i))


@compiled()
def _summarize(logits: Floats, places: Ints, sums: Floats) -> None:
    width = len(logits) // len(places)
    whole = width // LANES * LANES
    rest = np.empty(LANES, np.float32)
    for row in range(len(places)):
        start = row * width
        # The numbers behind the last whole vector.
        rest[:] = -np.inf
        for i in range(whole, width):
            rest[i - whole] = logits[start + i]
        largest = load(rest, 0)
        for i in range(start, start + whole, LANES):
            largest = maximum(largest, load(logits, i))
        top, total = max_of(largest), exp_from(load(rest, 0), max_of(largest))
        for i in range(start, start + whole, LANES):
            total = add(total, exp_from(load(logits, i), top))
        sums[row] = top + np.log(sum_of(total))
        places[row] = 0
        for i in range(width):
            if logits[start + i] == top:
                places[row] = i
                break
