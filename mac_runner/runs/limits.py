"""The limits of an experiment on what its run uses: a run does not begin at one, and stops in good order at one.

What a run has used is what its directory says (`used_in`) before a session, and what the session uses since. Of workers
that play the same run, what each has noted since is added now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import reduce
from typing import Final

from mac_runner.clock import Clock
from mac_runner.reports import limit_reached
from mac_runner.runs.engines import plan_engines
from mac_runner.runs.setup import ExperimentSet
from mac_runner.scheduler import Progress
from mac_runner.store import merge_accounting, read_workers, used_in
from mac_runner.store.run_state import accounting_since
from mac_runner.types import JsonObject

LOOK_INTERVAL_S: Final = 5.0
"""How often it is looked at the time, and at other workers; more often they do not note what they used."""


class Limits:
    """How much the run of a set may still use, from one session on."""

    def __init__(self, chosen: ExperimentSet, clock: Clock) -> None:
        first, limits = chosen.setups[0], chosen.setups[0].experiment.limits
        self.own = ""
        """The name of this process among the workers of the run."""
        self.reached: str | None = None
        """Which limit was reached, in words."""
        self._bounds: JsonObject = {} if limits is None else {"limits": limits.model_dump(mode="json")}
        if limits is None:
            return
        self._clock = clock
        self._directory = first.grid or chosen.directory
        self._is_shared = chosen.claimed is not None
        if limits.usd is not None:
            self._bounds["model_definitions"] = _definitions(chosen, clock)
        # First: what others note meanwhile is counted twice rather than not at all.
        self._others_before = self._used_by_others()
        self._used_before = self._used_elsewhere = used_in(self._directory)
        self.reached = self._reached({})

    async def watch(self, progress: Progress, stop: asyncio.Event, say: Callable[[str], object]) -> None:
        """Stop the session that has this progress when a limit is reached: after a reply, or in time."""
        if not self._bounds:
            return

        def look() -> None:
            if not stop.is_set() and (found := self._reached(progress.used())) is not None:
                self.reached = found
                say(f"{found}; stopping: waiting for the requests in flight")
                stop.set()

        progress.on_answer = look
        while not stop.is_set():
            await self._clock.sleep(LOOK_INTERVAL_S)
            if self._is_shared:
                since = accounting_since(await asyncio.to_thread(self._used_by_others), self._others_before)
                self._used_elsewhere = merge_accounting(self._used_before, since)
            look()

    def stopped_by(self, progress: Progress) -> str | None:
        """The limit that stopped the session, with what was used by the end of the requests in flight."""
        return None if self.reached is None else self._reached(progress.used())

    def _reached(self, used_here: JsonObject) -> str | None:
        return limit_reached(self._bounds, merge_accounting(self._used_elsewhere, used_here))

    def _used_by_others(self) -> JsonObject:
        """What the other workers of the run have noted."""
        workers = read_workers(self._directory) if self._is_shared else ()
        return reduce(merge_accounting, (worker.usage for worker in workers if worker.name != self.own), {})


def _definitions(chosen: ExperimentSet, clock: Clock) -> JsonObject:
    """The definition of each engine, by its name in the account of the run."""
    if chosen.grid is None:
        found = chosen.setups[0].experiment.model_definitions
    else:
        plan = plan_engines(chosen.setups, chosen.setups, clock, lambda _line: None, is_dry=True)
        found = {engine.name: engine.definition for engine in plan.engines.values()}
    return {name: definition.model_dump(mode="json") for name, definition in found.items()}
