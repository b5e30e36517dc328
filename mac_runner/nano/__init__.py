"""nano: a small inference engine, exact and deterministic. It imports torch, and nothing of mac_runner.

    with InferenceEngine(EngineConfig(model_path="Qwen/Qwen2.5-0.5B")) as engine:
        samples = engine.generate(prompts, SamplingParams(temperature=0.7, max_tokens=256), num_samples_per_prompt=4)

**Whole.** `generate` takes texts or token ids, and returns a `TrainingSample` for each completion.

**Step by step.** `add_request`, `step`, `step_deltas`, `has_pending`, `abort`. Another thread may run `prepare_request`
beside a step; `add_prepared(prepare_request(…))` is `add_request(…)`.

**Weights.** `update_weights` is applied between two steps. `WeightSender` sends from a trainer's process, and
`AsyncEngine.receive_weights` receives. `get_weight_version`, `flush_cache`, `pause`, `resume`, `sleep`, `wake`,
`shutdown`.

**Many callers.** `AsyncEngine(config)`, `await start()`, then `stream`, `generate`, or `handle = await submit(…)` with
`handle.cancel()`. Its `engine` has the `tokenizer`, `model_config` and `max_model_len`. All errors are `NanoError`s.

**Several processes.** `EngineConfig(tensor_parallel_size=2)`: the same API and the same bits. When one process fails,
all end, and every call raises `RankFailedError`.

**Parts.** `schedule`, `sample_with_logprobs`, `model_forward` and `compute_block_hash` are functions of their own.
`Sequence`, `build_model(read_state_dict(directory), read_model_config(directory), …)`, `make_batch` and
`make_kv_store` make their arguments.

docs/nano.md says what is exact.
"""

from __future__ import annotations

# First, because it decides how torch is loaded.
from mac_runner.nano.cpu import threads as _threads  # noqa: F401

# isort: split
from mac_runner.nano.architecture import ModelConfig, read_model_config
from mac_runner.nano.async_engine import AsyncEngine, RequestStream
from mac_runner.nano.attention import ForwardBatch, KVStore, Piece, make_batch
from mac_runner.nano.cache import CacheAllocation, PagedKVCache, RadixKVCache, compute_block_hash
from mac_runner.nano.checkpoint import StateDict, read_state_dict, read_weights
from mac_runner.nano.config import EngineConfig, SamplingParams, SchedulerConfig, recommended_sampling
from mac_runner.nano.engine import BaseEngine, EngineState, EngineStats, InferenceEngine
from mac_runner.nano.errors import (
    BroadcastError,
    ConfigError,
    ConstraintError,
    DivergenceError,
    EngineStoppedError,
    InvalidRequestError,
    MissingTensorError,
    ModelError,
    ModelNotFoundError,
    NanoError,
    NonFiniteLogitsError,
    NonFiniteWeightError,
    PromptTooLongError,
    QueueFullError,
    RankFailedError,
    RequestError,
    StaleVersionError,
    UnexpectedTensorError,
    UnknownArchitectureError,
    UpdateInProgressError,
    WeightUpdateError,
    WrongDtypeError,
    WrongShapeError,
)
from mac_runner.nano.model import Model, build_model, model_forward
from mac_runner.nano.runner import make_kv_store
from mac_runner.nano.sampler import sample_with_logprobs
from mac_runner.nano.scheduler import SchedulerOutput, schedule
from mac_runner.nano.sequence import Delta, Sequence, StopChecker, TokenLogprob, TrainingSample, VersionSpan
from mac_runner.nano.tokenizer import Tokenizer, load_tokenizer
from mac_runner.nano.weight_transfer import WeightSender

__all__ = [
    "AsyncEngine",
    "BaseEngine",
    "BroadcastError",
    "CacheAllocation",
    "ConfigError",
    "ConstraintError",
    "Delta",
    "DivergenceError",
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
    "NonFiniteWeightError",
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
    "StaleVersionError",
    "StateDict",
    "StopChecker",
    "TokenLogprob",
    "Tokenizer",
    "TrainingSample",
    "UnexpectedTensorError",
    "UnknownArchitectureError",
    "UpdateInProgressError",
    "VersionSpan",
    "WeightSender",
    "WeightUpdateError",
    "WrongDtypeError",
    "WrongShapeError",
    "build_model",
    "compute_block_hash",
    "load_tokenizer",
    "make_batch",
    "make_kv_store",
    "model_forward",
    "read_model_config",
    "read_state_dict",
    "read_weights",
    "recommended_sampling",
    "sample_with_logprobs",
    "schedule",
]
