"""How fast does nano decode? Against Transformers and against a bare loop over a static batch, in one run.

Random models of the Qwen2 kind; every request has a prompt of its own and says as many tokens. The contestants take
turns. A decode step's time is the 10th percentile of the steps in which all sequences say a token, for on a machine
that others use too the mean measures them; end to end is the best of the rounds. Then requests that share a long
prefix, and how long each model takes to start. `--processor-time` measures the time that the process had a processor,
which says something on a busy machine too. Run `python benchmarks/nano_decode.py`; the last line is one JSON row.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

# First of all that load torch: it decides how torch's threads wait.
from mac_runner.nano import EngineConfig, InferenceEngine, SamplingParams  # isort: skip

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteriaList

from benchmarks.machine import row
from benchmarks.static_loop import StaticLoop
from mac_runner.nano.linear import can_pack
from mac_runner.types import JsonValue
from tests.nano.tiny_models import make_model

SIZES: dict[str, dict[str, object]] = {
    "5m": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4},
    "50m": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 12, "num_attention_heads": 8},
    "125m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 12},
}
VOCABULARIES = {"5m": 8_192, "50m": 32_000, "125m": 32_000}
KV_HEADS = {"5m": 2, "50m": 4, "125m": 4}
TOKENS_PER_STEP = 2_048
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(slots=True)
class Timing:
    """What one contestant took: times between tokens of the whole batch, and all of it."""

    batch: int
    num_new: int
    steps_s: list[float] = field(default_factory=list)
    totals_s: list[float] = field(default_factory=list)

    @property
    def decode(self) -> float:
        """Tokens a second while everybody decodes."""
        return self.batch / sorted(self.steps_s)[len(self.steps_s) // 10]

    @property
    def end_to_end(self) -> float:
        """Tokens a second, prompts included."""
        return self.batch * self.num_new / min(self.totals_s)


class Stopwatch:
    """Times between ticks; the first tick ends the prompts."""

    clock: Callable[[], float] = time.perf_counter

    def __init__(self) -> None:
        self.ticks = [Stopwatch.clock()]

    def tick(self) -> None:
        """Note the time."""
        self.ticks.append(Stopwatch.clock())

    def into(self, timing: Timing) -> None:
        """Hand over what was noted."""
        self.tick()
        timing.totals_s.append(self.ticks[-1] - self.ticks[0])
        timing.steps_s += [after - before for before, after in zip(self.ticks[1:-2], self.ticks[2:-1], strict=True)]


class Ticking:
    """Tells a stopwatch of every token that Transformers has generated, and stops nothing."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        """No row is done."""
        self._watch.tick()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def run_nano(engine: InferenceEngine, prompts: Sequence[list[int]], timing: Timing) -> None:
    """Log-probabilities included, as always."""
    engine.flush_cache()
    params = SamplingParams(temperature=0.0, max_tokens=timing.num_new, ignore_eos=True)
    watch = Stopwatch()
    for prompt in prompts:
        engine.add_request(prompt, params)
    is_decoding = False
    while engine.has_pending():
        before = engine.stats()
        engine.step()
        # Steps that also compute prompts come first; after them, everybody says a token in every step.
        after = engine.stats().num_completion_tokens - before.num_completion_tokens
        if is_decoding or after == len(prompts):
            is_decoding = True
            watch.tick()
    watch.into(timing)


def run_transformers(model: torch.nn.Module, prompts: Sequence[list[int]], timing: Timing) -> None:
    """`generate` with a configuration that touches no logits."""
    watch = Stopwatch()
    count = timing.num_new
    settings = GenerationConfig(max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
    with torch.inference_mode():
        model.generate(  # type: ignore[operator,unused-ignore]
            torch.tensor(prompts),
            attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
            generation_config=settings,
            stopping_criteria=StoppingCriteriaList([Ticking(watch)]),
        )
    watch.into(timing)


def run_static(loop: StaticLoop, prompts: Sequence[list[int]], timing: Timing) -> None:
    """Neither log-probabilities nor lengths of their own."""
    watch = Stopwatch()
    loop.generate(torch.tensor(prompts), timing.num_new, watch.tick)
    watch.into(timing)


def random_prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Nothing in common."""
    chance = Random(count)
    return [[chance.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def compare(directory: Path, dtype: str, batch: int, options: argparse.Namespace) -> dict[str, JsonValue]:
    """One line of the table."""
    num_threads, length, num_new = options.threads, options.prompt, options.new
    engine = InferenceEngine(
        EngineConfig(
            model_path=str(directory),
            dtype=dtype,  # type: ignore[arg-type]
            num_threads=num_threads,
            max_batch_size=max(batch, 8),
            # The peers compute all prompts at once; so, the first is not finished before the last has begun to speak.
            max_tokens_per_batch=TOKENS_PER_STEP,
            max_model_len=length + num_new,
            num_blocks=(batch + 1) * (-(-(length + num_new) // 16)),
        )
    )
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=DTYPES[dtype], attn_implementation="sdpa").eval()
    loop = StaticLoop(directory, DTYPES[dtype], batch, length + num_new)
    prompts = random_prompts(batch, length, engine.model_config.vocab_size)
    timings = {name: Timing(batch, num_new) for name in ("nano", "transformers", "static")}
    runs: dict[str, Callable[[], None]] = {
        "nano": lambda: run_nano(engine, prompts, timings["nano"]),
        "transformers": lambda: run_transformers(peer, prompts, timings["transformers"]),
        "static": lambda: run_static(loop, prompts, timings["static"]),
    }
    for _ in range(options.rounds):
        for run in runs.values():
            run()
    engine.shutdown()
    gc.collect()
    nano, theirs, static = timings["nano"], timings["transformers"], timings["static"]
    return {
        "dtype": dtype,
        "batch": batch,
        "nano_decode_tok_s": round(nano.decode),
        "transformers_decode_tok_s": round(theirs.decode),
        "static_decode_tok_s": round(static.decode),
        "decode_over_transformers": round(nano.decode / theirs.decode, 2),
        "decode_over_static": round(nano.decode / static.decode, 2),
        "nano_tok_s": round(nano.end_to_end),
        "end_to_end_over_transformers": round(nano.end_to_end / theirs.end_to_end, 2),
    }


def shared_prefix(directory: Path, dtype: str, options: argparse.Namespace) -> dict[str, JsonValue]:
    """Requests whose prompts begin alike, all asked at once; end to end."""
    count, common, own, num_new = 15, 2_000, 32, 16
    engine = InferenceEngine(
        EngineConfig(model_path=str(directory), dtype=dtype, num_threads=options.threads, max_batch_size=16)  # type: ignore[arg-type]
    )
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=DTYPES[dtype], attn_implementation="sdpa").eval()
    vocab_size = engine.model_config.vocab_size
    prefix = random_prompts(1, common, vocab_size)[0]
    prompts = [prefix + rest for rest in random_prompts(count, own, vocab_size)]
    nano, theirs = Timing(count, num_new), Timing(count, num_new)
    run_nano(engine, prompts, nano)
    run_transformers(peer, prompts, theirs)
    engine.shutdown()
    return {"nano_s": round(min(nano.totals_s), 2), "transformers_s": round(min(theirs.totals_s), 2),
            "times_as_fast": round(min(theirs.totals_s) / min(nano.totals_s), 1)}  # fmt: skip


def make(size: str, directory: Path) -> Path:
    """A random model's directory."""
    directory.mkdir()
    changes = {**SIZES[size], "vocab_size": VOCABULARIES[size], "num_key_value_heads": KV_HEADS[size]}
    return make_model(directory, "qwen2", max_position_embeddings=4_096, **changes)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    if options.processor_time:
        Stopwatch.clock = time.process_time
    if options.new <= max(options.batches) * options.prompt / TOKENS_PER_STEP + 4:
        parser.error("--new is too small: the first sequence would be finished before all say a token in one step")
    dtypes = [name for name in options.dtypes if can_pack(DTYPES[name], torch.device("cpu"))]
    lines, prefixes, starts = list[JsonValue](), dict[str, JsonValue](), dict[str, JsonValue]()
    with tempfile.TemporaryDirectory() as scratch:
        for size in options.models:
            directory = make(size, Path(scratch) / size)
            began_s = Stopwatch.clock()
            InferenceEngine(EngineConfig(model_path=str(directory), num_threads=options.threads)).shutdown()
            starts[size] = round(Stopwatch.clock() - began_s, 2)
            for dtype in dtypes:
                for batch in options.batches:
                    line = {"model": size, **compare(directory, dtype, batch, options)}
                    print(json.dumps(line), flush=True)
                    lines.append(line)
            prefixes[size] = shared_prefix(directory, dtypes[-1], options)
            print(json.dumps({"model": size, "shared_prefix": prefixes[size]}), flush=True)
    settings = {name: getattr(options, name) for name in ("prompt", "new", "threads", "processor_time")}
    left_out = [name for name in options.dtypes if name not in dtypes]
    print(row(
        benchmark="nano_decode", torch=torch.__version__, **settings, lines=lines, shared_prefix=prefixes,
        start_s=starts, without=left_out,
    ))  # fmt: skip


if __name__ == "__main__":
    main()
