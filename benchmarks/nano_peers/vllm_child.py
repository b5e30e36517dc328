"""vLLM on the CPU, in the Python that has it: a program that answers each line of prompts with what they took.

Run by `vllm.py` as `python -m benchmarks.nano_peers.vllm_child SETTING`. Between two lines it sleeps, so the caller
and this never compute at the same time.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any, TextIO

from benchmarks.nano_peers.timing import CLOCKS, Clock, Prompts, Run, Stopwatch


def start(setting: dict[str, Any]) -> Any:
    """The engine, in this process, so that its steps can be timed and its processor time is ours."""
    return import_module("vllm").LLM(
        model=setting["model"],
        dtype=setting["dtype"],
        max_num_seqs=setting["max_batch"],
        max_model_len=setting["max_length"],
        max_num_batched_tokens=max(setting["tokens_per_step"], setting["max_length"]),
        skip_tokenizer_init=True,
        enable_prefix_caching=True,
        enforce_eager=True,
        disable_log_stats=True,
    )


def run(llm: Any, prompts: Prompts, num_new: int, clock: Clock) -> Run:
    """One batch, on an empty prefix cache."""
    sampling = import_module("vllm.sampling_params")
    engine = llm.llm_engine
    engine.reset_prefix_cache()
    params = sampling.SamplingParams(
        temperature=0.0,
        max_tokens=num_new,
        ignore_eos=True,
        detokenize=False,
        output_kind=sampling.RequestOutputKind.DELTA,
    )
    said: list[list[int]] = [[] for _ in prompts]
    watch = Stopwatch(clock)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        num_tokens = 0
        for output in engine.step():
            fresh = output.outputs[0].token_ids
            said[int(output.request_id)] += fresh
            num_tokens += len(fresh)
        watch.step(num_tokens)
    return watch.stop(said)


def answers() -> TextIO:
    """The standard output as it was; whatever vLLM prints goes to the standard error from now on."""
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return ours


def main() -> None:
    """Start, say so, and answer until there is nothing more to read."""
    setting = json.loads(sys.argv[1])
    with answers() as out:
        llm = start(setting)
        print(json.dumps({"vllm": import_module("vllm").__version__}), file=out, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            done = run(llm, asked["prompts"], asked["num_new"], CLOCKS[setting["clock"]])
            print(json.dumps(done.as_json()), file=out, flush=True)


if __name__ == "__main__":
    main()
