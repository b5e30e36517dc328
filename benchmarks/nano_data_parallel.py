"""What do two replicas of nano gain over one process, independent or in lock step, and what does a round cost?

A random model of the Qwen2 kind; every process computes with one thread. Requests of different lengths come at once.
The contestants take turns. The seconds are those of the quickest turn, because replicas that wait for each other show
other work on the machine, and not themselves. A round's own cost is that of rounds without a step: the message to all,
the reduction, the reports. Beside it is the step that one replica computes. Run
`python benchmarks/nano_data_parallel.py`; the last line is one JSON row.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

# Before anything else loads torch: it decides how torch's threads wait.
import mac_runner.nano as _nano  # noqa: F401  # isort: skip

import torch

from benchmarks.machine import row
from benchmarks.nano_peers.setting import SIZES, make_random_model, random_prompts
from mac_runner.nano import EngineConfig, SamplingParams, read_model_config
from mac_runner.nano.engine import BaseEngine
from mac_runner.nano.parallel.launch import make_engine
from mac_runner.nano.parallel.replicas import ReplicatedEngine
from mac_runner.types import JsonValue

CONTESTANTS: dict[str, dict[str, object]] = {
    "one_process": {},
    "independent": {"data_parallel_size": 2},
    "lock_step": {"data_parallel_size": 2, "data_parallel_mode": "lock_step"},
    "lock_step_sync_4": {"data_parallel_size": 2, "data_parallel_mode": "lock_step", "sync_every": 4},
}
ROUNDS = 300


def start(directory: Path, options: argparse.Namespace, **changes: object) -> BaseEngine:
    """An engine with room for all requests."""
    length = options.prompt + 2 * options.new
    settings = {"model_path": str(directory), "num_threads": 1, "dtype": "float32", "max_batch_size": options.requests}
    blocks = (options.requests + 1) * -(-length // 16)
    config: dict[str, object] = {**settings, "max_model_len": length, "num_blocks": blocks, **changes}
    return make_engine(EngineConfig(**config))  # type: ignore[arg-type]


def seconds(engine: BaseEngine, directory: Path, options: argparse.Namespace) -> float:
    """The time until all requests are finished, on an empty prefix cache."""
    engine.flush_cache()
    chance, prompts = Random(1), random_prompts(options.requests, options.prompt, vocab_size(directory))
    began_s = time.perf_counter()
    for prompt in prompts:
        most = chance.randrange(options.new // 4, 2 * options.new)
        engine.add_request(prompt, SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True))
    while engine.has_pending():
        engine.step()
    return time.perf_counter() - began_s


def step_ms(engine: BaseEngine, directory: Path, batch: int, options: argparse.Namespace) -> float:
    """The quickest step in which `batch` sequences decode."""
    params = SamplingParams(temperature=0.0, max_tokens=options.new, ignore_eos=True)
    for prompt in random_prompts(batch, options.prompt, vocab_size(directory)):
        engine.add_request(prompt, params)
    engine.step()
    times_s = list[float]()
    while engine.stats().num_running == batch or not times_s:
        began_s = time.perf_counter()
        engine.step()
        times_s.append(time.perf_counter() - began_s)
    return 1000 * min(times_s)


def round_ms(engine: ReplicatedEngine) -> tuple[float, float]:
    """The median and the quickest time of a round without a step."""
    times_s = list[float]()
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        engine._play()
        times_s.append(time.perf_counter() - began_s)
    return 1000 * median(times_s), 1000 * min(times_s)


def vocab_size(directory: Path) -> int:
    """The tokens that a model knows."""
    return read_model_config(directory).vocab_size


def measure(directory: Path, options: argparse.Namespace) -> dict[str, JsonValue]:
    """A line of the table."""
    engines = {name: start(directory, options, **changes) for name, changes in CONTESTANTS.items()}
    try:
        times_s = {name: list[float]() for name in engines}
        for _ in range(options.rounds):
            for name, engine in engines.items():
                times_s[name].append(seconds(engine, directory, options))
        lock_step = engines["lock_step"]
        assert isinstance(lock_step, ReplicatedEngine)
        round_median, round_quickest = round_ms(lock_step)
        step = step_ms(engines["one_process"], directory, options.requests // 2, options)
    finally:
        for engine in engines.values():
            engine.shutdown()
    quickest: dict[str, JsonValue] = {name: round(min(found), 2) for name, found in times_s.items()}
    return {
        "seconds": quickest,
        "round_ms": round(round_median, 2),
        "quickest_round_ms": round(round_quickest, 2),
        "step_ms": round(step, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=SIZES, default=["5m", "50m"])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    lines = list[JsonValue]()
    with tempfile.TemporaryDirectory() as scratch:
        for size in options.models:
            directory = make_random_model(size, Path(scratch))
            lines.append({"model": size, **measure(directory, options)})
            print(json.dumps(lines[-1]), flush=True)
    settings = {name: getattr(options, name) for name in ("requests", "prompt", "new", "rounds")}
    print(row(benchmark="nano_data_parallel", torch=torch.__version__, **settings, lines=lines))


if __name__ == "__main__":
    main()
