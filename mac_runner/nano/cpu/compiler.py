"""How kernels are compiled, and what they are given."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias

import numba
import torch

Floats: TypeAlias = Any
"""A flat array of float32, or of bfloat16 as int16."""
Ints: TypeAlias = Any
"""An array of int64."""
_HERE = Path(__file__).parent
_BUILT_FROM = ("compiler.py", "vectors.py")
"""What all kernels are made of, beside the file in which each is written."""


def compiled(*, parallel: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have numba compile a function when it is first called, to run without Python's lock.

    What was compiled is kept, in NUMBA_CACHE_DIR if it is set, else beside the package or in the user's cache; where
    nothing can be written each process compiles anew. Numba looks whether the function's own file has changed; the
    place is named by the rest that a kernel is made of.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        place = _place()
        with _keeping_in(place):
            kernel: Callable[..., Any] = numba.njit(nogil=True, parallel=parallel, cache=place is not None)(function)
        return kernel

    return decorate


@cache
def _place() -> Path | None:
    digest = hashlib.sha256(b"".join((_HERE / name).read_bytes() for name in _BUILT_FROM)).hexdigest()
    chosen, home = numba.config.CACHE_DIR, os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    parents = [Path(chosen)] if chosen else [_HERE / "__pycache__", Path(home).expanduser() / "mac_runner"]
    for parent in parents:
        place = parent / f"kernels-{digest[:16]}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=place):
                return place
        except OSError:
            continue
    return None


@contextmanager
def _keeping_in(place: Path | None) -> Iterator[None]:
    """Numba finds out where to keep a function's code when the function is decorated."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(place or "")
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def flat(tensor: torch.Tensor) -> Floats:
    """The same memory, in one dimension; bfloat16 as int16. Raises ValueError where the memory has gaps."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of {tuple(tensor.shape)} that is not contiguous")
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().reshape(-1)
