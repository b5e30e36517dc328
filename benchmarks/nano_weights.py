"""How long does nano take from an update of its weights to the first token of the new version?

A random model of the Qwen2 kind generates for several requests with one thread. New weights come as tensors in memory,
as a safetensors file, and from a trainer in another process, which sends them over gloo. Each way has its rounds in
turn; the seconds are medians. `tokens_per_s` is the rate while weights come, and without any. Run
`python benchmarks/nano_weights.py`; the last line is one JSON row.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

# Before anything else loads torch: it decides how torch's threads wait.
import mac_runner.nano as _nano  # noqa: F401  # isort: skip

import torch

from benchmarks.machine import row
from benchmarks.nano_peers.setting import SIZES, make_random_model
from mac_runner.nano import AsyncEngine, EngineConfig, SamplingParams, read_state_dict
from mac_runner.types import JsonValue

TRAINER = """
import sys
from pathlib import Path
from mac_runner.nano import WeightSender, read_state_dict
weights = read_state_dict(Path(sys.argv[1]))
with WeightSender("127.0.0.1:0") as sender:
    print(sender.address, flush=True)
    while True:
        sender.send(weights)
"""
PARAMS = SamplingParams(max_tokens=100_000, ignore_eos=True, seed=1)


async def first_token_s(engine: AsyncEngine, update: Callable[[], Awaitable[int]]) -> tuple[float, float]:
    """The seconds from an update to the first token of its version, and the tokens in a second until then."""
    stream = await engine.submit([1, 2, 3], PARAMS)
    others = [await engine.submit([number], PARAMS, stream=False) for number in range(3)]
    await anext(stream)
    before, began_s = (await engine.stats()).num_completion_tokens, time.perf_counter()
    updating = asyncio.ensure_future(update())
    await updating
    while stream.has_more:
        await anext(stream)
    await anext(stream)
    took_s, tokens = time.perf_counter() - began_s, (await engine.stats()).num_completion_tokens - before
    for handle in (stream, *others):
        handle.cancel()
    return took_s, tokens / took_s


def measured(directory: Path, rounds: int) -> dict[str, JsonValue]:
    """The figures of one model, with a trainer beside it."""
    command = [sys.executable, "-c", TRAINER, str(directory)]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    try:
        assert trainer.stdout is not None
        return asyncio.run(measure(directory, rounds, trainer.stdout.readline().strip()))
    finally:
        trainer.kill()
        trainer.communicate()


async def measure(directory: Path, rounds: int, address: str) -> dict[str, JsonValue]:
    """The figures of one model, whose trainer is at `address`."""
    engine = AsyncEngine(EngineConfig(model_path=str(directory), num_threads=1, dtype="float32"))
    await engine.start()
    try:
        weights = await asyncio.to_thread(read_state_dict, directory)

        async def nothing() -> int:
            await asyncio.sleep(1.0)
            return 0

        async def from_file() -> int:
            return await engine.update_weights(await asyncio.to_thread(read_state_dict, directory))

        ways: dict[str, Callable[[], Awaitable[int]]] = {
            "memory": lambda: engine.update_weights(weights),
            "file": from_file,
            "trainer": lambda: engine.receive_weights(address),
            "none": nothing,
        }
        found = {way: [await first_token_s(engine, update) for _ in range(rounds)] for way, update in ways.items()}
    finally:
        await engine.shutdown()
    megabytes = sum(tensor.nbytes for tensor in weights.values()) / 1e6
    seconds: dict[str, JsonValue] = {
        way: round(median(each for each, _ in figures), 3) for way, figures in found.items() if way != "none"
    }
    rates: dict[str, JsonValue] = {way: round(median(rate for _, rate in figures), 1) for way, figures in found.items()}
    return {"megabytes": round(megabytes, 1), "first_token_s": seconds, "tokens_per_s": rates}


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=["5m", "50m"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    lines = list[JsonValue]()
    with tempfile.TemporaryDirectory() as scratch:
        for size in options.models:
            directory = make_random_model(size, Path(scratch))
            lines.append({"model": size, **measured(directory, options.rounds)})
            print(json.dumps(lines[-1]), flush=True)
    print(row(benchmark="nano_weights", torch=torch.__version__, rounds=options.rounds, lines=lines))


if __name__ == "__main__":
    main()
