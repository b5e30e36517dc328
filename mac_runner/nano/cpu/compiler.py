"""How kernels are compiled, and the kinds of their arguments."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
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
"""The files that all kernels depend on, besides their own."""


def compiled(*, parallel: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make numba compile a function at its first call, to run without Python's lock.

    Compiled code is kept in NUMBA_CACHE_DIR if it is set, else beside the package or in the user's cache. Where nothing
    can be written, each process compiles again. Numba notices changes of the function's own file; the name of the
    folder depends on the other files that a kernel is made of.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        place, before = _place(), numba.config.CACHE_DIR
        # Numba reads its folder when a function is decorated.
        numba.config.CACHE_DIR = str(place or "")
        try:
            kernel: Callable[..., Any] = numba.njit(nogil=True, parallel=parallel, cache=place is not None)(function)
        finally:
            numba.config.CACHE_DIR = before
        if place is not None and hasattr(kernel, "_cache"):  # NUMBA_DISABLE_JIT gives the function itself.
            _number_by_key(kernel)
        return kernel

    return decorate


def _number_by_key(kernel: Any) -> None:
    """Number files by what they hold, and write each before the index names it.

    Numba counts. Two processes that compile at once take one number, and one of them would be given the other's code.
    """
    files = kernel._cache._cache_file

    def save(key: object, data: object) -> None:
        digest = hashlib.sha256(repr((files._version, files._source_stamp, key)).encode()).digest()
        name = files._data_name(int.from_bytes(digest[:8]))
        files._save_data(name, data)
        files._save_index({**files._load_index(), key: name})

    files.save = save


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


def flat(tensor: torch.Tensor) -> Floats:
    """The same memory, in one dimension; bfloat16 as int16. Raises ValueError for memory with gaps."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of {tuple(tensor.shape)} that is not contiguous")
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().reshape(-1)
