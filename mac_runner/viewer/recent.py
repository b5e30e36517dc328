"""The values that were used last."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values by key, whose sizes are `most` together at most; the one that was not used for longest goes first.

    What was put last stays, whatever its size.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value of a key, used now."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Key, value: Value, size: int = 1) -> Value:
        """Keep a value; returns it."""
        _, before = self._values.pop(key, (None, 0))
        self._values[key] = value, size
        self._size += size - before
        while len(self._values) > 1 and self._size > self._most:
            _, (_, gone) = self._values.popitem(last=False)
            self._size -= gone
        return value
