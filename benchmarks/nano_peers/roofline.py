"""What this machine could do at best: how fast it reads memory and multiplies matrices, and a decode step's bound.

A step reads all matrices and all keys and values once, and multiplies each matrix with a row for each sequence. A
model that fits into the processor's caches can be faster than the bound by reading says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.nano_peers.setting import Setting
from benchmarks.nano_peers.timing import Clock
from mac_runner.nano.architecture import expected_shapes

READ_BYTES = 1 << 29
GEMM_SIZE = 2_048
ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The best of a few attempts."""

    read_gb_per_s: float
    gemm_gflop_per_s: float


def measure_roof(dtype: torch.dtype, clock: Clock) -> Roof:
    """Sum up half a GiB, and multiply two square matrices."""
    ones = torch.ones(READ_BYTES // 4)
    square = torch.ones(GEMM_SIZE, GEMM_SIZE, dtype=dtype)
    return Roof(
        read_gb_per_s=READ_BYTES / _best_s(ones.sum, clock) / 1e9,
        gemm_gflop_per_s=2 * GEMM_SIZE**3 / _best_s(lambda: square @ square, clock) / 1e9,
    )


def least_step_s(roof: Roof, setting: Setting, batch: int, context: float) -> float:
    """The least time of a decode step of so many sequences, each with so many tokens of context on average."""
    parameters = num_matrix_parameters(setting)
    read_bytes = parameters * int(setting.torch_dtype.itemsize) + batch * context * setting.kv_bytes_per_token
    return max(read_bytes / roof.read_gb_per_s, 2 * parameters * batch / roof.gemm_gflop_per_s) / 1e9


def num_matrix_parameters(setting: Setting) -> int:
    """Of all matrices that a token is multiplied with; a tied embedding is one."""
    shapes = expected_shapes(setting.model)
    if not setting.model.tie_word_embeddings:
        del shapes["model.embed_tokens.weight"]
    return sum(shape[0] * shape[1] for shape in shapes.values() if len(shape) == 2)


def _best_s(work: Callable[[], object], clock: Clock) -> float:
    found = list[float]()
    for _ in range(ATTEMPTS):
        began_s = clock()
        work()
        found.append(clock() - began_s)
    return min(found)
