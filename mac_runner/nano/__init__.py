"""nano: a small inference engine, exact, deterministic and readable. It imports torch, and nothing of mac_runner.

    with InferenceEngine(EngineConfig(model_path="Qwen/Qwen2.5-0.5B")) as engine:
        samples = engine.generate(prompts, SamplingParams(temperature=0.7, max_tokens=256), num_samples_per_prompt=4)

**Whole.** `engine.generate(prompts, sampling_params, num_samples_per_prompt)` takes texts or token ids, and gives
`TrainingSample`s: prompt and completion tokens, a log-probability each, the finish reason, the version of the
weights.

**Step by step.** `add_request(prompt, params, num_samples=1, *, stream=False) -> request_id`, `step() -> finished
samples`, `step_deltas() -> every token of those that stream`, `has_pending()`, `abort(request_id)`. What takes time
about a request another thread may do beside a step: `add_prepared(prepare_request(…))` is `add_request(…)`.

**Weights.** `update_weights(state_dict, blocking=False, version=None)` is applied between two steps;
`get_weight_version()`, `flush_cache()`, `pause("abort" | "wait" | "keep")`, `resume()`, `sleep(drop_weights=False)`,
`wake()`, `shutdown()`.

**Many callers.** `AsyncEngine(config)`, `await start()`, then `async for delta in engine.stream(prompt, params,
num_samples)`, `await engine.generate(…)`, or `handle = await engine.submit(…)` with `handle.cancel()`; weights,
pauses and `stats()` as above, awaited; `engine.engine` has the `tokenizer` (`encode`, `decode`,
`encode_chat(messages)`), `model_config` and `max_model_len`. All errors are `NanoError`s.

**Several processes.** `EngineConfig(tensor_parallel_size=2)`: the same API and the same bits. When one of them fails
all end, and every call raises `RankFailedError`.

**Parts.** `schedule(waiting, running, cache, config)`, `sample_with_logprobs(logits, temperatures)`,
`model_forward(model, batch, store)` and `compute_block_hash(token_ids, prefix_hash)` are functions of their own. What
they are given is made by `Sequence(…)`, `build_model(read_state_dict(directory), read_model_config(directory), …)`,
`make_batch(pieces, block_size)` and `make_kv_store(config, num_blocks, …)`.

What is exact: on a CPU, with the compiled attention (`attention="auto"`), a request's tokens and log-probabilities have
the same bits alone and in any crowd, with and without a prefix found in the cache, and however its prompt was cut. They
may differ between machines, between versions of torch, and between numbers of threads; on a GPU; and with
`attention="torch"`.
"""

from __future__ import annotations

# First, because it decides how torch is loaded.
from mac_runner.nano.cpu import threads as _threads  # noqa: F401

# isort: split
from mac_runner.nano.architecture import ModelConfig, read_model_config
from mac_runner.nano.async_engine import AsyncEngine, RequestStream
from mac_runner.nano.attention import ForwardBatch, KVStore, Piece, make_batch, make_kv_store
from mac_runner.nano.cache import CacheAllocation, PagedKVCache, RadixKVCache, compute_block_hash
from mac_runner.nano.checkpoint import StateDict, read_state_dict
from mac_runner.nano.config import EngineConfig, SchedulerConfig
from mac_runner.nano.engine import EngineState, EngineStats, InferenceEngine
from mac_runner.nano.errors import (
    ConfigError,
    ConstraintError,
    EngineStoppedError,
    InvalidRequestError,
    MissingTensorError,
    ModelError,
    ModelNotFoundError,
    NanoError,
    NonFiniteLogitsError,
    PromptTooLongError,
    QueueFullError,
    RankFailedError,
    RequestError,
    UnexpectedTensorError,
    UnknownArchitectureError,
    WrongShapeError,
)
from mac_runner.nano.model import Model, build_model, model_forward
from mac_runner.nano.sampler import sample_with_logprobs
from mac_runner.nano.sampling_params import SamplingParams, recommended_sampling
from mac_runner.nano.scheduler import SchedulerOutput, schedule
from mac_runner.nano.sequence import Delta, Sequence, StopChecker, TokenLogprob, TrainingSample, VersionSpan
from mac_runner.nano.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "AsyncEngine",
    "CacheAllocation",
    "ConfigError",
    "ConstraintError",
    "Delta",
    "EngineConfig",
    "EngineState",
    "EngineStats",
    "EngineStoppedError",
    "ForwardBatch",
    "InferenceEngine",
    "InvalidRequestError",
    "KVStore",
    "MissingTensorError",
    "Model",
    "ModelConfig",
    "ModelError",
    "ModelNotFoundError",
    "NanoError",
    "NonFiniteLogitsError",
    "PagedKVCache",
    "Piece",
    "PromptTooLongError",
    "QueueFullError",
    "RadixKVCache",
    "RankFailedError",
    "RequestError",
    "RequestStream",
    "SamplingParams",
    "SchedulerConfig",
    "SchedulerOutput",
    "Sequence",
    "StateDict",
    "StopChecker",
    "TokenLogprob",
    "Tokenizer",
    "TrainingSample",
    "UnexpectedTensorError",
    "UnknownArchitectureError",
    "VersionSpan",
    "WrongShapeError",
    "build_model",
    "compute_block_hash",
    "load_tokenizer",
    "make_batch",
    "make_kv_store",
    "model_forward",
    "read_model_config",
    "read_state_dict",
    "recommended_sampling",
    "sample_with_logprobs",
    "schedule",
]
