"""A request in Ollama's terms, and Ollama's answer as a Reply. Pure.

Ollama's options have llama.cpp's names. A list of choices is sent as a JSON schema, the only form that Ollama can hold
a reply to. The quotes that the reply then has are removed, so that a choice reads the same from every engine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Literal

from mac_runner.backends.chat_template import apart
from mac_runner.backends.forms import JSON_OBJECT
from mac_runner.backends.redaction import Redactor
from mac_runner.backends.server_text import own_reason, scalars_only, tokens_of
from mac_runner.errors import TransientBackendError
from mac_runner.types import FinishReason, JsonObject, JsonValue, Prompt, Reply, Request, Sampling, TokenCount

if TYPE_CHECKING:
    from ollama import ChatResponse

_OPTIONS: Final = {
    "temperature": "temperature",
    "max_tokens": "num_predict",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
    "seed": "seed",
}


def options_of(sampling: Sampling, *, num_ctx: int | None) -> JsonObject:
    """The `options` of a request; the model's own defaults hold for what is None."""
    options: JsonObject = {
        option: value for name, option in _OPTIONS.items() if (value := getattr(sampling, name)) is not None
    }
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    return options | load_options(num_ctx)


def think_of(sampling: Sampling, *, default: bool | None) -> bool | str | None:
    """The `think` of a request, where Ollama has an effort in place of true."""
    if sampling.reasoning_effort is not None:
        return sampling.reasoning_effort
    return default if sampling.thinking is None else sampling.thinking


def load_options(num_ctx: int | None) -> JsonObject:
    """The options a model is loaded with: a request with another value makes Ollama load it again."""
    return {} if num_ctx is None else {"num_ctx": num_ctx}


def format_of(prompt: Prompt) -> dict[str, JsonValue] | Literal["json"] | None:
    """The JSON schema that the reply is held to, or the word for any JSON."""
    if prompt.schema is JSON_OBJECT:
        return "json"
    if prompt.schema is not None:
        return dict(prompt.schema)
    return None if prompt.choices is None else {"type": "string", "enum": list(prompt.choices)}


def reply_of(response: ChatResponse, request: Request, *, context_tokens: int | None, redactor: Redactor) -> Reply:
    """The reply in `response`. Raises TransientBackendError when the server did not finish it, or gave no word of it.

    A prompt that fills the whole context was cut to fit, or leaves no room for a reply: either way it did not fit.
    """
    tokens = tokens_of(prompt=response.prompt_eval_count, completion=response.eval_count)
    if context_tokens is not None and tokens.prompt >= context_tokens:
        return Reply(text="", finish_reason=FinishReason.OVERFLOW, tokens=TokenCount(prompt=tokens.prompt))
    finish_reason = _finish_reason(response, request.sampling, tokens, redactor)
    content = response.message.content or ""
    if request.prompt.schema is None and request.prompt.choices is not None:
        content = _unquoted(content)
    text, thought = apart(scalars_only(content), scalars_only(response.message.thinking or ""))
    return Reply(
        text=redactor.reply(text),
        thinking=None if thought is None else redactor.reply(thought),
        finish_reason=finish_reason,
        tokens=tokens,
    )


def _finish_reason(response: ChatResponse, sampling: Sampling, tokens: TokenCount, redactor: Redactor) -> FinishReason:
    if response.done:
        match response.done_reason:
            case "stop":
                return FinishReason.STOP
            case "length":
                return FinishReason.LENGTH
            case None:  # The documented example gives no reason.
                return FinishReason.LENGTH if tokens.completion >= sampling.max_tokens else FinishReason.STOP
        if response.message.content or response.message.thinking:
            return own_reason(response.done_reason, redactor.quoted)
    raise TransientBackendError(
        f"Ollama gave the request up (done_reason {redactor.quoted(str(response.done_reason), 40)!r})",
        has_answered=True,
    )


def _unquoted(text: str) -> str:
    """The string that `text` is as JSON; a text that was cut off, or is something else, stays as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text
