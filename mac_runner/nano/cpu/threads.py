"""How torch's threads behave, decided before torch is first imported.

OpenMP reads its settings once, when torch loads it. By default idle threads spin until there is work, which makes a
step of two threads several times slower as soon as another process wants one of the cores. Here they spin for some tens
of microseconds, which is how far apart a step's operations are, and then sleep. The settings are put back afterwards,
so that no child process inherits them; one that the user has made stands. This module is the first that the package
imports, and all others of the package import torch after it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakSet

from mac_runner.nano.errors import ConfigError

_SETTINGS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "4000"}
THREADS_MAX = 64


@contextmanager
def _while_loading(settings: dict[str, str]) -> Iterator[None]:
    ours = {} if any(name in os.environ for name in settings) else settings
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def load_torch() -> None:
    """Import torch with threads that spin but briefly; without effect where torch is loaded already."""
    with _while_loading(_SETTINGS):
        try:
            importlib.import_module("torch")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "nano computes with torch: pip install 'mac_runner[nano]'", name="torch"
            ) from error


class ThreadPin:
    """How many threads one engine computes with.

    The number is part of what decides the bits of a result, and torch has one for the process. So all engines that are
    loaded have the same, and an engine looks at every step whether it still holds in the thread that takes the step.
    """

    def __init__(self, num_threads: int | None, num_processes: int = 1) -> None:
        """Unless told, the cores this process may use, shared evenly among the processes that compute together.

        Raises ConfigError where a loaded engine has another number.
        """
        import torch

        self.count = num_threads or min(max(_num_cores() // num_processes, 1), THREADS_MAX)
        self._actual = torch.get_num_threads
        with _HOLDING:
            self._require_alone()
        torch.set_num_threads(self.count)

    def hold(self) -> None:
        """Keep others from any other number until `release`, or until this object is gone."""
        with _HOLDING:
            self._require_alone()
            _HELD.add(self)

    def release(self) -> None:
        """Leave the number to others; may be called twice."""
        with _HOLDING:
            _HELD.discard(self)

    def check(self) -> None:
        """Raises ConfigError where somebody has changed torch's number in this thread."""
        if self._actual() != self.count:
            raise ConfigError(
                f"torch computes with {self._actual()} threads, and the engine was made for {self.count}: its results "
                f"would have other bits. Call torch.set_num_threads({self.count}) before the next step"
            )

    def _require_alone(self) -> None:
        if other := next((pin for pin in _HELD if pin.count != self.count), None):
            raise ConfigError(
                f"EngineConfig.num_threads = {self.count}: an engine of this process computes with {other.count}, and "
                "torch has one number for all. Give all engines the same num_threads, or shut the other one down first"
            )


_HELD = WeakSet[ThreadPin]()
_HOLDING = Lock()
"""Engines may be loaded side by side: whoever looks at `_HELD` to join it must not be overtaken."""


def _num_cores() -> int:
    """The cores this process may use; all of the machine's, where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


load_torch()
