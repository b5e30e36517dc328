"""A request as parameters of Anthropic's client, and the body of an answer as a Reply. Pure.

The system message goes apart, and user and assistant alternate. A temperature of 1, the API's default, is not sent,
because newer models and versions of the API take none. The API has no seed. A schema is sent as the API takes schemas:
lengths and bounds become part of its descriptions, which the model may follow. A list of choices has no form.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import Struct

from mac_runner.backends.anthropic.client import anthropic
from mac_runner.backends.anthropic.errors import UnusableReplyError
from mac_runner.backends.anthropic.settings import AnthropicConfig
from mac_runner.backends.chat_template import OPEN_THOUGHT, apart, encodable, merge_neighbours
from mac_runner.backends.redaction import Redactor
from mac_runner.backends.server_text import own_reason, scalars_only, token_count, tokens_of
from mac_runner.errors import FormRefusedError, TransientBackendError
from mac_runner.structs import convert
from mac_runner.types import FinishReason, JsonObject, JsonValue, Message, Prompt, Reply, Request, Sampling, TokenCount

DECLINED: Final = "[refusal: I decline to answer]"
"""The text of a reply that the API withheld without a word of explanation."""
_DEFAULT_TEMPERATURE: Final = 1.0
_QUOTED_BYTES: Final = 400
_BETWEEN: Final = "\n\n"


def parameters_of(request: Request, config: AnthropicConfig) -> dict[str, Any]:
    """The parameters of `messages.create`. Raises FormRefusedError for a schema that the API has no form for."""
    sampling = request.sampling
    system, messages = _messages(request.prompt.messages)
    parameters: dict[str, Any] = {
        "model": config.model,
        "max_tokens": sampling.max_tokens,
        "messages": [{"role": each.role, "content": encodable(each.content)} for each in messages],
    }
    if system:
        block: JsonObject = {"type": "text", "text": encodable(system)}
        parameters["system"] = [block | ({"cache_control": {"type": "ephemeral"}} if config.prompt_caching else {})]
    if sampling.stop:
        parameters["stop_sequences"] = list(sampling.stop)
    if (thinking := _thinking(sampling, config)) is not None:
        parameters["thinking"] = thinking
    if output := _output(sampling, request.prompt):
        parameters["output_config"] = output
    if drawing := _drawing(sampling):
        # The client has no parameters for them, as the newest version of the API has none.
        parameters["extra_body"] = drawing
    return parameters


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


def decoded(body: bytes, redactor: Redactor) -> JsonObject:
    """The JSON object in `body`. Raises TransientBackendError."""
    try:
        value: JsonValue = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        start = redactor.quoted(body[:_QUOTED_BYTES].decode("utf-8", "replace"))
        raise _malformed(f"not JSON; it begins: {start}") from None
    if not isinstance(value, dict):
        raise _malformed(f"JSON, but {type(value).__name__} in the place of an object")
    return value


def _malformed(what: str) -> TransientBackendError:
    return TransientBackendError(f"malformed answer: {what}", has_answered=True)


def reply_of(body: JsonObject, redactor: Redactor) -> Reply:
    """The reply in a body. Raises TransientBackendError, or UnusableReplyError for a stop that no retry changes."""
    try:
        message = convert(body, _Message)
    except msgspec.ValidationError as error:
        raise _malformed(redactor.quoted(str(error))) from None
    stop = message.stop_reason if isinstance(message.stop_reason, str) else ""
    if stop in ("tool_use", "pause_turn"):
        raise UnusableReplyError(f"the reply stopped for {stop!r}, and no tools were offered")
    reason = _REASONS.get(stop) or own_reason(stop, redactor.quoted)
    said = "".join(block.text or "" for block in message.content if block.type == "text")
    thought = _BETWEEN.join(block.thinking or "" for block in message.content if block.type == "thinking")
    if stop == "refusal" and not said.strip():
        details = message.stop_details
        said = (details and details.explanation) or DECLINED
    text, thinking = apart(scalars_only(said), scalars_only(thought))
    if not text and reason is FinishReason.LENGTH:
        text = OPEN_THOUGHT  # All tokens went into a thought that is not shown.
    if not text and stop not in _REASONS:
        raise _malformed(f"stop_reason is {reason}, and there is no text")
    return Reply(
        text=redactor.reply(text),
        thinking=None if thinking is None else redactor.reply(thinking),
        finish_reason=reason,
        tokens=_tokens(message.usage if isinstance(message.usage, dict) else {}),
    )


def _tokens(usage: JsonObject) -> TokenCount:
    """The API counts the part of a prompt that it keeps, and the part that it had kept, beside the rest."""
    cached = usage.get("cache_read_input_tokens")
    parts = (usage.get("input_tokens"), usage.get("cache_creation_input_tokens"), cached)
    return tokens_of(prompt=sum(map(token_count, parts)), completion=usage.get("output_tokens"), cached=cached)
