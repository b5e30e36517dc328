"""Whether the engine gets on with its work. Pure but for what it remembers: whoever asks tells the time.

An engine that answers is not one that works: it may answer every question between two steps and take none. So what
counts is that steps are taken while there is work. Each look remembers the steps so far; work that is there at two
looks, STALL_S_MAX apart, without a step in between, is stuck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mac_runner.nano.engine import EngineState
from mac_runner.nano.outputs import EngineStats
from mac_runner.nano.server.limits import STALL_S_MAX


class Health(NamedTuple):
    """What a look has found. `status` is a word for people. One that `is_stuck` may turn out well at a second look."""

    is_well: bool
    status: str
    is_stuck: bool = False


@dataclass(slots=True)
class ProgressWatch:
    """Remembers since when no step was taken although there was work."""

    num_steps: int = -1
    since_s: float = 0.0

    def look(self, stats: EngineStats, state: EngineState, now_s: float) -> Health:
        """How the engine is, at `now_s` of a clock that only ever grows."""
        if state is not EngineState.RUNNING:
            self.num_steps = -1
            return Health(False, str(state))
        if not stats.num_waiting and not stats.num_running:
            self.num_steps = -1
            return Health(True, "idle")
        if stats.num_steps != self.num_steps:
            self.num_steps, self.since_s = stats.num_steps, now_s
        stuck_s = now_s - self.since_s
        if stuck_s > STALL_S_MAX:
            return Health(False, f"no step for {stuck_s:.0f} s, with {stats.num_running} running", is_stuck=True)
        return Health(True, "working")
