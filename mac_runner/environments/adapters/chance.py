"""The generators of chance that a whole process shares, with a state for each conversation.

Libraries of games draw from the module `random` and from `numpy.random`. A conversation that calls them puts its own
state there for the time of the call. So conversations take turns in one process and each has the draws of its own seed,
and the process itself goes on with the draws that it had.
"""

from __future__ import annotations

import random
import sys
from threading import RLock
from types import TracebackType
from typing import Any, Final

_LOCK: Final = RLock()
"""Two runs may go on in two threads of one process."""
NUMPY_SEEDS: Final = 1 << 32


class OwnChance:
    """The state of the shared generators that belongs to one conversation: `with chance: call_the_library()`."""

    __slots__ = ("_numpy", "_others", "_own", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own = random.Random(seed)  # noqa: S311 - chance of a game, not a secret
        self._numpy: Any = None
        self._others: tuple[Any, Any] = (None, None)

    def __enter__(self) -> None:
        _LOCK.acquire()
        shared = _numpy_random()
        self._others = (random.getstate(), None if shared is None else shared.get_state())
        random.setstate(self._own.getstate())
        if shared is not None:
            self._numpy = self._numpy or shared.RandomState(self._seed % NUMPY_SEEDS).get_state()
            shared.set_state(self._numpy)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            shared = _numpy_random()
            self._own.setstate(random.getstate())
            python, numpy = self._others
            random.setstate(python)
            if shared is not None and numpy is not None:
                self._numpy = shared.get_state()
                shared.set_state(numpy)
            self._others = (None, None)
        finally:
            _LOCK.release()


def _numpy_random() -> Any:
    """numpy's generators, where a library has imported them."""
    return getattr(sys.modules.get("numpy"), "random", None)
