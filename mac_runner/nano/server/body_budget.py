"""The memory that the bodies of all requests may take together. Pure.

A request holds its share until it is answered: its prompt stays in memory while it waits for the engine. The first
BODY_BYTES_FREE of each body are not counted, so ordinary requests are served while long ones take up the budget.
"""

from __future__ import annotations

from mac_runner.nano.server.limits import BODIES_BYTES_MAX, BODY_BYTES_FREE, BODY_BYTES_MAX, RETRY_AFTER_S
from mac_runner.nano.server.refusals import Refusal, RefusedError


class BodyBudget:
    """Counts bytes that have arrived, not bytes that a header declares."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def share(self) -> BodyShare:
        """The share of a new request, which holds nothing yet."""
        return BodyShare(self)


class BodyShare:
    """What one request holds of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size_bytes = 0
        self._held_bytes = 0

    def grow(self, num_bytes: int) -> None:
        """Count bytes that have arrived. Raises RefusedError where they are too many: of this body, or of all."""
        size_bytes = self._size_bytes + num_bytes
        if size_bytes > BODY_BYTES_MAX:
            raise body_too_large()
        held_bytes = max(size_bytes - BODY_BYTES_FREE, 0)
        more_bytes = held_bytes - self._held_bytes
        if more_bytes and self._budget.held_bytes + more_bytes > self._budget.bytes_max:
            raise RefusedError(
                Refusal(
                    status=503,
                    message="server busy: the bodies of all requests together take up the memory kept for them",
                    kind="server_error",
                    code="server_busy",
                    retry_after_s=RETRY_AFTER_S,
                )
            )
        self._size_bytes, self._held_bytes = size_bytes, held_bytes
        self._budget.held_bytes += more_bytes

    def release(self) -> None:
        """Give everything back."""
        self._budget.held_bytes -= self._held_bytes
        self._size_bytes = self._held_bytes = 0


def body_too_large() -> RefusedError:
    """A body beyond BODY_BYTES_MAX, whether declared or received."""
    return RefusedError(Refusal(status=413, message=f"the body has more than {BODY_BYTES_MAX} bytes"))
