"""The engine: one model, which serves many requests at once.

It owns the weights, the memory of the KV cache and the requests under way. Single-threaded: all calls come from one
thread. `AsyncEngine` serves many callers.
"""

from __future__ import annotations

from mac_runner.nano.architecture import read_model_config
from mac_runner.nano.attention import Piece, make_batch
from mac_runner.nano.base_engine import BaseEngine, EngineState, EngineStats
from mac_runner.nano.batching import ContinuousBatch
from mac_runner.nano.cache import make_cache
from mac_runner.nano.checkpoint import find_model
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.cpu.threads import ThreadPin
from mac_runner.nano.errors import ConfigError, ModelError
from mac_runner.nano.intake import Intake, PreparedRequest
from mac_runner.nano.parallel.ranks import NONE_JOINED, Joined, make_runner
from mac_runner.nano.runner import WeightSync
from mac_runner.nano.sampler import Row, choose
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.sequence import Delta, TrainingSample
from mac_runner.nano.tokenizer import load_tokenizer


class InferenceEngine(BaseEngine):
    """One model and its requests: add requests, and take steps while there are any."""

    def __init__(self, config: EngineConfig, joined: Joined = NONE_JOINED) -> None:
        """Load the model; the other ranks of it are started here, or have `joined`."""
        if config.data_parallel_size > 1:
            raise ConfigError(
                f"EngineConfig.data_parallel_size = {config.data_parallel_size}: an InferenceEngine is one replica"
            )
        self.config = config
        self._threads = ThreadPin(config.num_threads, config.tensor_parallel_size)
        self.directory = find_model(config.model_path)
        self.model_config = read_model_config(self.directory)
        self.tokenizer = load_tokenizer(self.directory)
        self._runner = make_runner(config, self.model_config, self.directory, self._threads.count, joined)
        self.max_model_len = self._runner.max_model_len
        num_blocks = self.num_blocks = self._runner.num_blocks
        self._intake = Intake(config, self.tokenizer, self.model_config, self.max_model_len, num_blocks)
        cache = make_cache(config, num_blocks)
        self._batch = ContinuousBatch(cache, config.scheduling(), self._runner.forward, self.tokenizer)
        self._sync = WeightSync(self._runner, self.model_config, on_install=cache.set_version)
        self._unfetched = list[TrainingSample]()
        self.state = EngineState.RUNNING
        self._warm_up()
        self._threads.hold()  # Last: an engine that could not be made blocks no other.

    def add_prepared(self, request: PreparedRequest, request_id: int | None = None) -> int:
        """Queue a request; its number, which a leader may give. Raises QueueFullError."""
        self._require_alive()
        self._require_room(request.num_samples)
        sequences = self._intake.sequences(request, request_id)
        self._batch.add(sequences)
        return sequences[0].request_id

    def step_deltas(self) -> list[Delta]:
        self._require_alive()
        self._threads.check()
        self._sync.poll()
        if self.state not in (EngineState.RUNNING, EngineState.DRAINING):
            return []
        deltas = self._batch.step(self._sync.version, admits=self.state is EngineState.RUNNING)
        self._settle()
        return deltas

    def step_along(self) -> list[Delta]:
        """Take a step with replicas that all take it; one without work computes a token of nothing."""
        deltas = self.step_deltas()
        if not (deltas or self._batch.running):
            self._batch.idle()
        return deltas

    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        if self.state is EngineState.RUNNING:
            return self.has_pending()
        return self.state is EngineState.DRAINING and bool(self._batch.running)

    def has_pending(self) -> bool:
        return bool(self._batch.waiting or self._batch.running or self._unfetched)

    def abort_deltas(self, request_id: int | None = None) -> list[Delta]:
        deltas = self._batch.abort(request_id, self._sync.version)
        self._settle()
        return deltas

    def flush_cache(self) -> None:
        self._batch.cache.flush()

    def _drop(self, *, weights: bool) -> None:
        self._batch.cache.flush()
        self._runner.drop_store()
        if weights:
            self._runner.drop_weights()

    def _restore(self) -> None:
        if not self._runner.has_weights:
            if self._sync.version:
                raise ModelError(
                    f"weights of version {self._sync.version} were dropped: update_weights before waking up"
                )
            self._runner.replace(self._runner.load(self.directory))
        self._runner.restore_store()

    def stats(self) -> EngineStats:
        self._check()
        counts, counters = self._batch.cache.counts(), self._batch.counters
        return EngineStats(
            num_waiting=len(self._batch.waiting),
            num_running=len(self._batch.running),
            num_blocks=self._batch.cache.num_blocks,
            num_free_blocks=counts.free,
            num_cached_blocks=counts.cached,
            num_steps=counters.steps,
            num_prompt_tokens=counters.prompt_tokens,
            num_cached_prompt_tokens=counters.cached_prompt_tokens,
            num_completion_tokens=counters.completion_tokens,
            num_preemptions=counters.preemptions,
            weight_version=self._sync.version,
        )

    def shutdown(self) -> None:
        self._sync.close()
        self._batch.abort(None, self._sync.version)
        self._runner.close()
        self._threads.release()
        self.state = EngineState.STOPPED

    def _warm_up(self) -> None:
        """Compute one token, so that everything is loaded when the first request comes."""
        batch = make_batch([Piece([0], 0, 1, [0])], self.config.block_size)
        choose(self._runner.forward(batch), [Row(params=SamplingParams(temperature=0.0))])

    def _check(self) -> None:
        self._runner.check()

    def _num_waiting(self) -> int:
        return len(self._batch.waiting)

    def _num_running(self) -> int:
        return len(self._batch.running)
