"""`latency.calibration`: the times of a measured engine, in place of numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from mac_runner.config import Loaded, identity_of
from mac_runner.environments.town_of_salem import GameConfig
from mac_runner.latency import Calibration, Calibrations, StepModel

STEPS = StepModel(step_ms=8.0, token_ms=0.4, prompt_token_ms=0.02, context_token_ms=0.0005)
MODEL = """\
    latency: {calibration: {file: c.json, in_flight: 4, prompt_tokens: 1000, context_tokens: 2000}, quantum: 10}
"""
CLOCK = """\
game:
  calendar: {discussion_mode: information_lag}
  latency: {calibration: {file: c.json, in_flight: 4, prompt_tokens: 1000, context_tokens: 2000}, quantum: 10}
"""


def measured(model: str = "m", gpu: str = "H100", engine: str = "vllm 1") -> Calibration:
    return Calibration(model=model, gpu=gpu, engine=engine, steps=STEPS, in_flight=(1, 4, 16), requests=90, error=0.01)


def write(*known: Calibration) -> None:
    Path("c.json").write_text(Calibrations(calibrations=known).model_dump_json())


def latencies(game_text: str) -> tuple[str, str]:
    """The experiment with a model's latency, and with the clock of the game, from a calibration."""
    return game_text.replace("agent_definitions:", f"{MODEL}agent_definitions:"), game_text + CLOCK


def test_a_calibration_sets_the_times_of_a_model_and_of_the_games_clock(
    load: Callable[..., Loaded], game_text: str
) -> None:
    of_model, of_game = latencies(game_text)
    load(game_text)
    write(measured())

    model = load(of_model).experiment.model_definitions["folk"].latency
    game = load(of_game).experiment.settings_as(GameConfig).latency

    for found in (model, game):
        assert found is not None
        assert (found.prefill_ms, found.kernel_ms, found.quantum) == (20, 136, 10)
        assert found.calibration is None


def test_a_clock_from_a_calibration_is_the_experiment_with_its_numbers(
    load: Callable[..., Loaded], game_text: str
) -> None:
    _, of_game = latencies(game_text)
    load(game_text)
    write(measured())
    numbers = load(game_text + CLOCK.split("  latency")[0] + "  latency: {prefill_ms: 20, kernel_ms: 136, quantum: 10}")

    assert identity_of(load(of_game).experiment) == identity_of(numbers.experiment)


UNUSABLE: list[tuple[str | list[Calibration] | None, str | None]] = [
    (None, "c.json: cannot be read: No such file or directory; name a file that exists"),
    ("{", "c.json is no calibration file: Invalid JSON"),
    (json.dumps({"calibrations": [{"model": "m"}]}), "is no calibration file at calibrations.0."),
    (json.dumps({"format": 2}), "is no calibration file at format: "),
    ([], "no calibration; the file has: none"),
    ([measured(), measured(gpu="A100")], "2 calibrations fit; choose one by model, gpu and engine"),
    ([measured(model="other")], None),
]


def test_a_calibration_that_cannot_be_used_is_refused_with_its_line(
    refusal: Callable[..., list[str]], load: Callable[..., Loaded], game_text: str
) -> None:
    load(game_text)
    for content, told in UNUSABLE:
        if isinstance(content, list):
            write(*content)
        elif content is not None:
            Path("c.json").write_text(content)
        expected = told or "no calibration for model 'm'; the file has: other on H100 with vllm 1"
        keys = ("model_definitions.folk.latency.calibration", "game.latency.calibration")
        for text, key in zip(latencies(game_text), keys, strict=True):
            (line,) = refusal(text if told else text.replace("c.json,", "c.json, model: m,"))
            assert line.startswith("trial.yaml:")
            assert key in line
            assert expected in line


def test_a_time_beside_the_calibration_that_sets_it_is_refused(
    refusal: Callable[..., list[str]], game_text: str
) -> None:
    of_model, _ = latencies(game_text)

    (line,) = refusal(of_model.replace("quantum: 10", "kernel_ms: 10"))

    assert "folk.latency.kernel_ms: " in line


def test_a_load_beyond_the_longest_time_is_refused(
    refusal: Callable[..., list[str]], load: Callable[..., Loaded], game_text: str
) -> None:
    of_model, _ = latencies(game_text)
    load(game_text)
    write(measured())

    (line,) = refusal(of_model.replace("quantum: 10", "quantum: 100000"))

    assert "kernel_ms 1360000, above 600000" in line


def test_a_new_calibration_takes_the_place_of_the_one_of_its_model_gpu_and_engine_alone() -> None:
    known = Calibrations(calibrations=(measured(), measured(gpu="A100")))
    new = measured().model_copy(update={"requests": 12})

    assert [(one.gpu, one.requests) for one in known.with_one(new).calibrations] == [("A100", 90), ("H100", 12)]
