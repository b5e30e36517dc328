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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# First of all that load torch: it decides how torch's threads wait.
from mac_runner.nano import EngineConfig, InferenceEngine  # isort: skip

import torch

from benchmarks.machine import row
from benchmarks.nano_decode import DTYPES, SIZES, TOKENS_PER_STEP, Timing, make, random_prompts, run_nano
from mac_runner.types import JsonValue

CONTESTANTS: dict[str, dict[str, object]] = {
    "1_process_1_thread": {"num_threads": 1},
    "1_process_2_threads": {"num_threads": 2},
    "2_processes_gloo": {"num_threads": 1, "tensor_parallel_size": 2, "tensor_parallel_gather": "torch"},
    "2_processes_memory": {"num_threads": 1, "tensor_parallel_size": 2, "tensor_parallel_gather": "memory"},
}


def compare(directory: Path, dtype: str, batches: Sequence[int], options: argparse.Namespace) -> Iterator[JsonValue]:
    """A line of the table for each size of batch."""
    with engines(directory, dtype, max(batches), options) as contestants:
        for batch in batches:
            timings = {name: Timing(batch, options.new) for name in contestants}
            prompts = random_prompts(batch, options.prompt, contestants["1_process_1_thread"].model_config.vocab_size)
            for _ in range(options.rounds):
                for name, engine in contestants.items():
                    # One number for the process: that of the last engine to start, unless it is set again.
                    torch.set_num_threads(engine.num_threads)
                    run_nano(engine, prompts, timings[name])
            quickest = {name: round(1000 * min(timing.steps_s), 2) for name, timing in timings.items()}
            yield {"dtype": dtype, "batch": batch, "ms_per_step": dict(quickest)}


@contextmanager
def engines(
    directory: Path, dtype: str, batch: int, options: argparse.Namespace
) -> Iterator[dict[str, InferenceEngine]]:
    """All contestants, ready."""
    length = options.prompt + options.new
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                InferenceEngine(
                    EngineConfig(
                        model_path=str(directory),
                        dtype=dtype,  # type: ignore[arg-type]
                        max_batch_size=max(batch, 8),
                        max_tokens_per_batch=TOKENS_PER_STEP,
                        max_model_len=length,
                        num_blocks=(batch + 1) * -(-length // 16),
                        **settings,  # type: ignore[arg-type]
                    )
                )
            )
            for name, settings in CONTESTANTS.items()
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    lines = list[JsonValue]()
    with tempfile.TemporaryDirectory() as scratch:
        for size in options.models:
            directory = make(size, Path(scratch) / size)
            for dtype in options.dtypes:
                for line in compare(directory, dtype, options.batches, options):
                    assert isinstance(line, dict)
                    lines.append({"model": size, **line})
                    print(json.dumps(lines[-1]), flush=True)
    settings = {name: getattr(options, name) for name in ("prompt", "new", "rounds")}
    print(row(benchmark="nano_tensor_parallel", torch=torch.__version__, **settings, lines=lines))


if __name__ == "__main__":
    main()
