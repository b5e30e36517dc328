"""The order of a round under `speak_after_within_round`: everybody behind those they wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key")


def gated(order: Iterable[Key], waits_for: Mapping[Key, Collection[Key]]) -> list[Key]:
    """`order` with each element moved behind those it waits for, as far as they are in it; else as it was.

    Raises ValueError when some wait for each other; the configuration refuses that before a run.
    """
    waiting, ready = list(order), list[Key]()
    while waiting:
        held_up = set(waiting)
        free = next((key for key in waiting if held_up.isdisjoint(waits_for.get(key, ()))), None)
        if free is None:
            raise ValueError(f"these wait for each other: {waiting}")
        waiting.remove(free)
        ready.append(free)
    return ready
