"""Metrics: your functions from an ended conversation to numbers."""

from mac_runner.metrics.ended import EndedAgent, EndedConversation, EndedTurn, ended_conversation
from mac_runner.metrics.measuring import Measure, Metric, measured, own_metric
from mac_runner.metrics.shaping import Reward, own_reward, shaped

__all__ = [
    "EndedAgent",
    "EndedConversation",
    "EndedTurn",
    "Measure",
    "Metric",
    "Reward",
    "ended_conversation",
    "measured",
    "own_metric",
    "own_reward",
    "shaped",
]
