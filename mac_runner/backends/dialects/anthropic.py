"""Anthropic's Messages API. Pure.

The system message goes apart, and user and assistant alternate. A temperature of 1, the API's default, is not sent,
because newer models and versions of the API take none. The API has no seed. A schema is sent as the API takes schemas:
lengths and bounds become part of its descriptions, which the model may follow. A list of choices has no form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from mac_runner.backends.chat_template import (
    OPEN_THOUGHT,
    ChatShape,
    apart,
    conversation_of,
    encodable,
    merge_neighbours,
)
from mac_runner.backends.http.answer import Dialect, converted, encoded, malformed, refused
from mac_runner.backends.http.errors import ErrorBody, Meaning
from mac_runner.backends.http.settings import AnthropicConfig
from mac_runner.backends.redaction import Redactor, own_reason, token_count, tokens_of
from mac_runner.client_settings import KEY_LOG, no_client_settings
from mac_runner.errors import FormRefusedError
from mac_runner.types import FinishReason, JsonObject, JsonValue, Message, Prompt, Reply, Request, Sampling

DECLINED: Final = "[refusal: I decline to answer]"
"""The text of a reply that the API withheld without a word of explanation."""
_DEFAULT_TEMPERATURE: Final = 1.0
_BETWEEN: Final = "\n\n"
_NO_CREDIT: Final = re.compile(r"credit balance is too low|reached your specified (?:\w+ )?usage limit")
_STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class AnthropicDialect(Dialect):
    """How Anthropic's API, or a gateway to it, is asked for one model."""

    config: AnthropicConfig
    path = "/v1/messages"
    section = "anthropic_config"
    urls = "base_url"
    address = "that base_url has no /v1"
    remedy = "another api_version"

    def __init__(self, config: AnthropicConfig) -> None:
        self.config = config
        self.servers = config.base_url
        self.look_path = f"/v1/models/{quote(config.model, safe='')}"
        self.key_variable = config.api_key_env

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {**super().headers(key), "anthropic-version": self.config.api_version}

    def body(self, request: Request, shape: ChatShape) -> bytes:
        sampling = request.sampling
        system, messages = _messages(shape.fit(request.prompt.messages))
        fields: JsonObject = {
            "model": self.config.model,
            "max_tokens": sampling.max_tokens,
            "messages": [dict(one) for one in conversation_of(messages)],
        }
        if system:
            block: JsonObject = {"type": "text", "text": encodable(system)}
            kept: JsonObject = {"cache_control": {"type": "ephemeral"}} if self.config.prompt_caching else {}
            fields["system"] = [block | kept]
        if sampling.stop:
            fields["stop_sequences"] = list(sampling.stop)
        if (thinking := _thinking(sampling, self.config)) is not None:
            fields["thinking"] = thinking
        if output := _output(sampling, request.prompt):
            fields["output_config"] = output
        return encoded(fields | _drawing(sampling))

    def error_in(self, body: JsonObject) -> JsonObject | None:
        return body if body.get("type") == "error" or ("error" in body and "content" not in body) else None

    def status_in(self, error: ErrorBody) -> int:
        return error.status or next((status for kind, status in _STATUSES.items() if kind in error.codes), 500)

    def said(self, status: int, error: ErrorBody) -> Meaning | None:
        """An account without credit is denied with status 400."""
        return Meaning.DENIED if status == 400 and _NO_CREDIT.search(error.text) else None

    def reply(self, body: JsonObject, _request: Request, redactor: Redactor) -> Reply:
        """The reply in a body. Raises SendingError, also for a stop that no retry changes."""
        message = converted(body, _Message, "message", redactor)
        stop = message.stop_reason if isinstance(message.stop_reason, str) else ""
        if stop in ("tool_use", "pause_turn"):
            raise refused(f"the reply stopped for {stop!r}, and no tools were offered")
        reason = _REASONS.get(stop) or own_reason(stop, redactor.quoted)
        said = "".join(block.text or "" for block in message.content if block.type == "text")
        thought = _BETWEEN.join(block.thinking or "" for block in message.content if block.type == "thinking")
        if stop == "refusal" and not said.strip():
            details = message.stop_details
            said = (details and details.explanation) or DECLINED
        text, thinking = apart(said, thought)
        if not text and reason is FinishReason.LENGTH:
            text = OPEN_THOUGHT  # All tokens went into a thought that is not shown.
        if not text and stop not in _REASONS:
            raise malformed(f"stop_reason is {reason}, and there is no text")
        usage: JsonObject = message.usage if isinstance(message.usage, dict) else {}
        # The part of a prompt that the API keeps, and the part that it had kept, are counted beside the rest.
        cached = usage.get("cache_read_input_tokens")
        parts = (usage.get("input_tokens"), usage.get("cache_creation_input_tokens"), cached)
        return Reply(
            text=text,
            thinking=thinking,
            finish_reason=reason,
            tokens=tokens_of(prompt=sum(map(token_count, parts)), completion=usage.get("output_tokens"), cached=cached),
        )


def _messages(messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...]]:
    """The system message, and the others; the API takes no empty text."""
    system = _BETWEEN.join(each.content for each in messages if each.role == "system")
    others = merge_neighbours([each for each in messages if each.role != "system" and each.content.strip()])
    return (system, others) if others else ("", (Message(role="user", content=system),))


def _thinking(sampling: Sampling, config: AnthropicConfig) -> JsonObject | None:
    """Whether the model thinks; None leaves it to the model. The one token of a probe has no room for a thought."""
    budget = config.thinking_budget_tokens
    if sampling.thinking is None or (sampling.thinking and budget is not None and sampling.max_tokens <= budget):
        return None
    if not sampling.thinking:
        return {"type": "disabled"}
    how: JsonObject = {"type": "adaptive"} if budget is None else {"type": "enabled", "budget_tokens": budget}
    return {**how, "display": "summarized"}


def _output(sampling: Sampling, prompt: Prompt) -> JsonObject:
    output: JsonObject = {} if sampling.reasoning_effort is None else {"effort": sampling.reasoning_effort}
    if prompt.schema is not None:
        with no_client_settings(KEY_LOG):  # Its package reads certificates when it is imported.
            import anthropic
        try:
            schema: JsonValue = anthropic.transform_schema(dict(prompt.schema))
        except (ValueError, TypeError, AssertionError) as error:
            raise FormRefusedError(f"Anthropic's API has no form for this schema: {error}") from error
        output["format"] = {"type": "json_schema", "schema": schema}
    return output


def _drawing(sampling: Sampling) -> JsonObject:
    """How tokens are drawn, as far as it is not the API's default."""
    temperature = None if sampling.temperature == _DEFAULT_TEMPERATURE else sampling.temperature
    given: JsonObject = {"temperature": temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return {name: value for name, value in given.items() if value is not None}


# Answers.


class _Block(Struct):
    type: str
    text: str | None = None
    thinking: str | None = None


class _StopDetails(Struct):
    explanation: str | None = None


class _Message(Struct):
    content: list[_Block]
    stop_reason: Any = None
    stop_details: _StopDetails | None = None
    usage: Any = None


_REASONS: Final = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "refusal": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
}
