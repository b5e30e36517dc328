"""What the updates of weights have in common, whichever engine takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from mac_runner.errors import UpdateInProgressError
from mac_runner.types import PolicySpan

Result = TypeVar("Result")


class OneAtATime:
    """Lets one update of a model run, and refuses another one meanwhile. Its caller's end does not end it."""

    def __init__(self) -> None:
        self._running: asyncio.Task[Any] | None = None

    @property
    def is_running(self) -> bool:
        """Whether an update is under way."""
        return self._running is not None and not self._running.done()

    async def run(self, update: Coroutine[Any, Any, Result]) -> Result:
        """Run `update` to its end; its result. Raises UpdateInProgressError while another one runs."""
        if self.is_running:
            update.close()
            raise UpdateInProgressError("another update of the weights is under way; wait for it and try again")
        self._running = running = asyncio.create_task(update)
        running.add_done_callback(_heard)
        return await asyncio.shield(running)


def _heard(ended: asyncio.Task[Any]) -> None:
    """An error whose caller has gone is not reported a second time."""
    if not ended.cancelled():
        ended.exception()


def policy_of(versions: Sequence[str | int]) -> PolicySpan | None:
    """The first and last of the versions that made a reply; None where one of them is not a number.

    vLLM calls the weights that it loaded `default`.
    """
    numbers = [0 if version == "default" else version for version in versions]
    if not numbers or not all(str(number).isdecimal() for number in numbers):
        return None
    return PolicySpan(int(numbers[0]), int(numbers[-1]))
