"""Metrics: your functions from an ended conversation to numbers."""

from mac_runner.metrics.ended import (
    EndedAgent,
    EndedConversation,
    EndedTurn,
    Measure,
    Metric,
    Reward,
    ended_conversation,
    measured,
    own_metric,
    own_reward,
    shaped,
)

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
