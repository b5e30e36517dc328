"""What happens when, in a time that is a number."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """Things that happen at their moments; those of one moment in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.count = 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have something happen so much later."""
        self.count += 1
        heapq.heappush(self.queue, (self.now_s + delay_s, self.count, what))

    def happen(self) -> None:
        """Let the next thing happen."""
        self.now_s, _, what = heapq.heappop(self.queue)
        what()
