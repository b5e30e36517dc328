"""How torch's threads behave, decided before torch is first imported: OpenMP reads its settings once.

By default idle threads spin until there is work, and a step takes several times as long as soon as another process
wants a core. Here they spin for the time between a step's operations, and then sleep. The settings are put back
afterwards, so that no child process inherits them; those of the user have precedence.
"""

from __future__ import annotations

import importlib
import os
from threading import Lock
from weakref import WeakSet

from mac_runner.nano.errors import ConfigError

_SETTINGS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "4000"}
THREADS_MAX = 64


def load_torch() -> None:
    """Import torch with threads that spin only briefly; without effect where torch is loaded already."""
    ours = {} if any(name in os.environ for name in _SETTINGS) else _SETTINGS
    os.environ.update(ours)
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("nano computes with torch: pip install torch", name="torch") from error
    finally:
        for name in ours:
            del os.environ[name]


class ThreadPin:
    """The number of threads that one engine computes with.

    It affects the bits of a result, and torch has one for the process. So all loaded engines have the same number, and
    each step checks that it still holds in the thread that takes the step.
    """

    def __init__(self, num_threads: int | None, num_processes: int = 1) -> None:
        """Without `num_threads`, the cores of this process are divided evenly among `num_processes`.

        Raises ConfigError where a loaded engine has another number.
        """
        import torch

        self.count = threads_each(num_threads, num_processes)
        self._actual = torch.get_num_threads
        with _HOLDING:
            self._require_alone()
        torch.set_num_threads(self.count)

    def hold(self) -> None:
        """Refuse engines with another number until `release`, or until this object is gone."""
        with _HOLDING:
            self._require_alone()
            _HELD.add(self)

    def release(self) -> None:
        """Allow engines with another number; may be called twice."""
        with _HOLDING:
            _HELD.discard(self)

    def check(self) -> None:
        """Raise ConfigError if torch's number was changed in this thread."""
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


def threads_each(num_threads: int | None, num_processes: int) -> int:
    """The threads of each of so many processes of this machine: by default they share its cores evenly."""
    return num_threads or min(max(_num_cores() // num_processes, 1), THREADS_MAX)


_HELD = WeakSet[ThreadPin]()
_HOLDING = Lock()
"""Engines may be loaded side by side: looking at `_HELD` and joining it is one operation."""


def _num_cores() -> int:
    """The cores this process may use; all of the machine's where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


load_torch()
