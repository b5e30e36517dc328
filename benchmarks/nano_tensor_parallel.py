"""What do two processes gain nano over one, and two threads over one? Milliseconds of a decode step, in one run.

A random model of the Qwen2 kind; every request has a prompt of its own. The contestants take turns, and all have the
same bits but for that with two threads. A step's time is that of the quickest: other work delays processes that
wait for each other in most of their steps, and the quickest shows the machine by itself. Run
`python benchmarks/nano_tensor_parallel.py`; the last line is one JSON row.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# Before anything else loads torch: it decides how torch's threads wait.
import mac_runner.nano as _nano  # noqa: F401  # isort: skip

import torch

from benchmarks.machine import row
from benchmarks.nano_peers.nano import Nano
from benchmarks.nano_peers.setting import DTYPES, SIZES, Setting, make_random_model, random_prompts
from mac_runner.types import JsonValue

CONTESTANTS: dict[str, dict[str, object]] = {
    "1_process_1_thread": {"num_threads": 1},
    "1_process_2_threads": {"num_threads": 2},
    "2_processes_gloo": {"num_threads": 1, "tensor_parallel_size": 2, "tensor_parallel_gather": "torch"},
    "2_processes_memory": {"num_threads": 1, "tensor_parallel_size": 2, "tensor_parallel_gather": "memory"},
}


def compare(setting: Setting, batches: Sequence[int], options: argparse.Namespace) -> Iterator[JsonValue]:
    """A line of the table for each size of batch. One engine at a time: a process has one number of threads."""
    steps_s = {(batch, name): list[float]() for batch in batches for name in CONTESTANTS}
    for _ in range(options.rounds):
        for name, changes in CONTESTANTS.items():
            with closing(Nano(setting, **changes)) as engine:
                for batch in batches:
                    prompts = random_prompts(batch, options.prompt, setting.model.vocab_size)
                    steps_s[batch, name] += engine.run(prompts, options.new).decode_steps_s()
    for batch in batches:
        quickest = {name: round(1000 * min(steps_s[batch, name]), 2) for name in CONTESTANTS}
        yield {"dtype": setting.dtype, "batch": batch, "ms_per_step": dict(quickest)}


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
            directory = make_random_model(size, Path(scratch))
            for dtype in options.dtypes:
                setting = Setting(
                    directory=directory,
                    dtype=dtype,
                    num_threads=1,
                    max_batch=max(options.batches),
                    max_length=options.prompt + options.new,
                    clock_name="wall",
                )
                for line in compare(setting, options.batches, options):
                    assert isinstance(line, dict)
                    lines.append({"model": size, **line})
                    print(json.dumps(lines[-1]), flush=True)
    settings = {name: getattr(options, name) for name in ("prompt", "new", "rounds")}
    print(row(benchmark="nano_tensor_parallel", torch=torch.__version__, **settings, lines=lines))


if __name__ == "__main__":
    main()
