"""Ollama's own protocol: a chat at `/api/chat`. Pure.

The official client has no parameters for `truncate` and `shift`, without which Ollama silently shortens a prompt, or
forgets its beginning while replying. So chats of a run are written here; everything that is asked of a server about its
models goes through the client (`ollama.backend`).

Ollama's options have llama.cpp's names. A list of choices is sent as a JSON schema, the only form that Ollama can hold
a reply to. The quotes that the reply then has are removed, so that a choice reads the same from every engine.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from msgspec import Struct

from mac_runner.backends.base import JSON_OBJECT
from mac_runner.backends.chat_template import ChatShape, apart, conversation_of
from mac_runner.backends.http.answer import (
    Dialect,
    SendingError,
    Standing,
    Treatment,
    converted,
    encoded,
)
from mac_runner.backends.http.errors import ErrorBody, Meaning
from mac_runner.backends.http.settings import OllamaConfig
from mac_runner.backends.redaction import Redactor, own_reason, tokens_of
from mac_runner.errors import Verdict
from mac_runner.types import FinishReason, JsonObject, JsonValue, Prompt, Reply, Request, Sampling, TokenCount

KEY_VARIABLE: Final = "OLLAMA_API_KEY"
"""The environment variable of the key, for a proxy in front of the server."""
_BUSY: Final = "server busy"
"""What it says with status 503 when its queue is full."""
_RUNNER_ENDED: Final = ("model runner has unexpectedly stopped", "runner process has terminated")
"""What it says with status 500 when the model's runner has ended. It starts another; this request may be the cause."""


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


class _Message(Struct):
    content: str | None = None
    thinking: str | None = None


class _Chat(Struct):
    message: _Message
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: Any = None
    eval_count: Any = None


class OllamaDialect(Dialect):
    """How Ollama's servers are asked for one model."""

    config: OllamaConfig
    path = "/api/chat"
    look_path = "/api/version"
    section = "ollama_config"
    urls = "host"
    address = "that host is where Ollama listens"
    remedy = "another num_ctx"
    starting = "start it (`ollama serve`)"
    queues = True
    key_variable = KEY_VARIABLE

    def __init__(self, config: OllamaConfig) -> None:
        self.config = config
        self.servers = config.host
        self.context_tokens = config.num_ctx
        """The smallest context that a server has loaded the model with; None while that is not known."""

    def body(self, request: Request, shape: ChatShape) -> bytes:
        """The body of a chat, which asks for an error where the prompt does not fit."""
        config, sampling, prompt = self.config, request.sampling, request.prompt
        fields: JsonObject = {
            "model": config.model,
            "messages": [dict(one) for one in conversation_of(shape.fit(prompt.messages))],
            "options": _options_of(sampling, num_ctx=config.num_ctx),
            "stream": False,
            "keep_alive": config.keep_alive,
            "truncate": False,
            "shift": False,
        }
        if (think := _think_of(sampling, default=config.think)) is not None:
            fields["think"] = think
        if (layout := _format_of(prompt)) is not None:
            fields["format"] = layout
        return encoded(fields)

    def said(self, status: int, error: ErrorBody) -> Meaning | Treatment | None:
        if _BUSY in error.text:
            return Meaning.BUSY
        has_ended = any(mark in error.text for mark in _RUNNER_ENDED)
        return Treatment(Verdict.RETRY, Standing.RESTARTED) if has_ended and status >= 500 else None

    def reply(self, body: JsonObject, request: Request, redactor: Redactor) -> Reply:
        """The reply in a body. Raises SendingError when the server did not finish it, or gave no word of it.

        A prompt that fills the whole context was cut to fit, or leaves no room for a reply: either way it did not fit.
        """
        chat = converted(body, _Chat, "chat", redactor)
        tokens = tokens_of(prompt=chat.prompt_eval_count, completion=chat.eval_count)
        if self.context_tokens is not None and tokens.prompt >= self.context_tokens:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW, tokens=TokenCount(prompt=tokens.prompt))
        finish_reason = _finish_reason(chat, request.sampling, tokens, redactor)
        content = chat.message.content or ""
        if request.prompt.schema is None and request.prompt.choices is not None:
            content = _unquoted(content)
        text, thinking = apart(content, chat.message.thinking or "")
        return Reply(text=text, thinking=thinking, finish_reason=finish_reason, tokens=tokens)


def _finish_reason(chat: _Chat, sampling: Sampling, tokens: TokenCount, redactor: Redactor) -> FinishReason:
    if chat.done:
        match chat.done_reason:
            case "stop":
                return FinishReason.STOP
            case "length":
                return FinishReason.LENGTH
            case None:  # The documented example gives no reason.
                return FinishReason.LENGTH if tokens.completion >= sampling.max_tokens else FinishReason.STOP
        if chat.message.content or chat.message.thinking:
            return own_reason(chat.done_reason, redactor.quoted)
    given = redactor.quoted(str(chat.done_reason), 40)
    raise SendingError(f"the server gave the request up (done_reason {given!r})", standing=Standing.ANSWERED)


def _options_of(sampling: Sampling, *, num_ctx: int | None) -> JsonObject:
    """The `options` of a request; the model's own defaults hold for what is None."""
    options: JsonObject = {
        option: value for name, option in _OPTIONS.items() if (value := getattr(sampling, name)) is not None
    }
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    return options | load_options(num_ctx)


def _think_of(sampling: Sampling, *, default: bool | None) -> bool | str | None:
    """The `think` of a request, where Ollama has an effort in place of true."""
    if sampling.reasoning_effort is not None:
        return sampling.reasoning_effort
    return default if sampling.thinking is None else sampling.thinking


def load_options(num_ctx: int | None) -> JsonObject:
    """The options a model is loaded with: a request with another value makes Ollama load it again."""
    return {} if num_ctx is None else {"num_ctx": num_ctx}


def _format_of(prompt: Prompt) -> dict[str, JsonValue] | Literal["json"] | None:
    """The JSON schema that the reply is held to, or the word for any JSON."""
    if prompt.schema is JSON_OBJECT:
        return "json"
    if prompt.schema is not None:
        return dict(prompt.schema)
    return None if prompt.choices is None else {"type": "string", "enum": list(prompt.choices)}


def _unquoted(text: str) -> str:
    """The string that `text` is as JSON; a text that was cut off, or is something else, stays as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text
