"""The fresh process of `fresh.py`: `start MODEL THREADS BEGAN_S` or `memory MODEL THREADS ROUNDS`; prints JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from random import Random

BATCH, PROMPT, NUM_NEW = 8, 256, 32


def start(model: str, num_threads: int, began_s: float) -> dict[str, float]:
    """Nothing is imported before the clock is read."""
    from mac_runner.nano import EngineConfig, InferenceEngine

    import_s = time.monotonic() - began_s
    with InferenceEngine(EngineConfig(model_path=model, num_threads=num_threads)):
        return {"import_s": import_s, "ready_s": time.monotonic() - began_s, "processor_s": time.process_time()}


def memory(model: str, num_threads: int, rounds: int) -> dict[str, list[float]]:
    """New prompts in every round."""
    from mac_runner.nano import EngineConfig, InferenceEngine, SamplingParams

    # Memory that was never touched is not resident, so the cache has room for one round and not for many.
    num_blocks = BATCH * -(-(PROMPT + NUM_NEW) // 16)
    config = EngineConfig(model_path=model, num_threads=num_threads, max_batch_size=BATCH, num_blocks=num_blocks)
    params = SamplingParams(temperature=1.0, max_tokens=NUM_NEW, ignore_eos=True)
    chance, rss_mb = Random(0), list[float]()
    with InferenceEngine(config) as engine:
        for _ in range(rounds):
            tokens = range(engine.model_config.vocab_size)
            engine.generate([chance.choices(tokens, k=PROMPT) for _ in range(BATCH)], params)
            rss_mb.append(_rss_mb())
    return {"rss_mb": rss_mb}


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGESIZE") / 1e6, 1)


def main() -> None:
    """Measure one of the two."""
    what, model, num_threads, last = sys.argv[1:]
    threads = int(num_threads)
    found = start(model, threads, float(last)) if what == "start" else memory(model, threads, int(last))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
