"""How long does a short request wait for its first token beside a long one, and how long do streams pause?

A random model of the Qwen2 kind on one thread. A long prompt is half computed when a short one comes, while another
request is generating. Seconds of the processor in the quickest round, so other work does not count: to the short one's
first token alone and beside the long one, and the longest step, which is the longest pause of a stream. The cache holds
the prompts of a round and little more: the first rounds come to memory that was never used, which the system has to
clear. Run `python benchmarks/nano_first_token.py`; the last line is one JSON row, whose `ratio` is to be at most 2.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# Before anything else loads torch: it decides how torch's threads wait.
import mac_runner.nano as _nano  # noqa: F401  # isort: skip

import torch

from benchmarks.machine import row
from benchmarks.nano_peers.setting import SIZES, make_random_model, random_prompts
from mac_runner.nano import EngineConfig, InferenceEngine, SamplingParams

ONE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
MANY = SamplingParams(max_tokens=1000, temperature=0.0, ignore_eos=True)


def first_token_s(engine: InferenceEngine, prompt: list[int]) -> tuple[float, float]:
    """The time to the first token of a prompt that comes now, and that of the longest step until then."""
    began_s, longest_s, request_id = time.process_time(), 0.0, engine.add_request(prompt, ONE)
    while True:
        step_s = time.process_time()
        samples = engine.step()
        longest_s = max(longest_s, time.process_time() - step_s)
        if any(sample.request_id == request_id for sample in samples):
            return time.process_time() - began_s, longest_s


def measure(engine: InferenceEngine, options: argparse.Namespace) -> dict[str, float]:
    """One round; no prompt has anything in common with an earlier one."""
    vocab_size, tokens_per_step = engine.model_config.vocab_size, engine.config.tokens_per_step
    engine.flush_cache()
    long, short, stream = random_prompts(3, options.long, vocab_size)
    short = short[: options.short]
    alone_s, _ = first_token_s(engine, short)
    engine.flush_cache()
    streaming, waiting = engine.add_request(stream[:64], MANY), engine.add_request(long, ONE)
    for _ in range(options.long // tokens_per_step // 2):
        engine.step()
    beside_s, pause_s = first_token_s(engine, short)
    for request_id in (streaming, waiting):
        engine.abort(request_id)
    return {"alone_s": alone_s, "beside_s": beside_s, "pause_s": pause_s}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=SIZES, default="5m")
    parser.add_argument("--long", type=int, default=8000)
    parser.add_argument("--short", type=int, default=64)
    parser.add_argument("--tokens-per-step", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        config = EngineConfig(
            model_path=str(make_random_model(options.model, Path(scratch), window=2 * options.long)),
            num_threads=1,
            max_tokens_per_batch=options.tokens_per_step,
            max_model_len=None,
            num_blocks=(options.long + 2000) // 16,
        )
        with InferenceEngine(config) as engine:
            rounds = [measure(engine, options) for _ in range(options.rounds)]
    best = {name: round(min(each[name] for each in rounds), 4) for name in rounds[0]}
    ratio = round(best["beside_s"] / best["alone_s"], 2)
    print(row(benchmark="nano_first_token", torch=torch.__version__, **vars(options), **best, ratio=ratio))


if __name__ == "__main__":
    main()
