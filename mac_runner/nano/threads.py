"""How torch's threads behave, decided before torch is first imported.

OpenMP reads its settings once, when torch loads it. Its default lets idle threads spin, which makes a step of two
threads several times slower as soon as another process wants one of the cores; passive waiting costs little and
suffers little. The settings are put back afterwards, so that no child process inherits them; one that the user has
made stands. This module is the first that the package imports, and all others of the package import torch after it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

_SETTINGS = {"OMP_WAIT_POLICY": "PASSIVE"}
THREADS_MAX = 64


@contextmanager
def _while_loading(settings: dict[str, str]) -> Iterator[None]:
    ours = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def load_torch() -> None:
    """Import torch with threads that wait without spinning; without effect where torch is loaded already."""
    with _while_loading(_SETTINGS):
        try:
            importlib.import_module("torch")
        except ImportError as error:
            raise ImportError("nano computes with torch: pip install 'mac_runner[nano]'") from error


def pin_threads(num_threads: int | None, num_processes: int = 1) -> int:
    """Fix how many threads torch computes with, and say how many.

    Unless told, it is the cores that this process may use, shared evenly among the processes that compute together.

    The number is part of what decides the bits of a result, so nothing else in the package changes it.
    """
    import torch

    count = num_threads or min(max(_num_cores() // num_processes, 1), THREADS_MAX)
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    return count


def _num_cores() -> int:
    """The cores this process may use; all of the machine's, where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


load_torch()
