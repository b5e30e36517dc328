"""How fast does nano decode? Beside Transformers, a bare loop over a static batch, llama.cpp and vLLM, in one run.

Random models of the Qwen2 kind; every request has a prompt of its own and says as many tokens. The contestants take
turns. A decode step's time is the 10th percentile of the steps in which all sequences say a token and no prompt is
computed; end to end is the best of the rounds. Then requests that share a long prefix, requests that are almost all
prompt, how long nano takes to start in a fresh process, and whether its memory grows. `--contests` chooses. llama.cpp
takes part where `llama_cpp` and `gguf` are installed, vLLM where `--vllm-python` names the Python of its environment.
`--processor-time` measures the processor time of a process, which is meaningful on a busy machine too.

Run `python benchmarks/nano_decode.py`; the last line is one JSON row, in which `targets` says what is met.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# Before anything else loads torch: it decides how torch's threads wait.
import mac_runner.nano as _nano  # noqa: F401  # isort: skip

import torch

from benchmarks.machine import row
from benchmarks.nano_peers import contest
from benchmarks.nano_peers.contest import Line, SharedPrefix
from benchmarks.nano_peers.fresh import measure_memory, measure_start
from benchmarks.nano_peers.roofline import Roof, measure_roof
from benchmarks.nano_peers.roster import PEERS, contestants, reasons_to_leave_out
from benchmarks.nano_peers.setting import DTYPES, SIZES, TOKENS_PER_STEP, Setting, make_random_model
from benchmarks.nano_peers.targets import targets
from benchmarks.nano_peers.timing import CLOCKS
from mac_runner.nano.model import can_pack
from mac_runner.types import JsonValue

PREFIX_PEERS = ("nano", "transformers", "vllm")
"""The static loop and llama.cpp's batches cannot reuse a prefix."""
CONTESTS = ("batches", contest.SHARED_PREFIX.name, contest.PROMPT_HEAVY.name)
START_SIZE = "5m"


def arguments() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens that each request says")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-rounds", type=int, default=20, help="rounds over which memory may not grow")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--contests", nargs="+", choices=CONTESTS, default=list(CONTESTS))
    parser.add_argument("--vllm-python", type=Path, help="the Python of an environment that holds vLLM for the CPU")
    parser.add_argument("--processor-time", action="store_true", help="measure processor time instead of wall time")
    asked = parser.parse_args()
    if asked.new <= max(asked.batches) * asked.prompt / TOKENS_PER_STEP + 4:
        parser.error("--new is too small: the first sequence would be finished before all say a token in one step")
    if asked.memory_rounds < 2:
        parser.error("--memory-rounds is too small: growth shows from the second round on")
    if asked.vllm_python is not None and not asked.vllm_python.is_file():
        parser.error(f"--vllm-python: there is no {asked.vllm_python}")
    return asked


class Benchmark:
    """The arguments, the contestants, and the measurements."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.clock_name = "processor" if asked.processor_time else "wall"
        self.left_out = reasons_to_leave_out(asked.peers, asked.vllm_python)
        self.names = ["nano", *(name for name in asked.peers if name not in self.left_out)]
        self.roofs = dict[str, Roof]()
        self.lines = list[Line]()
        self.prefixes: dict[str, list[SharedPrefix]] = {contest.SHARED_PREFIX.name: [], contest.PROMPT_HEAVY.name: []}
        for dtype in asked.dtypes:
            if can_pack(DTYPES[dtype], torch.device("cpu")):
                self.roofs[dtype] = measure_roof(DTYPES[dtype], CLOCKS[self.clock_name])
            else:
                self.left_out[dtype] = "this processor has no instructions for it"

    def measure(self, directory: Path) -> None:
        """The contests of one model, in each type."""
        for dtype, roof in self.roofs.items():
            if "batches" in self.asked.contests:
                self._measure_batches(directory, dtype, roof)
            if contest.SHARED_PREFIX.name in self.asked.contests:
                names = [name for name in self.names if name in PREFIX_PEERS]
                self._measure_prefix(directory, dtype, contest.SHARED_PREFIX, names)
            if contest.PROMPT_HEAVY.name in self.asked.contests:
                self._measure_prefix(directory, dtype, contest.PROMPT_HEAVY, self.names)

    def _measure_batches(self, directory: Path, dtype: str, roof: Roof) -> None:
        setting = self._setting(directory, dtype, max(self.asked.batches), self.asked.prompt + self.asked.new)
        with contestants(self.names, setting, self.asked.vllm_python) as field:
            for batch in self.asked.batches:
                line = contest.compare(field, setting, batch, self.asked.prompt, self.asked.rounds, roof)
                print(json.dumps(line.as_json()), flush=True)
                self.lines.append(line)
        del field
        gc.collect()

    def _measure_prefix(self, directory: Path, dtype: str, requests: contest.Requests, names: Sequence[str]) -> None:
        setting = self._setting(directory, dtype, requests.count, requests.length)
        with contestants(names, setting, self.asked.vllm_python) as field:
            prefix = contest.share_prefix(field, setting, requests, self.asked.rounds)
        print(json.dumps({requests.name: prefix.as_json()}), flush=True)
        self.prefixes[requests.name].append(prefix)
        del field
        gc.collect()

    def _setting(self, directory: Path, dtype: str, max_batch: int, max_length: int) -> Setting:
        return Setting(
            directory=directory,
            dtype=dtype,
            num_threads=self.asked.threads,
            max_batch=max_batch,
            max_length=max_length,
            clock_name=self.clock_name,
        )


def main() -> None:
    """Measure and print."""
    asked = arguments()
    torch.set_num_threads(asked.threads)
    start, rss_mb = None, list[float]()
    with tempfile.TemporaryDirectory() as scratch:
        directories = {size: make_random_model(size, Path(scratch)) for size in asked.models}
        if START_SIZE in directories:
            start = measure_start(directories[START_SIZE], asked.threads, asked.rounds)
            rss_mb = measure_memory(directories[START_SIZE], asked.threads, asked.memory_rounds)
        benchmark = Benchmark(asked)
        for directory in directories.values():
            benchmark.measure(directory)
    shared = benchmark.prefixes[contest.SHARED_PREFIX.name]
    settings = {name: getattr(asked, name) for name in ("prompt", "new", "rounds", "threads", "processor_time")}
    print(row(
        benchmark="nano_decode",
        torch=torch.__version__,
        **settings,
        left_out=dict[str, JsonValue](benchmark.left_out),
        roof={dtype: asdict(roof) for dtype, roof in benchmark.roofs.items()},
        lines=[line.as_json() for line in benchmark.lines],
        shared_prefix=[prefix.as_json() for prefix in shared],
        prompt_heavy=[prefix.as_json() for prefix in benchmark.prefixes[contest.PROMPT_HEAVY.name]],
        start_s=None if start is None else asdict(start),
        rss_mb={"second_round": rss_mb[1], "last_round": rss_mb[-1], "rounds": len(rss_mb)} if rss_mb else None,
        targets=[target.as_json() for target in targets(benchmark.lines, shared, start, rss_mb)],
    ))  # fmt: skip


if __name__ == "__main__":
    main()
