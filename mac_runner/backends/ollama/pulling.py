"""Pulling a model, told about at a rate that a log can bear.

A pull may take hours, so it has no deadline as a whole; one that brings nothing for OLLAMA_PULL_STALL_S_MAX seconds is
given up. What has arrived stays with Ollama, and the next pull goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from mac_runner.backends.ollama.verdicts import verdicts
from mac_runner.backends.redaction import Redactor
from mac_runner.clock import Clock
from mac_runner.errors import EngineDeadError
from mac_runner.limits import OLLAMA_PULL_SAY_INTERVAL_S, OLLAMA_PULL_STALL_S_MAX

if TYPE_CHECKING:
    from ollama import ProgressResponse


async def follow_pull(
    model: str,
    progress: AsyncIterator[ProgressResponse],
    *,
    host: str,
    redactor: Redactor,
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Follow a pull to its end. Raises EngineDeadError when it stalls or ends too early, else a BackendError."""
    last, said_at_s = "", float("-inf")
    while (step := await _next(model, progress, host, redactor)) is not None:
        line = f"pulling {model}: {_words(step, redactor)}"
        if line != last and clock.monotonic_s() - said_at_s >= OLLAMA_PULL_SAY_INTERVAL_S:
            last, said_at_s = line, clock.monotonic_s()
            say(line)
        if step.status == "success":
            say(f"pulling {model}: done")
            return
    raise EngineDeadError(f"the pull of {model} ended before it succeeded; run the same command again to go on with it")


async def _next(
    model: str, progress: AsyncIterator[ProgressResponse], host: str, redactor: Redactor
) -> ProgressResponse | None:
    try:
        async with asyncio.timeout(OLLAMA_PULL_STALL_S_MAX):
            with verdicts(host, redactor):
                return await anext(progress, None)
    except TimeoutError:
        raise EngineDeadError(
            f"the pull of {model} brought nothing for {OLLAMA_PULL_STALL_S_MAX:.0f} s; "
            "run the same command again to go on with it"
        ) from None


def _words(step: ProgressResponse, redactor: Redactor) -> str:
    status = redactor.quoted(step.status or "", 80)
    if not step.total:
        return status
    return f"{status}, {(step.completed or 0) / step.total:.0%} of {step.total / 1e6:,.0f} MB"
