"""nano, as a program uses it step by step; log-probabilities included, as always."""

from __future__ import annotations

from benchmarks.nano_peers.setting import TOKENS_PER_STEP, Setting
from benchmarks.nano_peers.timing import Prompts, Run, Stopwatch
from mac_runner.nano import EngineConfig, InferenceEngine, SamplingParams


class Nano:
    """An engine with room for all sequences."""

    name = "nano"

    def __init__(self, setting: Setting, **changes: object) -> None:
        self._setting = setting
        settings = {"num_threads": setting.num_threads, **changes}
        self._engine = InferenceEngine(
            EngineConfig(
                model_path=str(setting.directory),
                dtype=setting.dtype,  # type: ignore[arg-type]
                max_batch_size=setting.max_batch,
                max_tokens_per_batch=TOKENS_PER_STEP,
                max_model_len=setting.max_length,
                num_blocks=(setting.max_batch + 1) * -(-setting.max_length // 16),
                **settings,  # type: ignore[arg-type]
            )
        )

    def run(self, prompts: Prompts, num_new: int) -> Run:
        """On an empty prefix cache."""
        engine, counts = self._engine, self._engine.stats
        engine.flush_cache()
        params = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)
        said = dict[int, list[int]]()
        watch = Stopwatch(self._setting.clock)
        for prompt in prompts:
            said[engine.add_request(prompt, params)] = []
        num_tokens = counts().num_completion_tokens
        while engine.has_pending():
            for sample in engine.step():
                said[sample.request_id] = list(sample.completion_tokens)
            before, num_tokens = num_tokens, counts().num_completion_tokens
            watch.step(num_tokens - before)
        return watch.stop(list(said.values()))

    def close(self) -> None:
        """Give everything back."""
        self._engine.shutdown()
