"""Turns that engines die on: noticed, tried alone, given up. Pure.

When an engine dies, each turn that it worked on may be why, and all but one of them are innocent. So nobody is judged
in company: a turn that was there twice is a suspect, departs behind all others and has its model for itself, and only
if the engine dies once more over that turn alone does its conversation fail. An answer clears a turn for good.

Deaths are counted per turn, because it is the very same prompt and seed that is sent each time, and in the journal,
because an engine in this process takes the run with it. A resume goes on counting: what kills the engine at each
start is behind all others from the third start on, and is not sent at the fourth.

An engine that dies over everything it is given cannot be told from poison once nothing but suspects is left. What ends
the runner itself (a kill, the machine) is nobody's death: it says nothing of the turns.
"""

from __future__ import annotations

from collections.abc import Mapping

from mac_runner.limits import ENGINE_DEATHS_PER_TURN_MAX
from mac_runner.types import Turn


def is_suspect(deaths: int) -> bool:
    """Whether a turn that engines died on so often is to be tried alone."""
    return deaths == ENGINE_DEATHS_PER_TURN_MAX - 1


def is_poison(deaths: int) -> bool:
    """Whether a turn that engines died on so often is not sent any more."""
    return deaths >= ENGINE_DEATHS_PER_TURN_MAX


def suspects(deaths: Mapping[str, int]) -> frozenset[str]:
    """The keys of the turns to be tried alone."""
    return frozenset(key for key, count in deaths.items() if is_suspect(count))


def reason(turn: Turn) -> str:
    """Why a conversation with a poisonous turn fails."""
    return (
        f"turn {turn.key} is poison: the engine of model {turn.model} died {ENGINE_DEATHS_PER_TURN_MAX} times while it "
        "worked on it, the last time on nothing else"
    )
