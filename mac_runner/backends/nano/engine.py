"""The loaded engine: requests in its terms, its samples as replies. Importing this module imports torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from mac_runner.backends.base import BackendRequest
from mac_runner.backends.chat_template import (
    Conversation,
    Rendered,
    Renderer,
    ends_in_thought,
    notice_of_forms,
    renderer_of,
    renderers_for,
    token_reply,
)
from mac_runner.backends.nano.settings import NanoConfig
from mac_runner.backends.updates import policy_of
from mac_runner.checkpoints import digest_of
from mac_runner.errors import (
    BroadcastError,
    ConfigError,
    EngineDeadError,
    RequestRefusedError,
    StaleVersionError,
    TransientBackendError,
    UpdateInProgressError,
    WeightMismatchError,
    WeightUpdateError,
    boundary,
)
from mac_runner.nano import (
    AsyncEngine,
    EngineConfig,
    EngineStoppedError,
    ModelError,
    NanoError,
    QueueFullError,
    RequestError,
    SamplingParams,
    StateDict,
    Tokenizer,
    errors,
    read_weights,
    recommended_sampling,
)
from mac_runner.types import (
    EFFORT_KEYS,
    FinishReason,
    JsonValue,
    Prompt,
    Reply,
    Request,
    Sampling,
    TokenTrace,
)
from mac_runner.weights import Broadcast, WeightUpdate, stale


class LoadedEngine:
    """A running engine and what belongs to it."""

    def __init__(
        self,
        engine: AsyncEngine,
        config: NanoConfig,
        key: tuple[str, ...],
        thinking: Mapping[bool, str],
        *,
        cache_tokens: int,
        thread: ThreadPoolExecutor,
    ) -> None:
        """Raises ConfigError for a model, or a setting of `key`, that no prompt can be written with."""
        tokenizer = engine.engine.tokenizer
        if tokenizer is None:
            raise ConfigError.at((*key, "model"), f"{config.model} has no tokenizer.json")
        try:
            self._defaults = recommended_sampling(engine.engine.directory)
        except NanoError as error:
            raise ConfigError.at((*key, "model"), str(error)) from error
        renderer = partial(_renderer_for, tokenizer, key=key)
        self._renderers = renderers_for(renderer, config.chat_template_kwargs, thinking, section=key)
        self._engine = engine
        self._thread = thread
        self.cache_tokens = cache_tokens

    @classmethod
    async def open(cls, asked: BackendRequest[NanoConfig], thread: ThreadPoolExecutor) -> Self:
        """Load the model. Raises ConfigError or EngineDeadError."""
        config = asked.settings
        key = ("model_definitions", asked.name, "nano_config")
        for variable in Tokenizer.reserved_variables & config.chat_template_kwargs.keys():
            text = "the name means something else in every template"
            raise ConfigError.at((*key, "chat_template_kwargs", variable), text)
        try:
            with boundary(EngineDeadError, "nano did not start"):
                engine = AsyncEngine(engine_config(config))
                await engine.start()
        except EngineDeadError as error:
            if isinstance(error.__cause__, NanoError):
                raise ConfigError.at(key, str(error.__cause__)) from error
            raise
        try:
            stats = await engine.stats()
            cache_tokens = stats.num_blocks * engine.config.block_size
            loaded = cls(engine, config, key, asked.thinking, cache_tokens=cache_tokens, thread=thread)
        except BaseException:
            await engine.shutdown()
            raise
        if asked.decoding != "none" and any(one.shape.opens_thought for one in loaded._renderers.values()):
            asked.say(notice_of_forms(asked.name))
        return loaded

    async def generate(self, request: Request, *, traces: bool) -> Reply:
        loop = asyncio.get_running_loop()
        renderer = self._renderers[request.sampling.thinking]
        text, ids = await loop.run_in_executor(self._thread, renderer.render, request.prompt.messages)
        room = self._engine.engine.context_tokens - len(ids)
        if room <= 0:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        with verdicts():
            params = params_of(request.sampling, request.prompt, defaults=self._defaults, room_tokens=room)
            (sample,) = await self._engine.generate(ids, params, conversation=request.conversation)
        trace = TokenTrace(
            prompt_ids=sample.prompt_tokens, completion_ids=sample.completion_tokens, logprobs=sample.logprobs
        )
        return token_reply(
            "nano",
            sample.text or "",
            sample.finish_reason,
            trace=trace,
            cached=sample.num_cached_tokens,
            # A grammar holds from the first token on, and leaves no room for a thought.
            is_thinking=ends_in_thought(text) and not params.is_constrained,
            traces=traces,
            policy=policy_of([span.version for span in sample.version_spans] or [sample.weight_version]),
        )

    async def update_weights(self, update: WeightUpdate) -> str | None:
        """Install weights between two steps; the digest of those that a trainer sent.

        Raises a WeightUpdateError, or EngineDeadError.
        """
        digests: list[str] = []
        with boundary(WeightUpdateError, "nano"), update_verdicts():
            present = await self._engine.get_weight_version()
            if update.version <= present:
                raise StaleVersionError(stale(update.version, present))
            version, is_blocking, source = update.version, update.blocking, update.weights
            if isinstance(source, Broadcast):
                await self._engine.receive_weights(
                    source.address,
                    version,
                    blocking=is_blocking,
                    timeout_s=source.timeout_s,
                    keep=lambda tensors: digests.append(digest_of(tensors)),
                    engines=None if update.is_shared else 1,
                )
            else:
                weights = await asyncio.to_thread(_read, source)
                await self._engine.update_weights(weights, version, blocking=is_blocking)
        return digests[0] if digests else None

    async def close(self) -> None:
        await self._engine.shutdown()


def _renderer_for(tokenizer: Tokenizer, settings: Mapping[str, JsonValue], *, key: tuple[str, ...]) -> Renderer:
    """Raises ConfigError for a template that no prompt can be written with."""

    def write(conversation: Conversation) -> Rendered:
        text = tokenizer.chat_text(conversation, settings)
        return Rendered(text, tokenizer.encode(text, add_special_tokens=False))

    origin = (*key, "chat_template_kwargs" if settings else "model")
    return renderer_of(None if tokenizer.chat_template is None else write, tokenizer.encode, key=origin)


def engine_config(config: NanoConfig) -> EngineConfig:
    return EngineConfig(
        model_path=config.model,
        max_batch_size=config.max_num_seqs_upper_bound,
        max_tokens_per_batch=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        dtype=config.dtype,
        device=config.device,
        num_threads=config.num_threads,
        tensor_parallel_size=config.tensor_parallel_size,
        data_parallel_size=config.data_parallel_size,
        kv_cache_bytes=int(config.kv_cache_gib * (1 << 30)),
        gpu_memory_utilization=config.gpu_memory_utilization,
    )


@contextmanager
def verdicts() -> Iterator[None]:
    """Turn the engine's errors about a request into BackendErrors."""
    try:
        yield
    except EngineStoppedError as error:
        raise EngineDeadError(f"nano: {error}") from error
    except QueueFullError as error:
        raise TransientBackendError(f"nano: {error}", is_busy=True) from error
    except errors.ReplicaLostError as error:
        raise TransientBackendError(f"nano: {error}", is_engine_death=True) from error
    except RequestError as error:
        raise RequestRefusedError(f"nano: {error}") from error


def _read(weights: StateDict | Path) -> StateDict:
    """The weights in memory, where they are in files."""
    if not isinstance(weights, Path):
        return weights
    try:
        return read_weights(weights.expanduser())
    except ModelError as error:
        raise WeightUpdateError(f"weights: {error}") from error


@contextmanager
def update_verdicts() -> Iterator[None]:
    """Turn the engine's errors about new weights into WeightUpdateErrors."""
    try:
        yield
    except EngineStoppedError as error:
        raise EngineDeadError(f"nano: {error}") from error
    except ModelError as error:
        raise WeightMismatchError(f"weights: {error}") from error
    except errors.WeightUpdateError as error:
        kind = next(kind for known, kind in _UPDATE_ERRORS.items() if isinstance(error, known))
        raise kind(f"weights: {error}") from error


_UPDATE_ERRORS: Final[Mapping[type[errors.WeightUpdateError], type[WeightUpdateError]]] = {
    errors.StaleVersionError: StaleVersionError,
    errors.UpdateInProgressError: UpdateInProgressError,
    errors.BroadcastError: BroadcastError,
    errors.WeightUpdateError: WeightUpdateError,
}


def params_of(sampling: Sampling, prompt: Prompt, *, defaults: SamplingParams, room_tokens: int) -> SamplingParams:
    """The engine's sampling parameters; a reply is at most `room_tokens` long.

    `defaults` are the model's own, for settings that `sampling` leaves open. A schema says more than a list of choices,
    so a prompt with both is held to the schema.
    """
    given = {name: value for name, value in asdict(sampling).items() if value is not None and name not in EFFORT_KEYS}
    params = replace(defaults, **given | {"max_tokens": min(sampling.max_tokens, room_tokens)})
    if prompt.schema is not None:
        return replace(params, json_schema=json.dumps(dict(prompt.schema)))
    return params if prompt.choices is None else replace(params, choices=prompt.choices)
