"""How much of a game's prompts an engine with a prefix cache has seen before, against the best possible."""

from __future__ import annotations

import pytest

from benchmarks.prefix_cache import measure, trial
from mac_runner.environments import build_environment


@pytest.mark.parametrize("words", ["", " So I say." * 20], ids=["short speeches", "long speeches"])
def test_prompts_of_a_game_come_close_to_the_best_a_prefix_cache_can_do(words: str) -> None:
    experiment = trial("classic-10")
    meter = measure(build_environment(experiment), experiment, words=words)
    told = f"cached {meter.share:.3f} of {meter.total} tokens; no order of the lines exceeds {meter.best:.3f}"
    print(told)  # noqa: T201 - the measurement itself, shown by `pytest -rP`

    assert meter.share > 0.88, told
    assert meter.share > meter.best - 0.09, told
