"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.planning.cost import Cost, CostRequest, Recorded, Resampled, beginnings, cost_of, recorded_conversations
from mac_runner.planning.engine import EngineModel, Load, scripted_replies
from mac_runner.planning.fit import SAMPLES_MIN, non_negative_least_squares
from mac_runner.planning.forecast import PILOT, Forecast, Study, forecast
from mac_runner.planning.lane import BLOCK_TOKENS, KvCache, Lane, Sequence, chain_of, prompt_tokens_of
from mac_runner.planning.loop import DeadlockError, ForbiddenError, SimulatedClock, SimulatedLoop, simulate
from mac_runner.planning.observed import RunCalibration
from mac_runner.planning.sweeps import EngineName, calibrate
