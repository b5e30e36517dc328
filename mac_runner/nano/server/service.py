"""One engine and what its server knows of the model: it takes jobs, and yields their completions.

A `Job` is what a client asks for, in either protocol. `Service.begin` queues it as a `Generation`. The `ModelCard` is
what lists and inquiries are answered from.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from starlette.types import Receive

from mac_runner.nano.architecture import ModelConfig, expected_shapes
from mac_runner.nano.async_engine import AsyncEngine, RequestStream
from mac_runner.nano.base_engine import BaseEngine
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import InvalidRequestError, NanoError, PromptTooLongError
from mac_runner.nano.parallel.world import ALONE, World
from mac_runner.nano.sampling_params import SamplingParams, recommended_sampling
from mac_runner.nano.sequence import Delta, TrainingSample
from mac_runner.nano.server.answers import Refusal, given_up, refusal_of, unknown_model, unless_gone
from mac_runner.nano.tokenizer import Tokenizer

ANY_OBJECT = json.dumps({"type": "object"})
"""The schema of any JSON object."""
WRITE_BYTES_MAX = 64 << 10
"""The most of a stream that is joined for one write. What came for a client that did not read for long may be more."""
_SHORT = (("B", 1_000_000_000), ("M", 1_000_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A served model. `digest` identifies its directory: the names, sizes and times of its files."""

    name: str
    architecture: str
    num_parameters: int
    dtype: str
    context_tokens: int
    size_bytes: int
    changed_unix_s: float
    digest: str
    template: str
    shape: ModelConfig

    @property
    def can_think(self) -> bool:
        """Whether the chat template has a switch for thinking, as Qwen3's has."""
        return "enable_thinking" in self.template

    @property
    def parameter_size(self) -> str:
        """The number of parameters, for people."""
        for unit, size in _SHORT:
            if self.num_parameters >= size:
                return f"{self.num_parameters / size:.1f}{unit}"
        return f"{self.num_parameters / 1000:.0f}K"


def card_of(engine: BaseEngine, name: str | None) -> ModelCard:
    """The card of a loaded model; its name is by default that of its directory, or the one on the hub."""
    files = sorted(path for path in engine.directory.iterdir() if path.is_file())
    stats = [(path.name, path.stat()) for path in files]
    marks = "\n".join(f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats)
    tokenizer = engine.tokenizer
    return ModelCard(
        name=name or _name_of(engine.config.model_path),
        architecture=engine.model_config.architecture,
        num_parameters=sum(prod(shape) for shape in expected_shapes(engine.model_config).values()),
        dtype=engine.model_config.dtype,
        context_tokens=engine.max_model_len,
        size_bytes=sum(stat.st_size for file, stat in stats if file.endswith(".safetensors")),
        changed_unix_s=max((stat.st_mtime for _, stat in stats), default=0.0),
        digest=hashlib.sha256(marks.encode()).hexdigest(),
        template=(tokenizer.chat_template or "") if tokenizer is not None else "",
        shape=engine.model_config,
    )


def _name_of(model_path: str) -> str:
    directory = Path(model_path).expanduser()
    return directory.resolve().name if directory.is_dir() else model_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Messages for the model's chat template, and further variables for it."""

    messages: tuple[Mapping[str, object], ...]
    variables: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Prompts to be completed with the same settings.

    With `is_open_ended` a completion may fill the rest of the context, and `params.max_tokens` does not count.
    `context_tokens` is a context shorter than the model's. With `thinks` the model thinks first, and its thought is
    separated from the answer. Jobs of one `conversation` begin alike.
    """

    prompts: tuple[str | tuple[int, ...] | Chat, ...]
    params: SamplingParams
    num_samples: int = 1
    is_open_ended: bool = False
    context_tokens: int | None = None
    thinks: bool = False
    conversation: str | None = None


def tokens_of(
    prompt: str | tuple[int, ...] | Chat, tokenizer: Tokenizer | None, context_tokens: int
) -> tuple[int, ...]:
    """The tokens of a prompt.

    Raises InvalidRequestError, and PromptTooLongError for a text that cannot fit, before it is encoded.
    """
    if isinstance(prompt, tuple):
        return prompt
    if tokenizer is None:
        raise InvalidRequestError("text needs a tokenizer, and this model has no tokenizer.json: send token ids")
    is_chat = isinstance(prompt, Chat)
    if isinstance(prompt, Chat) and "tool_calls" not in (tokenizer.chat_template or ""):
        for index, message in enumerate(prompt.messages):
            if "tool_calls" in message:
                raise InvalidRequestError(f"messages.{index}.tool_calls: the model's chat template has no tool calls")
    text = tokenizer.chat_text(list(prompt.messages), prompt.variables) if isinstance(prompt, Chat) else prompt
    chars_max = tokenizer.chars_max(context_tokens)
    if chars_max is not None and len(text) > chars_max:
        raise PromptTooLongError(
            f"the prompt has {len(text)} characters, more than the context of {context_tokens} tokens can hold"
        )
    return tuple(tokenizer.encode(text, add_special_tokens=not is_chat))


def schema_text(schema: object) -> str:
    """A JSON schema as text, for the engine."""
    return schema if isinstance(schema, str) else json.dumps(schema)


def overlaid(defaults: SamplingParams, given: Mapping[str, object]) -> SamplingParams:
    """`defaults` with the settings that are not None. Raises InvalidRequestError."""
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(defaults, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Two clocks, of seconds since 1970 and monotonic seconds, and a function that sleeps for so many seconds."""

    unix_s: Callable[[], float]
    monotonic_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


class Piece(NamedTuple):
    """The next delta, and the index of its completion, counted over all prompts of the job."""

    place: int
    delta: Delta


class Generation:
    """A job under way. The caller ends it with `cancel`, whether it was finished or not."""

    def __init__(self, prompts: list[tuple[int, ...]], streams: list[RequestStream], num_samples: int) -> None:
        self.prompts = prompts
        self.num_completions = len(prompts) * num_samples
        self._streams = streams
        self._current = streams[0]
        self._num_samples = num_samples

    async def pieces(self) -> AsyncIterator[Piece]:
        """All pieces, prompt by prompt. Raises the error of the first completion that has one."""
        for first, stream in zip(count(step=self._num_samples), self._streams, strict=False):
            self._current = stream
            async for delta in stream:
                if delta.sample is not None and delta.sample.finish_reason == "abort":
                    raise given_up("the engine was paused")
                yield Piece(first + delta.sample_index, delta)

    @property
    def has_more(self) -> bool:
        """Whether the next piece is here already: then it is cheaper to send them together."""
        return self._current.has_more

    async def streamed(
        self, write: Callable[[Piece], bytes], end: Callable[[], bytes], fail: Callable[[Refusal], bytes]
    ) -> AsyncGenerator[bytes]:
        """All pieces as bytes, joined where several are there. An error is written behind them, and ends the stream.

        After WRITE_BYTES_MAX other tasks have their turn.
        """
        data, num_open = b"", self.num_completions
        try:
            async for piece in self.pieces():
                data += write(piece)
                num_open -= piece.delta.sample is not None
                # The last one goes out with what ends the stream.
                if num_open and (not self.has_more or len(data) >= WRITE_BYTES_MAX):
                    yield data
                    data = b""
                    if self.has_more:
                        await asyncio.sleep(0)
            yield data + end()
        except NanoError as error:
            yield data + fail(refusal_of(error))
        finally:
            self.cancel()

    async def samples(self) -> list[TrainingSample]:
        """All completions, when they are finished."""
        found = dict[int, TrainingSample]()
        async for place, delta in self.pieces():
            if delta.sample is not None:
                found[place] = delta.sample
        return [found[place] for place in sorted(found)]

    def cancel(self) -> None:
        """End what has not ended."""
        for stream in self._streams:
            stream.cancel()


class Service:
    """What all handlers share. `thread` encodes texts, which would hold up the event loop."""

    def __init__(
        self,
        engine: AsyncEngine,
        card: ModelCard,
        defaults: SamplingParams,
        *,
        cache_tokens: int,
        times: Times,
        thread: ThreadPoolExecutor,
    ) -> None:
        self.engine = engine
        self.card = card
        self.defaults = defaults
        self.times = times
        self.context_tokens = min(card.context_tokens, cache_tokens)
        self.thread = thread
        self._numbers = count(1)

    def require_model(self, name: str) -> None:
        """Raise RefusedError for a model that is not served here."""
        if name not in (self.card.name, f"{self.card.name}:latest"):
            raise unknown_model(name)

    def spell(self, token_id: int) -> str:
        """The text of one token, special ones included."""
        return self.text((token_id,))

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        tokenizer = self.engine.engine.tokenizer
        return "" if tokenizer is None else tokenizer.decode(token_ids, skip_special_tokens=False)

    def number(self) -> int:
        """A number for the next answer's id."""
        return next(self._numbers)

    async def begin(self, job: Job, *, stream: bool, receive: Receive) -> Generation:
        """Queue a job. If it is wrong, this raises, and nothing of it is queued.

        Only compiling may take long: it ends with the client, who leaves by `receive`. The rest takes no longer than a
        step, and the client is watched only after it: otherwise one that leaves just as this ends would leave a
        generation behind that no handler cancels.
        """
        if job.params.is_constrained:
            await unless_gone(receive, self.engine.compile(job.params))
        loop, tokenizer = asyncio.get_running_loop(), self.engine.engine.tokenizer
        if len(job.prompts) * job.num_samples > self.engine.config.max_waiting:
            raise InvalidRequestError(f"{len(job.prompts) * job.num_samples} completions are more than may ever wait")
        context = self._context(job)
        prompts = [await loop.run_in_executor(self.thread, tokens_of, each, tokenizer, context) for each in job.prompts]
        streams = list[RequestStream]()
        try:
            for prompt in prompts:
                params = self._params(job, len(prompt))
                stream_of_one = await self.engine.submit(
                    prompt, params, job.num_samples, stream=stream, conversation=job.conversation
                )
                streams.append(stream_of_one)
        except BaseException:
            for begun in streams:
                begun.cancel()
            raise
        return Generation(prompts, streams, job.num_samples)

    def _params(self, job: Job, num_tokens: int) -> SamplingParams:
        """The job's settings, so that a completion ends with the context."""
        context = self._context(job)
        room = context - num_tokens
        if room < 1:
            raise PromptTooLongError(f"the prompt has {num_tokens} tokens, longer than the context of {context} allows")
        wanted = room if job.is_open_ended else min(job.params.max_tokens, room)
        return replace(job.params, max_tokens=wanted)

    def _context(self, job: Job) -> int:
        return min(self.context_tokens, job.context_tokens or self.context_tokens)


@asynccontextmanager
async def open_service(
    config: EngineConfig, *, times: Times, name: str | None = None, world: World = ALONE
) -> AsyncIterator[Service]:
    """A running engine with its service, shut down at the end. Raises NanoError. This process is rank 0 of `world`."""
    engine = AsyncEngine(config, world)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nano-tokens")
    try:
        await engine.start()
        yield Service(
            engine,
            card_of(engine.engine, name),
            recommended_sampling(engine.engine.directory),
            cache_tokens=engine.engine.num_blocks * config.block_size,
            times=times,
            thread=thread,
        )
    finally:
        await engine.shutdown()
        thread.shutdown()
