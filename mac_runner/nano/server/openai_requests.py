"""OpenAI's requests → jobs. Pure. vLLM's additions are understood too, so that its clients find what they know."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, cast

from pydantic import Field, JsonValue

from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.server.bodies import Body, Many, require_absent
from mac_runner.nano.server.job import ANY_OBJECT, Chat, Job, overlaid, schema_text
from mac_runner.nano.server.limits import (
    COMPLETION_TOKENS,
    MESSAGES_MAX,
    PROMPTS_MAX,
    SAMPLES_MAX,
    TOP_LOGPROBS_MAX,
)
from mac_runner.nano.server.refusals import invalid
from mac_runner.nano.tokenizer import Tokenizer

Tokens = Annotated[Many[int], Field(min_length=1)]
Prompts = (
    str
    | Tokens
    | Annotated[Many[str], Field(min_length=1, max_length=PROMPTS_MAX)]
    | Annotated[Many[Tokens], Field(min_length=1, max_length=PROMPTS_MAX)]
)


class StreamOptions(Body):
    """What a stream tells besides its text."""

    include_usage: bool = False


class StructuredOutputs(Body):
    """vLLM's way to hold a reply to a form."""

    json_schema: Annotated[JsonValue, Field(alias="json")] = None
    choice: Many[str] | None = None


class NamedSchema(Body):
    """A schema as `response_format` has it."""

    name: str = ""
    description: str | None = None
    json_schema: Annotated[dict[str, JsonValue], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Body):
    """What form a reply has."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class Part(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """A message. Templates know three roles; OpenAI's `developer` is what others call `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Many[Part]
    name: str | None = None
    refusal: None = None

    def plain(self) -> dict[str, str]:
        """The message as a template takes it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class OpenaiBody(Body):
    """What chat and text completions have in common."""

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
    logit_bias: JsonValue = None
    # About who asks and what it costs, nothing of which changes an answer here.
    user: JsonValue = None
    metadata: JsonValue = None
    store: JsonValue = None
    service_tier: JsonValue = None
    safety_identifier: JsonValue = None
    prompt_cache_key: JsonValue = None

    @property
    def num_samples(self) -> int:
        """Completions of each prompt."""
        return self.n or 1

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with the tokens counted."""
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
    tools: JsonValue = None
    functions: JsonValue = None
    audio: JsonValue = None
    prediction: JsonValue = None
    # Mean nothing without tools.
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None

    def job(self, defaults: SamplingParams) -> Job:
        """What the engine is asked for; `defaults` hold where the request leaves a setting open."""
        require_absent(self, "logit_bias", "tools", "functions", "audio", "prediction")
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
    echo: JsonValue = None
    suffix: JsonValue = None

    def job(self, defaults: SamplingParams) -> Job:
        """What the engine is asked for; `defaults` hold where the request leaves a setting open."""
        require_absent(self, "logit_bias", "echo", "suffix")
        if self.best_of not in (None, self.num_samples):
            raise invalid("best_of is not supported by this server: ask for n and choose", "best_of")
        params = replace(
            _params(self, defaults),
            max_tokens=self.max_tokens or COMPLETION_TOKENS,
            top_logprobs=self.logprobs or 0,
        )
        return Job(
            prompts=_prompts(self.prompt), params=_held(params, self.response_format), num_samples=self.num_samples
        )


def _prompts(prompt: Prompts) -> tuple[str | tuple[int, ...], ...]:
    """One or many, as text or tokens."""
    if isinstance(prompt, str):
        return (prompt,)
    # They are all of one kind, and there may be millions.
    return cast("tuple[str | Tokens, ...]", (prompt,) if isinstance(prompt[0], int) else prompt)


def _params(body: OpenaiBody, defaults: SamplingParams) -> SamplingParams:
    """Everything but how long a completion is and what form it has."""
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
    schema = None if wanted.json_schema is None else schema_text(wanted.json_schema)
    return replace(params, json_schema=schema, choices=wanted.choice or ())


def _held(params: SamplingParams, form: ResponseFormat | None) -> SamplingParams:
    """`params`, held to a `response_format`."""
    if form is None or form.type == "text":
        return params
    if params.is_constrained:
        raise invalid("response_format and structured_outputs cannot be had together", "response_format")
    if form.type == "json_object":
        return replace(params, json_schema=ANY_OBJECT)
    if form.json_schema is None:
        raise invalid("response_format of type json_schema needs json_schema", "response_format.json_schema")
    return replace(params, json_schema=schema_text(form.json_schema.json_schema))
