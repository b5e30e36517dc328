"""What do two processes gain nano over one, and two threads over one? Milliseconds of a decode step, in one run.

A random model of the Qwen2 kind; every request has a prompt of its own. The contestants take turns, and all have the
same bits but for that with two threads. A step's time is that of the quickest: processes that wait for each other are
held up by whatever else runs in most of their steps, and this says what the machine would do by itself. Run
`python benchmarks/nano_tensor_parallel.py`; the last line is one JSON row.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

# First of all that load torch: it decides how torch's threads wait.
from mac_runner.nano import EngineConfig, InferenceEngine, SamplingParams  # isort: skip

import torch

from benchmarks.machine import row
from mac_runner.types import JsonValue
from tests.nano.tiny_models import make_model

SIZES: dict[str, dict[str, object]] = {
    "5m": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 8_192},
    "50m": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 12, "vocab_size": 32_000},
    "125m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 16, "vocab_size": 32_000},
}
HEAD_DIM = 64
CONTESTANTS: dict[str, dict[str, object]] = {
    "1_process_1_thread": {"num_threads": 1},
    "1_process_2_threads": {"num_threads": 2},
    "2_processes_gloo": {"num_threads": 1, "tensor_parallel_size": 2, "tensor_parallel_gather": "torch"},
    "2_processes_memory": {"num_threads": 1, "tensor_parallel_size": 2, "tensor_parallel_gather": "memory"},
}


def steps_s(engine: InferenceEngine, prompts: list[list[int]], num_new: int) -> Iterator[float]:
    """The times of the steps in which all sequences say a token and no prompt is computed."""
    engine.flush_cache()
    # One number for the process: that of the last engine to start, unless it is set again.
    torch.set_num_threads(engine.num_threads)
    for prompt in prompts:
        engine.add_request(prompt, SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True))
    while engine.has_pending():
        before, began_s = engine.stats(), time.perf_counter()
        engine.step()
        taken_s, after = time.perf_counter() - began_s, engine.stats()
        if before.num_running == after.num_running == len(prompts) and not before.num_waiting:
            yield taken_s


def compare(directory: Path, dtype: str, options: argparse.Namespace) -> Iterator[dict[str, JsonValue]]:
    """A line of the table for each size of batch."""
    chance, vocab_size = Random(0), 8_192
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(
                InferenceEngine(
                    EngineConfig(
                        model_path=str(directory),
                        dtype=dtype,  # type: ignore[arg-type]
                        max_batch_size=max(options.batches),
                        max_tokens_per_batch=2_048,
                        max_model_len=options.prompt + options.new,
                        **settings,  # type: ignore[arg-type]
                    )
                )
            )
            for name, settings in CONTESTANTS.items()
        }
        for batch in options.batches:
            prompts = [[chance.randrange(vocab_size) for _ in range(options.prompt)] for _ in range(batch)]
            times: dict[str, list[float]] = {name: [] for name in engines}
            for _ in range(options.rounds):
                for name, engine in engines.items():
                    times[name] += steps_s(engine, prompts, options.new)
            yield {name: round(1000 * min(found), 2) for name, found in times.items()} | {"batch": batch}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    lines = list[JsonValue]()
    with tempfile.TemporaryDirectory() as scratch:
        for size in options.models:
            directory, heads = Path(scratch) / size, int(str(SIZES[size]["hidden_size"])) // HEAD_DIM
            directory.mkdir()
            make_model(directory, "qwen2", num_attention_heads=heads, num_key_value_heads=heads // 2, **SIZES[size])
            for dtype in options.dtypes:
                for line in compare(directory, dtype, options):
                    lines.append({"model": size, "dtype": dtype, **line})
                    print(json.dumps(lines[-1]), flush=True)
    settings = {name: getattr(options, name) for name in ("prompt", "new", "rounds")}
    print(row(benchmark="nano_tensor_parallel", unit="ms_per_step", torch=torch.__version__, **settings, lines=lines))


if __name__ == "__main__":
    main()
