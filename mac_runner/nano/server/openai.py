"""OpenAI's interface: `/v1/chat/completions`, `/v1/completions`, `/v1/models`, with vLLM's additions.

With `return_token_ids` a choice also has its tokens and the version of the weights that made the first of them: all
that training needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Annotated, ClassVar, Literal, cast

from fastapi import Request, Response
from pydantic import Field, JsonValue
from pydantic_core import from_json

from mac_runner.nano.config import SamplingParams
from mac_runner.nano.sequence import TokenLogprob, TrainingSample, VersionSpan
from mac_runner.nano.server.http import (
    MESSAGES_MAX,
    TOP_LOGPROBS_MAX,
    Body,
    JsonObject,
    Many,
    RefusedError,
    answer,
    encoded,
    invalid,
    openai_error,
    require_absent,
)
from mac_runner.nano.server.service import (
    ANY_OBJECT,
    Chat,
    Course,
    Job,
    Piece,
    SamplingBody,
    Service,
    answered,
    message_of,
    schema_text,
)
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
        if self.content is None and self.role != "assistant":
            raise invalid(f"content is missing in a message of role {self.role!r}", "messages")
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        calls = [call.plain() for call in self.tool_calls or ()]
        return message_of(role, text, name=self.name, tool_calls=calls, tool_call_id=self.tool_call_id)


class OpenaiBody(SamplingBody):
    """The fields of both chat and text completions."""

    model: str
    temperature: Annotated[float | None, Field(ge=0, le=100)] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    n: Annotated[int | None, Field(ge=1, le=SAMPLES_MAX)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    # vLLM's.
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

    unsupported: ClassVar[tuple[str, ...]] = ("logit_bias", "store")

    def job_of(self, *prompts: str | tuple[int, ...] | Chat, params: SamplingParams, limit: int | None) -> Job:
        """The job of these prompts, of so many tokens at most. Raises RefusedError for what cannot be honoured."""
        require_absent(self, *self.unsupported)
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options needs stream: true", "stream_options")
        return Job(
            prompts=prompts,
            params=self._constrained(params),
            limit=limit,
            num_samples=self.n or 1,
            # What the client names the requests by that begin alike.
            conversation=self.prompt_cache_key or self.user or None,
        )

    def _constrained(self, params: SamplingParams) -> SamplingParams:
        """`params` with the form that the reply is held to."""
        wanted, form = self.structured_outputs, self.response_format
        if wanted is not None:
            if wanted.json_object and (wanted.json_schema is not None or wanted.choice):
                raise invalid("a reply is held to one of json, json_object and choice", "structured_outputs")
            schema = ANY_OBJECT if wanted.json_object else None
            if wanted.json_schema is not None:
                schema = schema_text(wanted.json_schema)
            params = replace(params, json_schema=schema, choices=wanted.choice or ())
        if form is None:
            return params
        if (form.type == "json_schema") != (form.json_schema is not None):
            rule = "needs" if form.json_schema is None else "cannot have"
            raise invalid(f"response_format of type {form.type} {rule} json_schema", "response_format.json_schema")
        if form.type == "text":
            return params
        if params.is_constrained:
            raise invalid("response_format and structured_outputs cannot be had together", "response_format")
        schema = ANY_OBJECT if form.json_schema is None else schema_text(form.json_schema.json_schema)
        return replace(params, json_schema=schema)


class ChatBody(OpenaiBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[Many[ChatMessage], Field(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=TOP_LOGPROBS_MAX)] = None
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

    unsupported: ClassVar[tuple[str, ...]] = (*OpenaiBody.unsupported, "tools", "functions", "audio", "prediction")

    def job(self, defaults: SamplingParams) -> Job:
        """The job for the engine; `defaults` hold where the request leaves a setting open."""
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
        variables = self.chat_template_kwargs or {}
        for name in Tokenizer.reserved_variables & variables.keys():
            place = f"chat_template_kwargs.{name}"
            raise invalid(f"{place} cannot be set: the name means something else in every template", place)
        chat = Chat(messages=tuple(message.plain() for message in self.messages), variables=variables)
        return self.job_of(chat, params=self.params(defaults), limit=self.max_completion_tokens or self.max_tokens)


class CompletionBody(OpenaiBody):
    """`POST /v1/completions`."""

    prompt: Prompts
    logprobs: Annotated[int | None, Field(ge=0, le=TOP_LOGPROBS_MAX)] = None
    best_of: int | None = None
    # Refused unless they ask for nothing.
    echo: bool | None = None
    suffix: str | None = None

    unsupported: ClassVar[tuple[str, ...]] = (*OpenaiBody.unsupported, "echo", "suffix")

    def job(self, defaults: SamplingParams) -> Job:
        """The job for the engine; `defaults` hold where the request leaves a setting open."""
        if self.best_of not in (None, self.n or 1):
            raise invalid("best_of is not supported by this server: ask for n and choose", "best_of")
        # Where there are several, all are of one kind, and there may be millions of tokens.
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        prompts = cast("tuple[str | Tokens, ...]", (self.prompt,) if is_one else self.prompt)
        params = replace(self.params(defaults), top_logprobs=self.logprobs or 0)
        return self.job_of(*prompts, params=params, limit=self.max_tokens or COMPLETION_TOKENS)


@dataclass(slots=True, kw_only=True)
class OpenaiWriter:
    """The objects of one answer. `spell` writes a token; the answer `is_long` if it has log-probabilities."""

    id: str
    created: int
    model: str
    is_chat: bool
    spell: Spell
    is_long: bool = False
    has_token_ids: bool = False
    has_usage: bool = False
    media_type: str = "text/event-stream; charset=utf-8"
    _num_chars: Counter[int] = field(default_factory=Counter)
    """Of each completion that a stream has begun; for the offsets in a text."""

    def whole(self, samples: Sequence[TrainingSample], course: Course | None = None) -> JsonObject:
        """The answer in one piece; the samples of each prompt are consecutive."""
        del course
        kind = "chat.completion" if self.is_chat else "text_completion"
        body = self._head(kind) | {"choices": [self._choice(index, sample) for index, sample in enumerate(samples)]}
        if self.is_chat and self.has_token_ids:
            body["prompt_token_ids"] = list(samples[0].prompt_tokens)
        return body | {"usage": usage(samples)}

    def piece(self, piece: Piece) -> bytes:
        return _event(self.chunk(piece))

    def chunk(self, piece: Piece) -> JsonObject:
        """A piece of a stream. The first of a chat's completion has its role, each of a text where it begins."""
        index, delta = piece
        text_offset = self._num_chars[index]
        choice: JsonObject = {"index": index, "finish_reason": delta.sample.finish_reason if delta.sample else None}
        if self.is_chat:
            role = {} if index in self._num_chars else {"role": "assistant"}
            choice["delta"] = {**role, "content": delta.text}
        else:
            choice["text"] = delta.text
        choice["logprobs"] = self._logprobs(delta.token_ids, delta.logprobs, delta.top_logprobs, text_offset)
        spelt = map(self.spell, delta.token_ids) if self.is_long and not self.is_chat else ()
        self._num_chars[index] += sum(map(len, spelt))
        if self.has_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return self._chunk_head() | {"choices": [choice]}

    def end(self, samples: Sequence[TrainingSample], course: Course | None = None) -> bytes:
        del course
        counts = _event(self._chunk_head() | {"choices": [], "usage": usage(samples)}) if self.has_usage else b""
        return counts + b"data: [DONE]\n\n"

    def error(self, refusal: RefusedError) -> bytes:
        return _event(openai_error(refusal))

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk_head(self) -> JsonObject:
        return self._head("chat.completion.chunk" if self.is_chat else "text_completion")

    def _choice(self, index: int, sample: TrainingSample) -> JsonObject:
        choice: JsonObject = {"index": index, "finish_reason": sample.finish_reason}
        choice["stop_reason"] = sample.stop_reason
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": sample.text or "", "refusal": None}
        else:
            choice["text"] = sample.text or ""
        choice["logprobs"] = self._logprobs(sample.completion_tokens, sample.logprobs, sample.top_logprobs or ())
        choice["weight_versions"] = version_spans(sample)
        if self.has_token_ids:
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
        if not self.is_long:
            return None
        if self.is_chat:
            return {"content": token_rows(token_ids, logprobs, tops, self.spell), "refusal": None}
        rows = _rows(token_ids, logprobs, tops)
        words = [self.spell(token_id) for token_id in token_ids]
        return {
            "tokens": words,
            "token_logprobs": list(map(_finite, logprobs)),
            "top_logprobs": [self._by_spelling([*top, TokenLogprob(chosen, logprob)]) for chosen, logprob, top in rows],
            "text_offset": list(accumulate(map(len, words), initial=text_offset))[:-1],
        }

    def _by_spelling(self, top: Sequence[TokenLogprob]) -> dict[str, float]:
        """Log-probabilities by spelling, at last of the chosen token; of equal spellings the first, the likeliest."""
        found = dict[str, float]()
        for each in top:
            found.setdefault(self.spell(each.token_id), _finite(each.logprob))
        return found


Row = tuple[int, float, Sequence[TokenLogprob]]


def _rows(ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[Sequence[TokenLogprob]]) -> Iterator[Row]:
    return zip(ids, logprobs, tops or [()] * len(ids), strict=True)


def token_rows(
    ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[Sequence[TokenLogprob]], spell: Spell
) -> Iterator[JsonObject]:
    """Tokens one by one, as in chat completions."""
    for token_id, logprob, top in _rows(ids, logprobs, tops):
        likeliest = [_token(each.token_id, each.logprob, spell) for each in top]
        yield _token(token_id, logprob, spell) | {"top_logprobs": likeliest}


def version_spans(sample: TrainingSample) -> list[JsonObject]:
    """Which versions of the weights made which tokens of a sample, as vLLM writes it."""
    spans = sample.version_spans or (VersionSpan(sample.weight_version, 0),)
    ends = [*(span.start for span in spans[1:]), len(sample.completion_tokens)]
    return [
        {"version": str(span.version), "start": span.start, "end": end} for span, end in zip(spans, ends, strict=True)
    ]


def usage(samples: Sequence[TrainingSample]) -> JsonObject:
    """The token counts: each prompt once, however many completions it has."""
    # Samples of one prompt find what the first one computed, so only the first counts for the cache.
    firsts = [sample for sample in samples if sample.sample_index == 0]
    num_prompt = sum(len(sample.prompt_tokens) for sample in firsts)
    num_completion = sum(len(sample.completion_tokens) for sample in samples)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": sum(sample.num_cached_tokens for sample in firsts)},
    }


def _token(token_id: int, logprob: float, spell: Spell) -> JsonObject:
    text = spell(token_id)
    # A token may be part of a character, which has no text.
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": _finite(logprob), "bytes": known}


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)


def _event(content: object) -> bytes:
    return b"data: " + encoded(content) + b"\n\n"


class OpenaiApi:
    """The handlers of OpenAI's paths."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self) -> Response:
        return answer({"object": "list", "data": [self._model()]})

    async def model(self, name: str) -> Response:
        self._service.require_model(name)
        return answer(self._model())

    async def complete(self, request: Request, body: ChatBody | CompletionBody) -> Response:
        service, is_chat, is_streamed = self._service, isinstance(body, ChatBody), bool(body.stream)
        service.require_model(body.model)
        generation = await service.begin(body.job(service.defaults), request, stream=is_streamed)
        created = int(service.times.unix_s())
        writer = OpenaiWriter(
            id=f"{'chatcmpl' if is_chat else 'cmpl'}-{created:x}-{next(service.numbers)}",
            created=created,
            model=body.model,
            is_chat=is_chat,
            spell=service.spell,
            # 0 asks a text completion for the tokens that were chosen; false asks a chat for none.
            is_long=body.logprobs is not None and body.logprobs is not False,
            has_token_ids=bool(body.return_token_ids),
            has_usage=body.stream_options is not None and body.stream_options.include_usage,
        )
        return await answered(generation, writer, request, is_streamed=is_streamed)

    def _model(self) -> JsonObject:
        card = self._service.card
        return {"id": card.name, "object": "model", "created": int(card.changed_unix_s), "owned_by": "nano"}
