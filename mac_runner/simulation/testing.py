"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.simulation.engine import EngineModel
from mac_runner.simulation.forecast import Forecast
from mac_runner.simulation.lane import Lane, Sequence
from mac_runner.simulation.loop import DeadlockError, ForbiddenError, SimulatedClock, SimulatedLoop, simulate
from mac_runner.simulation.prefixes import BLOCK_TOKENS, KvCache, chain_of, prompt_tokens_of
from mac_runner.simulation.replies import ScriptedReplies
from mac_runner.simulation.run import PILOT, Load, Study, forecast
