"""1,000 requests a minute over eight engines, of which one is killed and one stops."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from benchmarks.fleet_stress import Load, stress
from tests.faults.tier import SCALE


@pytest.mark.nightly
def test_every_request_is_answered_once_although_one_engine_is_killed_and_one_stops() -> None:
    """`tests.nightly` makes ten minutes of it."""
    # A busy machine may well let an engine wait for two seconds.
    load = Load(seconds=12.0 * SCALE, stall_s=10.0)

    outcome = asyncio.run(stress(load))

    said = dataclasses.asdict(outcome)
    assert outcome.errors == [], said
    assert outcome.sent > 120 * SCALE, said
    assert outcome.answered == outcome.distinct == outcome.sent, said
    assert (outcome.tasks_left, outcome.processes_left) == (0, []), said
    assert outcome.rss_end_mib < 1.5 * outcome.rss_quarter_mib, said
    assert outcome.events["EVENT_LANE_DEAD"] >= 1, said
