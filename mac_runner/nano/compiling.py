"""How kernels are compiled, and what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from numba import njit

Floats: TypeAlias = Any
"""A flat array of float32, or of bfloat16 as int16."""
Ints: TypeAlias = Any
"""An array of int64."""


def compiled(*, parallel: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have numba compile a function when it is first called, to run without Python's lock.

    What was compiled is kept beside the package, or in the user's cache; where neither can be written to, each process
    compiles anew.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        kernel: Callable[..., Any]
        try:
            kernel = njit(nogil=True, parallel=parallel, cache=True)(function)
        except RuntimeError:
            kernel = njit(nogil=True, parallel=parallel)(function)
        return kernel

    return decorate


def flat(tensor: torch.Tensor) -> Floats:
    """The same memory, in one dimension; bfloat16 as int16."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().reshape(-1)
