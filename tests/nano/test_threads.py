"""One number of threads for all engines of a process, for it is part of what decides the bits of a result."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mac_runner.nano import (
    AsyncEngine,
    ConfigError,
    EngineConfig,
    EngineState,
    InferenceEngine,
    ModelNotFoundError,
    SamplingParams,
)
from tests.nano.crowds import finish

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(autouse=True)
def same_number_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def engine(path: Path, num_threads: int) -> InferenceEngine:
    return InferenceEngine(EngineConfig(model_path=str(path), num_threads=num_threads))


def test_second_engine_with_another_number_is_refused_and_the_first_is_not_harmed(path: Path) -> None:
    with engine(path, 1) as first:
        expected = first.generate([[1, 2, 3]], GREEDY)[0].logprobs
        with pytest.raises(ConfigError, match=r"num_threads = 2: .* with 1"):
            engine(path, 2)

        assert torch.get_num_threads() == 1
        assert first.generate([[1, 2, 3]], GREEDY)[0].logprobs == expected


def test_engines_with_one_number_live_side_by_side(path: Path) -> None:
    with engine(path, 2) as first, engine(path, 2) as second:
        assert first.generate([[1]], GREEDY)[0].logprobs == second.generate([[1]], GREEDY)[0].logprobs


def test_engine_that_is_gone_or_could_not_be_made_leaves_the_number_to_others(path: Path) -> None:
    stopped = engine(path, 1)
    stopped.shutdown()
    with engine(path, 2):
        assert torch.get_num_threads() == 2
    assert stopped.state is EngineState.STOPPED

    engine(path, 1)  # Nobody holds it.
    engine(path, 2).shutdown()
    with pytest.raises(ModelNotFoundError) as kept:
        engine(Path("/no/such/model"), 1)
    engine(path, 2).shutdown()
    assert kept.value is not None


def test_threads_of_the_compiled_kernels_leave_the_number_alone(path: Path) -> None:
    """In a process of its own: they are started once, and OpenMP then has their number for torch as well."""
    program = (
        "import sys, torch; from mac_runner.nano import EngineConfig, InferenceEngine\n"
        "with InferenceEngine(EngineConfig(model_path=sys.argv[1], num_threads=2)):\n"
        "    print(torch.get_num_threads())"
    )
    environment = {**os.environ, "NUMBA_NUM_THREADS": "3"}
    command = (sys.executable, "-c", program, str(path))

    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == "2\n"


async def test_engines_loaded_side_by_side_do_not_slip_in_with_two_numbers(path: Path) -> None:
    engines = [AsyncEngine(EngineConfig(model_path=str(path), num_threads=count)) for count in (1, 2)]
    outcomes = await asyncio.gather(*(each.start() for each in engines), return_exceptions=True)
    for each in engines:
        await each.shutdown()
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConfigError", "NoneType"]


def test_step_is_refused_after_somebody_changed_the_number_and_taken_once_it_is_put_back(path: Path) -> None:
    with engine(path, 1) as changed:
        expected = changed.generate([[1, 2, 3]], GREEDY)[0]
        torch.set_num_threads(2)
        changed.add_request([1, 2, 3], GREEDY)
        with pytest.raises(ConfigError, match=r"torch\.set_num_threads\(1\)"):
            changed.step()
        torch.set_num_threads(1)

        assert [sample.logprobs for sample in finish(changed)] == [expected.logprobs]
