"""One engine and what its server knows of the model: a client's `Job`, in either protocol, becomes a `Generation`.

`answered` sends what becomes of it, in the words of a `Writer`. Lists and inquiries are answered from the `ModelCard`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import count
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import Request, Response
from pydantic import Field

from mac_runner.nano.architecture import ModelConfig, expected_shapes
from mac_runner.nano.async_engine import AsyncEngine, RequestStream
from mac_runner.nano.checkpoint import file_stats
from mac_runner.nano.config import EngineConfig, SamplingParams, recommended_sampling
from mac_runner.nano.engine import BaseEngine
from mac_runner.nano.errors import InvalidRequestError, NanoError, PromptTooLongError
from mac_runner.nano.parallel.world import ALONE, World
from mac_runner.nano.sequence import Delta, TrainingSample
from mac_runner.nano.server.http import (
    QUOTED_CHARS_MAX,
    SERVER_ERROR,
    Body,
    JsonObject,
    Many,
    RefusedError,
    Stream,
    answer,
    long_answer,
    refusal_of,
    unless_gone,
)
from mac_runner.nano.tokenizer import Tokenizer

ANY_OBJECT = json.dumps({"type": "object"})
"""The schema of any JSON object."""
WRITE_BYTES_MAX = 64 << 10
"""The most of a stream that is joined for one write. What came for a client that did not read for long may be more."""
_SETTINGS = frozenset(each.name for each in fields(SamplingParams))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A served model. `digest` identifies its directory: the names, sizes and times of its files."""

    name: str
    num_parameters: int
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


def card_of(engine: BaseEngine, name: str | None) -> ModelCard:
    """The card of a loaded model; its name is by default that of its directory, or the one on the hub."""
    stats = file_stats(engine.directory)
    marks = "\n".join(f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats.items())
    given = engine.config.model_path
    directory = Path(given).expanduser()
    return ModelCard(
        name=name or (directory.resolve().name if directory.is_dir() else given),
        num_parameters=sum(prod(shape) for shape in expected_shapes(engine.model_config).values()),
        context_tokens=engine.max_model_len,
        size_bytes=sum(stat.st_size for file, stat in stats.items() if file.endswith(".safetensors")),
        changed_unix_s=max((stat.st_mtime for stat in stats.values()), default=0.0),
        digest=hashlib.sha256(marks.encode()).hexdigest(),
        template=(engine.tokenizer.chat_template or "") if engine.tokenizer is not None else "",
        shape=engine.model_config,
    )


class SamplingBody(Body):
    """The settings that both protocols have, under the names of `SamplingParams`."""

    temperature: Annotated[float | None, Field(ge=0)] = None
    top_k: Annotated[int | None, Field(ge=-1)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0)] = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | Annotated[Many[str], Field(max_length=64)] | None = None

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """`defaults` with the settings that the request has, whatever else it has. Raises InvalidRequestError."""
        named = _SETTINGS & type(self).model_fields.keys()
        given: dict[str, Any] = {name: value for name in named if (value := getattr(self, name)) is not None}
        if isinstance(self.stop, str):
            given["stop"] = (self.stop,)
        if self.top_k is not None:
            given["top_k"] = max(self.top_k, 0)
        return replace(defaults, **given)


def schema_text(schema: object) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def message_of(role: str, content: str, **more: object) -> JsonObject:
    """A message for a chat template, without what is empty."""
    return {"role": role, "content": content, **{name: value for name, value in more.items() if value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Messages for the model's chat template, and further variables for it."""

    messages: tuple[Mapping[str, object], ...]
    variables: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Prompts to be completed with the same settings.

    A completion has `limit` tokens at most, in place of `params.max_tokens`; None lets it fill the rest of the context.
    `context_tokens` is a context shorter than the model's. With `thinks` the model thinks first, and its thought is
    separated from the answer. Jobs of one `conversation` begin alike.
    """

    prompts: tuple[str | tuple[int, ...] | Chat, ...]
    params: SamplingParams
    limit: int | None
    num_samples: int = 1
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
    text = prompt if isinstance(prompt, str) else _chat_text(prompt, tokenizer)
    chars_max = tokenizer.chars_max(context_tokens)
    if chars_max is not None and len(text) > chars_max:
        raise PromptTooLongError(
            f"the prompt has {len(text)} characters, more than the context of {context_tokens} tokens can hold"
        )
    return tuple(tokenizer.encode(text, add_special_tokens=isinstance(prompt, str)))


def _chat_text(chat: Chat, tokenizer: Tokenizer) -> str:
    if "tool_calls" not in (tokenizer.chat_template or ""):
        for index, message in enumerate(chat.messages):
            if "tool_calls" in message:
                raise InvalidRequestError(f"messages.{index}.tool_calls: the model's chat template has no tool calls")
    return tokenizer.chat_text(list(chat.messages), chat.variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Two clocks, of seconds since 1970 and monotonic seconds, and a function that sleeps for so many seconds."""

    unix_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Piece(NamedTuple):
    """The next delta, and the index of its completion, counted over all prompts of the job."""

    place: int
    delta: Delta


class Course(NamedTuple):
    """The times of a request, in seconds of one clock."""

    began_s: float
    first_token_s: float
    ended_s: float


class Writer(Protocol):
    """The words of a protocol for one answer. `is_long` says that it takes long to write in one piece."""

    @property
    def media_type(self) -> str: ...

    @property
    def is_long(self) -> bool: ...

    def piece(self, piece: Piece) -> bytes: ...

    def end(self, samples: Sequence[TrainingSample], course: Course) -> bytes:
        """What ends a stream; its pieces have the samples' words."""
        ...

    def error(self, refusal: RefusedError) -> bytes: ...

    def whole(self, samples: Sequence[TrainingSample], course: Course) -> JsonObject:
        """The answer in one piece; the samples of each prompt are consecutive."""
        ...


class Generation:
    """A job under way. The caller ends it with `cancel`, whether it was finished or not."""

    def __init__(
        self,
        prompts: list[tuple[int, ...]],
        streams: list[RequestStream],
        num_samples: int,
        *,
        began_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.prompts = prompts
        self._num_samples = num_samples
        self._streams = streams
        self._current = streams[0]
        self._samples = dict[int, TrainingSample]()
        self._clock = clock
        self._began_s = began_s
        self._first_token_s = 0.0

    async def pieces(self) -> AsyncIterator[Piece]:
        """All pieces, prompt by prompt. Raises the error of the first completion that has one."""
        for first, stream in zip(count(step=self._num_samples), self._streams, strict=False):
            self._current = stream
            async for delta in stream:
                self._first_token_s = self._first_token_s or self._clock()
                place = first + delta.sample_index
                if delta.sample is not None:
                    if delta.sample.finish_reason == "abort":
                        message = "the request was ended before it was finished: the engine was paused"
                        raise RefusedError(503, message, SERVER_ERROR, "aborted")
                    self._samples[place] = delta.sample
                yield Piece(place, delta)

    def samples(self) -> list[TrainingSample]:
        return [self._samples[place] for place in sorted(self._samples)]

    def course(self) -> Course:
        return Course(self._began_s, self._first_token_s, self._clock())

    async def streamed(self, writer: Writer) -> AsyncGenerator[bytes]:
        """All pieces as bytes, joined where several are there. An error is written behind them, and ends the stream.

        After WRITE_BYTES_MAX other tasks have their turn.
        """
        data, num_completions = b"", len(self.prompts) * self._num_samples
        try:
            async for piece in self.pieces():
                data += writer.piece(piece)
                # The last one goes out with what ends the stream; what is here already goes out together.
                has_more = self._current.has_more
                if len(self._samples) < num_completions and (not has_more or len(data) >= WRITE_BYTES_MAX):
                    yield data
                    data = b""
                    if self._current.has_more:
                        await asyncio.sleep(0)
            yield data + writer.end(self.samples(), self.course())
        except NanoError as error:
            yield data + writer.error(refusal_of(error))
        finally:
            self.cancel()

    async def finish(self) -> None:
        async for _ in self.pieces():
            pass

    def cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()


async def answered(generation: Generation, writer: Writer, request: Request, *, is_streamed: bool) -> Response:
    """The answer to a request, in one piece or as a stream. The generation ends with it, or with the client."""
    if is_streamed:
        return Stream(generation.streamed(writer), writer.media_type)
    try:
        await unless_gone(request.receive, generation.finish())
    finally:
        generation.cancel()
    samples, course = generation.samples(), generation.course()
    if writer.is_long:
        return await long_answer(lambda: writer.whole(samples, course))
    return answer(writer.whole(samples, course))


@dataclass(kw_only=True, eq=False)
class Service:
    """What all handlers share. `thread` encodes texts, which would hold up the event loop."""

    engine: AsyncEngine
    card: ModelCard
    defaults: SamplingParams
    context_tokens: int
    times: Times
    thread: ThreadPoolExecutor
    numbers: count[int] = field(default_factory=lambda: count(1))
    """Those of answers, for their ids."""

    def require_model(self, name: str) -> None:
        """Raise RefusedError for a model that is not served here, in the words that clients of Ollama look for."""
        if name not in (self.card.name, f"{self.card.name}:latest"):
            message = f"model {name[:QUOTED_CHARS_MAX]!r} not found"
            raise RefusedError(404, message, "not_found_error", "model_not_found", field="model")

    def spell(self, token_id: int) -> str:
        """The text of one token, special ones included."""
        return self.text((token_id,))

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        tokenizer = self.engine.engine.tokenizer
        return "" if tokenizer is None else tokenizer.decode(token_ids, skip_special_tokens=False)

    async def begin(self, job: Job, request: Request, *, stream: bool) -> Generation:
        """Queue a job. If it is wrong, this raises, and nothing of it is queued.

        Only compiling may take long: it ends with the client. The rest takes no longer than a step, and the client is
        watched only after it: otherwise one that leaves just as this ends would leave a generation behind that no
        handler cancels.
        """
        began_s = self.times.monotonic_s()
        if job.params.is_constrained:
            await unless_gone(request.receive, self.engine.compile(job.params))
        loop, tokenizer = asyncio.get_running_loop(), self.engine.engine.tokenizer
        if len(job.prompts) * job.num_samples > self.engine.config.max_waiting:
            raise InvalidRequestError(f"{len(job.prompts) * job.num_samples} completions are more than may ever wait")
        context = min(self.context_tokens, job.context_tokens or self.context_tokens)
        prompts = [await loop.run_in_executor(self.thread, tokens_of, each, tokenizer, context) for each in job.prompts]
        streams = list[RequestStream]()
        try:
            for prompt in prompts:
                room = context - len(prompt)
                if room < 1:
                    raise PromptTooLongError(
                        f"the prompt has {len(prompt)} tokens, longer than the context of {context} allows"
                    )
                # A completion ends with the context.
                params = replace(job.params, max_tokens=room if job.limit is None else min(job.limit, room))
                submitted = self.engine.submit(
                    prompt, params, job.num_samples, stream=stream, conversation=job.conversation
                )
                streams.append(await submitted)
        except BaseException:
            for begun in streams:
                begun.cancel()
            raise
        return Generation(prompts, streams, job.num_samples, began_s=began_s, clock=self.times.monotonic_s)


@asynccontextmanager
async def open_service(
    config: EngineConfig, *, times: Times | None = None, name: str | None = None, world: World = ALONE
) -> AsyncIterator[Service]:
    """A running engine with its service, shut down at the end. Raises NanoError. This process is rank 0 of `world`."""
    engine = AsyncEngine(config, world)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nano-tokens")
    try:
        await engine.start()
        yield Service(
            engine=engine,
            card=card_of(engine.engine, name),
            defaults=recommended_sampling(engine.engine.directory),
            context_tokens=engine.engine.context_tokens,
            times=times or Times(),
            thread=thread,
        )
    finally:
        await engine.shutdown()
        thread.shutdown()
