"""What of its prompts a discussion leaves to the prefix cache, as `benchmarks.discussion_prefix` counts it."""

from __future__ import annotations

import pytest

from benchmarks.discussion_prefix import EXPERIMENT, measure
from mac_runner.config import load_experiment


@pytest.mark.parametrize(("place", "share"), [("system", 0.25), ("last", 0.5)])
def test_discussions_leave_their_share_to_the_prefix_cache(place: str, share: float) -> None:
    experiment = load_experiment(
        EXPERIMENT, overrides=["_grid=null", f"discussion.prompt.identity_place={place}"]
    ).experiment

    assert measure(experiment, discussions=3, words=" So I say." * 30).share > share
