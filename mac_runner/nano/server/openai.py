"""OpenAI's interface: `/v1/chat/completions`, `/v1/completions`, `/v1/models`.

Request bodies become jobs, completions become OpenAI's objects, and the handlers connect the two. vLLM's additions are
understood, too. With `return_token_ids` a choice also has its tokens and the version of the weights that made the
first of them: all that training needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Literal, cast

from fastapi import Request, Response
from pydantic import Field, JsonValue
from pydantic_core import from_json

from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.sequence import Delta, TokenLogprob, TrainingSample, VersionSpan
from mac_runner.nano.server.answers import (
    SSE,
    JsonObject,
    Stream,
    answer,
    encoded,
    invalid,
    long_answer,
    openai_error,
    unless_gone,
)
from mac_runner.nano.server.bodies import MESSAGES_MAX, TOP_LOGPROBS_MAX, Body, Many, read_request, require_absent
from mac_runner.nano.server.service import ANY_OBJECT, Chat, Generation, Job, Piece, Service, overlaid, schema_text
from mac_runner.nano.tokenizer import Tokenizer

PROMPTS_MAX = 256
SAMPLES_MAX = 128
COMPLETION_TOKENS = 16
"""The tokens of a text completion unless the request says otherwise; OpenAI's default."""
Tokens = Annotated[Many[int], Field(min_length=1)]
Prompts = (
    str
    | Tokens
    | Annotated[Many[str], Field(min_length=1, max_length=PROMPTS_MAX)]
    | Annotated[Many[Tokens], Field(min_length=1, max_length=PROMPTS_MAX)]
)
Spell = Callable[[int], str]
LOGPROB_MIN = -9999.0
"""OpenAI's value for an impossible token; JSON has no infinity."""
_DONE = b"data: [DONE]\n\n"


class StreamOptions(Body):
    """What a stream holds besides its text."""

    include_usage: bool = False


class StructuredOutputs(Body):
    """vLLM's constraints on a reply."""

    json_schema: Annotated[JsonValue, Field(alias="json")] = None
    json_object: bool | None = None
    choice: Annotated[Many[str], Field(min_length=1)] | None = None


class NamedSchema(Body):
    """The schema of a `response_format`."""

    name: str = ""
    description: str | None = None
    json_schema: Annotated[dict[str, JsonValue], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of a reply."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class Part(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """A function that a model has called; its arguments are JSON in a text."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call in an earlier answer, made by another server: this one offers no tools."""

    id: str | None = None
    type: Literal["function"]
    function: CalledFunction

    def plain(self) -> JsonObject:
        """The call for a template, which is given arguments as an object."""
        try:
            arguments = from_json(self.function.arguments)
        except ValueError as error:
            raise invalid(
                f"tool_calls: the arguments of {self.function.name!r} are not JSON: {error}", "messages"
            ) from None
        return {"id": self.id, "type": self.type, "function": {"name": self.function.name, "arguments": arguments}}


class ChatMessage(Body):
    """A message. OpenAI's `developer` is the `system` of templates."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Many[Part] | None = None
    name: str | None = None
    tool_calls: Many[ToolCall] | None = None
    tool_call_id: str | None = None
    # What an answer of OpenAI's has beside its text, where clients send it back.
    refusal: None = None
    audio: None = None
    function_call: None = None

    def plain(self) -> JsonObject:
        """The message for a template."""
        if self.content is None and self.role != "assistant":
            raise invalid(f"content is missing in a message of role {self.role!r}", "messages")
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        more = {
            "name": self.name,
            "tool_calls": [call.plain() for call in self.tool_calls or ()],
            "tool_call_id": self.tool_call_id,
        }
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text, **{name: value for name, value in more.items() if value}}


class OpenaiBody(Body):
    """The fields of both chat and text completions."""

    model: str
    temperature: Annotated[float | None, Field(ge=0, le=100)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    n: Annotated[int | None, Field(ge=1, le=SAMPLES_MAX)] = None
    stop: str | Annotated[Many[str], Field(max_length=64)] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    # vLLM's.
    top_k: Annotated[int | None, Field(ge=-1)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0)] = None
    stop_token_ids: Many[int] | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = None
    # Refused unless they ask for nothing.
    logit_bias: dict[str, JsonValue] | None = None
    store: bool | None = None
    # About the caller and the cost; none changes an answer here. With replicas two of them choose the replica.
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def num_samples(self) -> int:
        """The completions of each prompt."""
        return self.n or 1

    @property
    def conversation(self) -> str | None:
        """What the client names the requests by that begin alike: its key for the prompt cache, or else the user."""
        return self.prompt_cache_key or self.user or None

    def require_heard(self) -> None:
        """Refuse what would have no effect, or is not supported."""
        require_absent(self, "logit_bias", "store")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options needs stream: true", "stream_options")

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatBody(OpenaiBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[Many[ChatMessage], Field(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=TOP_LOGPROBS_MAX)] = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    modalities: Many[Literal["text"]] | None = None
    # Refused unless they ask for nothing.
    tools: Many[JsonValue] | None = None
    functions: Many[JsonValue] | None = None
    audio: dict[str, JsonValue] | None = None
    prediction: dict[str, JsonValue] | None = None
    # Without meaning where there are no tools.
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None

    def job(self, defaults: SamplingParams) -> Job:
        """The job for the engine; `defaults` hold where the request leaves a setting open."""
        self.require_heard()
        require_absent(self, "tools", "functions", "audio", "prediction")
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
        self._require_variables()
        limit = self.max_completion_tokens or self.max_tokens
        params = replace(_params(self, defaults), top_logprobs=self.top_logprobs or 0)
        return Job(
            prompts=(
                Chat(
                    messages=tuple(message.plain() for message in self.messages),
                    variables=self.chat_template_kwargs or {},
                ),
            ),
            params=_held(params if limit is None else replace(params, max_tokens=limit), self.response_format),
            num_samples=self.num_samples,
            is_open_ended=limit is None,
            conversation=self.conversation,
        )

    def _require_variables(self) -> None:
        for name in Tokenizer.reserved_variables & (self.chat_template_kwargs or {}).keys():
            field = f"chat_template_kwargs.{name}"
            raise invalid(f"{field} cannot be set: the name means something else in every template", field)


class CompletionBody(OpenaiBody):
    """`POST /v1/completions`."""

    prompt: Prompts
    logprobs: Annotated[int | None, Field(ge=0, le=TOP_LOGPROBS_MAX)] = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None
    # Refused unless they ask for nothing.
    echo: bool | None = None
    suffix: str | None = None

    def job(self, defaults: SamplingParams) -> Job:
        """The job for the engine; `defaults` hold where the request leaves a setting open."""
        self.require_heard()
        require_absent(self, "echo", "suffix")
        if self.best_of not in (None, self.num_samples):
            raise invalid("best_of is not supported by this server: ask for n and choose", "best_of")
        params = replace(
            _params(self, defaults), max_tokens=self.max_tokens or COMPLETION_TOKENS, top_logprobs=self.logprobs or 0
        )
        return Job(
            prompts=_prompts(self.prompt),
            params=_held(params, self.response_format),
            num_samples=self.num_samples,
            conversation=self.conversation,
        )


def _prompts(prompt: Prompts) -> tuple[str | tuple[int, ...], ...]:
    """One prompt or many, as text or tokens."""
    if isinstance(prompt, str):
        return (prompt,)
    # All are of one kind, and there may be millions.
    return cast("tuple[str | Tokens, ...]", (prompt,) if isinstance(prompt[0], int) else prompt)


def _params(body: OpenaiBody, defaults: SamplingParams) -> SamplingParams:
    """All settings but the length of a completion and its form."""
    given = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": None if body.top_k is None else max(body.top_k, 0),
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "seed": body.seed,
        "ignore_eos": body.ignore_eos,
        "stop": (body.stop,) if isinstance(body.stop, str) else body.stop,
        "stop_token_ids": None if body.stop_token_ids is None else frozenset(body.stop_token_ids),
    }
    params = overlaid(defaults, given)
    wanted = body.structured_outputs
    if wanted is None:
        return params
    if wanted.json_object and (wanted.json_schema is not None or wanted.choice):
        raise invalid("a reply is held to one of json, json_object and choice", "structured_outputs")
    schema = ANY_OBJECT if wanted.json_object else None
    if wanted.json_schema is not None:
        schema = schema_text(wanted.json_schema)
    return replace(params, json_schema=schema, choices=wanted.choice or ())


def _held(params: SamplingParams, form: ResponseFormat | None) -> SamplingParams:
    """`params` with the constraint of a `response_format`."""
    if form is not None and form.json_schema is not None and form.type != "json_schema":
        raise invalid("json_schema needs the type json_schema", "response_format.json_schema")
    if form is None or form.type == "text":
        return params
    if params.is_constrained:
        raise invalid("response_format and structured_outputs cannot be had together", "response_format")
    if form.type == "json_object":
        return replace(params, json_schema=ANY_OBJECT)
    if form.json_schema is None:
        raise invalid("response_format of type json_schema needs json_schema", "response_format.json_schema")
    return replace(params, json_schema=schema_text(form.json_schema.json_schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The head of all objects of one answer. `spell` writes a token; `logprobs` and `token_ids` say what to include."""

    id: str
    created: int
    model: str
    is_chat: bool
    spell: Spell
    logprobs: bool = False
    token_ids: bool = False

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole(self, prompts: Sequence[tuple[int, ...]], samples: Sequence[TrainingSample]) -> JsonObject:
        """The answer in one piece; the samples of each prompt are consecutive."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        body = self._head(kind) | {"choices": [self._choice(index, sample) for index, sample in enumerate(samples)]}
        if self.is_chat and self.token_ids:
            body["prompt_token_ids"] = list(prompts[0])
        return body | {"usage": usage(prompts, samples)}

    def num_chars(self, delta: Delta) -> int:
        """The characters by which a piece moves the next `text_offset`; 0 for answers without offsets."""
        return sum(len(self.spell(each)) for each in delta.token_ids) if self.logprobs and not self.is_chat else 0

    def chunk(self, index: int, delta: Delta, *, is_first: bool, text_offset: int = 0) -> JsonObject:
        """A piece of a stream, which begins `text_offset` characters after the prompt."""
        sample = delta.sample
        choice: JsonObject = {"index": index, "finish_reason": None if sample is None else sample.finish_reason}
        if self.is_chat:
            choice["delta"] = {**({"role": "assistant"} if is_first else {}), "content": delta.text}
        else:
            choice["text"] = delta.text
        choice["logprobs"] = self._logprobs(delta.token_ids, delta.logprobs, delta.top_logprobs, text_offset)
        if self.token_ids:
            choice["token_ids"] = list(delta.token_ids)
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return self._head(kind) | {"choices": [choice]}

    def last_chunk(self, prompts: Sequence[tuple[int, ...]], samples: Sequence[TrainingSample]) -> JsonObject:
        """The end of a stream with token counts."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return self._head(kind) | {"choices": [], "usage": usage(prompts, samples)}

    def _choice(self, index: int, sample: TrainingSample) -> JsonObject:
        choice: JsonObject = {"index": index, "finish_reason": sample.finish_reason}
        choice["stop_reason"] = sample.stop_reason
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": sample.text or "", "refusal": None}
        else:
            choice["text"] = sample.text or ""
        choice["logprobs"] = self._logprobs(sample.completion_tokens, sample.logprobs, sample.top_logprobs or ())
        choice["weight_versions"] = version_spans(sample)
        if self.token_ids:
            choice |= {"token_ids": list(sample.completion_tokens), "weight_version": sample.weight_version}
            if not self.is_chat:
                choice["prompt_token_ids"] = list(sample.prompt_tokens)
        return choice

    def _logprobs(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        tops: Sequence[Sequence[TokenLogprob]],
        text_offset: int = 0,
    ) -> JsonObject | None:
        if not self.logprobs:
            return None
        rows = list(zip(token_ids, logprobs, tops or [()] * len(token_ids), strict=True))
        if self.is_chat:
            return {"content": token_rows(rows, self.spell), "refusal": None}
        words = [self.spell(token_id) for token_id, _, _ in rows]
        return {
            "tokens": words,
            "token_logprobs": [_finite(logprob) for _, logprob, _ in rows],
            "top_logprobs": [self._by_spelling([*top, TokenLogprob(chosen, logprob)]) for chosen, logprob, top in rows],
            "text_offset": list(accumulate(map(len, words), initial=text_offset))[:-1],
        }

    def _by_spelling(self, top: Sequence[TokenLogprob]) -> dict[str, float]:
        """Log-probabilities by spelling, at last of the chosen token; of equal spellings the first, the likeliest."""
        found = dict[str, float]()
        for each in top:
            found.setdefault(self.spell(each.token_id), _finite(each.logprob))
        return found


def token_rows(rows: Sequence[tuple[int, float, Sequence[TokenLogprob]]], spell: Spell) -> Iterator[JsonObject]:
    """Tokens one by one, as in chat completions."""
    for token_id, logprob, top in rows:
        tops = [_token(each.token_id, each.logprob, spell) for each in top]
        yield _token(token_id, logprob, spell) | {"top_logprobs": tops}


def version_spans(sample: TrainingSample) -> list[JsonObject]:
    """Which versions of the weights made which tokens of a sample, as vLLM writes it."""
    spans = sample.version_spans or (VersionSpan(sample.weight_version, 0),)
    ends = [*(span.start for span in spans[1:]), len(sample.completion_tokens)]
    return [
        {"version": str(span.version), "start": span.start, "end": end} for span, end in zip(spans, ends, strict=True)
    ]


def usage(prompts: Sequence[tuple[int, ...]], samples: Sequence[TrainingSample]) -> JsonObject:
    """The token counts: each prompt once, however many completions it has."""
    num_prompt = sum(map(len, prompts))
    num_completion = sum(len(sample.completion_tokens) for sample in samples)
    # Samples of one prompt find what the first one computed, so only the first counts for the cache.
    num_cached = sum(sample.num_cached_tokens for sample in samples if sample.sample_index == 0)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def model_object(name: str, created: int) -> JsonObject:
    """An entry of the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "nano"}


def _token(token_id: int, logprob: float, spell: Spell) -> JsonObject:
    text = spell(token_id)
    # A token may be part of a character, which has no text.
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": _finite(logprob), "bytes": known}


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)


class OpenaiApi:
    """The handlers of OpenAI's paths."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self) -> Response:
        """The list of the one model."""
        return answer({"object": "list", "data": [self._model()]})

    async def model(self, name: str) -> Response:
        """The model, if it is this one."""
        self._service.require_model(name)
        return answer(self._model())

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._complete(request, await read_request(ChatBody, request, self._service.thread))

    async def completions(self, request: Request) -> Response:
        """Complete prompts."""
        return await self._complete(request, await read_request(CompletionBody, request, self._service.thread))

    async def _complete(self, request: Request, body: ChatBody | CompletionBody) -> Response:
        service = self._service
        service.require_model(body.model)
        job, is_streamed = body.job(service.defaults), bool(body.stream)
        generation = await service.begin(job, stream=is_streamed, receive=request.receive)
        envelope = self._envelope(body)
        if is_streamed:
            return Stream(events_of(generation, envelope, includes_usage=body.includes_usage), SSE)
        try:
            samples = await unless_gone(request.receive, generation.samples())
        finally:
            generation.cancel()
        if envelope.logprobs:
            return await long_answer(lambda: envelope.whole(generation.prompts, samples))
        return answer(envelope.whole(generation.prompts, samples))

    def _envelope(self, body: ChatBody | CompletionBody) -> Envelope:
        is_chat, unix_s = isinstance(body, ChatBody), int(self._service.times.unix_s())
        return Envelope(
            id=f"{'chatcmpl' if is_chat else 'cmpl'}-{unix_s:x}-{self._service.number()}",
            created=unix_s,
            model=body.model,
            is_chat=is_chat,
            spell=self._service.spell,
            # 0 asks a text completion for the tokens that were chosen; false asks a chat for none.
            logprobs=body.logprobs is not None and body.logprobs is not False,
            token_ids=bool(body.return_token_ids),
        )

    def _model(self) -> dict[str, object]:
        return model_object(self._service.card.name, int(self._service.card.changed_unix_s))


def events_of(generation: Generation, envelope: Envelope, *, includes_usage: bool) -> AsyncGenerator[bytes]:
    """A stream of events."""
    begun, offsets, samples = set[int](), Counter[int](), list[TrainingSample]()

    def write(piece: Piece) -> bytes:
        index, delta = piece
        event = _event(envelope.chunk(index, delta, is_first=index not in begun, text_offset=offsets[index]))
        begun.add(index)
        offsets[index] += envelope.num_chars(delta)
        if delta.sample is not None:
            samples.append(delta.sample)
        return event

    def end() -> bytes:
        return (_event(envelope.last_chunk(generation.prompts, samples)) if includes_usage else b"") + _DONE

    return generation.streamed(write, end, lambda refusal: _event(openai_error(refusal)))


def _event(content: object) -> bytes:
    return b"data: " + encoded(content) + b"\n\n"
