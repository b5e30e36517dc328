"""The example that learns: `examples/grpo.py`, with a smaller model and fewer games. It needs what `[nano]` brings."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist, fmean, variance
from typing import Any

import pytest

import mac_runner
from mac_runner.cli.checks import Verify
from mac_runner.cli.process import Exit
from tests.cli.lab import environ
from tests.patience import run

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "tokenizers", "pyarrow")),
        reason="the packages of nano and pyarrow are not installed",
    ),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
BATCH, VERSIONS = 64, 12
SEED = 3
"""Its random model plays well enough at first to become worse."""
CERTAIN = 1e-3
"""A change is significant where chance makes as large a one this rarely."""


@pytest.fixture
def grpo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as a module, set for a short run."""
    spec = importlib.util.spec_from_file_location("grpo", EXAMPLES / "grpo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BATCH", BATCH)
    monkeypatch.setattr(module, "LEARNING_RATE", 3e-3)
    return module


def rewards_of_deals(run: Path) -> list[float]:
    """The mean reward of the games of each deal, in order."""
    found = defaultdict[int, list[float]](list)
    for game in mac_runner.open_run(run):
        assert game.outcome is not None
        total: Any = game.outcome["total"]
        assert game.ended.group is not None
        found[game.ended.group].append(total / 2)
    return [fmean(found[group]) for group in sorted(found)]


def chance_of_rise(before: Sequence[float], after: Sequence[float]) -> float:
    """How likely chance alone makes `after` as much larger than `before`: Welch's test of independent deals."""
    error = (variance(before) / len(before) + variance(after) / len(after)) ** 0.5
    return 1 - NormalDist().cdf((fmean(after) - fmean(before)) / error)


def test_reward_rises_with_the_advantage_and_falls_against_it(grpo: Any, tmp_path: Path) -> None:
    chances = {}
    for sign in (1.0, -1.0):
        home = tmp_path / str(sign)
        history = asyncio.run(grpo.learn(home, BATCH * VERSIONS, seed=SEED, sign=sign, shape=SMALL))
        rewards = rewards_of_deals(home / "run")
        # Two batches are played by the random model: the second one while the trainer learns from the first.
        chances[sign] = chance_of_rise(rewards[: len(rewards) // 6], rewards[-len(rewards) // 3 :])

        assert [step["version"] for step in history] == [*range(VERSIONS)]
        assert max(step["lag"] for step in history) > 0

    assert chances[1.0] < CERTAIN
    assert chances[-1.0] > 1 - CERTAIN


PROGRAM = f"""
import asyncio, os, pathlib, signal, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import grpo

class Mortal(grpo.Learner):
    def step(self, rollouts):
        if (pathlib.Path(sys.argv[1]) / "2.safetensors").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(rollouts)

grpo.Learner = Mortal
grpo.BATCH, grpo.LEARNING_RATE = {BATCH}, 3e-3
asyncio.run(grpo.learn(pathlib.Path(sys.argv[1]), {BATCH} * 5, shape={SMALL}))
"""


def test_killed_trainer_goes_on_and_uses_every_game_once(grpo: Any, tmp_path: Path) -> None:
    """Killed as it begins its third version, after games that were played with the second one."""
    import torch

    killed = run([sys.executable, "-c", PROGRAM, str(tmp_path)], env=environ())
    assert killed.returncode == -signal.SIGKILL
    history = asyncio.run(grpo.learn(tmp_path, BATCH * 5, shape=SMALL))
    used = torch.load(tmp_path / "trainer.pt")["used"]

    assert [step["version"] for step in history] == [*range(5)]
    assert max(step["max_lag"] for step in history) <= grpo.MAX_LAG
    # Each of the five versions is of a whole batch, so no game was used twice.
    assert used == {game.task_id for game in mac_runner.open_run(tmp_path / "run")}
    assert len(used) == BATCH * 5
    assert Verify(directory=tmp_path / "run").work() == Exit.OK


def test_the_trainer_computes_what_the_engine_computed(grpo: Any, tmp_path: Path) -> None:
    """Log-probabilities of the first version, by the engine and by the model of the trainer."""
    import torch
    from safetensors.torch import load_file

    asyncio.run(grpo.learn(tmp_path, BATCH, shape=SMALL))
    weights = load_file(tmp_path / "model" / "model.safetensors")
    for game in [*mac_runner.open_run(tmp_path / "run")][:8]:
        for rollout in mac_runner.rollouts(game):
            ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
            said = grpo.logits_of(weights, SMALL, ids)[0, len(rollout.prompt_ids) - 1 : -1].log_softmax(-1)
            found = [float(said[place, token]) for place, token in enumerate(rollout.completion_ids)]

            assert found == pytest.approx(list(rollout.logprobs), abs=1e-4)


def test_the_plot_shows_reward_and_lag(grpo: Any, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    grpo.plot(
        [{"version": 0, "reward": 0.1, "lag": 0.0}, {"version": 1, "reward": 0.5, "lag": 1.0}], tmp_path / "a.svg"
    )

    labels = re.findall(r">([^<>]+)<", (tmp_path / "a.svg").read_text())
    assert {"lag", "version"} <= {*labels}
    assert any("best" in label for label in labels)


def test_the_example_is_short() -> None:
    assert len((EXAMPLES / "grpo.py").read_text().splitlines()) <= 200
