"""A request → the bytes of its body. Pure.

What is sent depends on what the server understands. A setting that only vLLM knows does not get here for another
server: `setup` has refused it, because a server ignores without a word what it does not know.

The limit on a reply is called `max_tokens` unless the configuration says otherwise. Its successor
`max_completion_tokens` is what OpenAI's newest models insist on, and they say so; older servers silently ignore it and
answer without a limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from mac_runner.backends.chat import plain_text
from mac_runner.backends.openai.settings import OpenaiConfig
from mac_runner.types import JsonObject, JsonValue, Message, Prompt, Request, Sampling

_OPTIONAL: Final = ("top_p", "presence_penalty", "frequency_penalty", "seed", "top_k", "min_p", "repetition_penalty")

_QUICK: Final = msgspec.json.Encoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""For what msgspec refuses: half a surrogate pair, which a model may well have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyWriter:
    """What all requests of one model have in common."""

    config: OpenaiConfig
    has_tokens: bool

    def body(self, request: Request) -> bytes:
        """The body of a request."""
        fields = self._common(request.sampling)
        if self.config.endpoint == "chat":
            fields["messages"] = [_message(message) for message in request.prompt.messages]
        else:
            fields["prompt"] = plain_text(request.prompt.messages)
        fields.update(self._constraint(request.prompt))
        return encoded(fields)

    def canary(self) -> bytes:
        """The smallest request there is: one token, from a word."""
        fields: JsonObject = {"model": self.config.model, self.config.reply_limit_parameter: 1}
        if self.config.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": "Hi"}]
        else:
            fields["prompt"] = "Hi"
        return encoded(fields)

    def _common(self, sampling: Sampling) -> JsonObject:
        config = self.config
        fields: JsonObject = {
            "model": config.model,
            "temperature": sampling.temperature,
            config.reply_limit_parameter: sampling.max_tokens,
        }
        for name in _OPTIONAL:
            value = getattr(sampling, name)
            if value is not None:
                fields[name] = value
        if sampling.stop:
            fields["stop"] = list(sampling.stop)
        if config.chat_template_kwargs:
            fields["chat_template_kwargs"] = dict(config.chat_template_kwargs)
        if self.has_tokens:
            fields["return_token_ids"] = True
            fields["logprobs"] = True if config.endpoint == "chat" else 1
        return fields

    def _constraint(self, prompt: Prompt) -> Mapping[str, JsonValue]:
        """What holds the decoding to the legal replies, as far as the server can be held to them.

        The schemas leave keys out freely, which `strict` of OpenAI's own does not allow; a list of choices it has no
        form for at all. There the prompt's words have to do, as for an engine that cannot constrain anything.
        """
        if self.config.server == "vllm":
            if prompt.schema is not None:
                return {"structured_outputs": {"json": dict(prompt.schema)}}
            return {} if prompt.choices is None else {"structured_outputs": {"choice": list(prompt.choices)}}
        if prompt.schema is None or self.config.endpoint == "completions":
            return {}
        schema: JsonObject = {"name": "reply", "schema": dict(prompt.schema)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


def encoded(fields: JsonObject) -> bytes:
    """Compact JSON in UTF-8; half a surrogate pair, which UTF-8 has no bytes for, goes as a question mark."""
    try:
        return _QUICK.encode(fields)
    except UnicodeEncodeError:
        return _ENCODER.encode(fields).encode("utf-8", "replace")


def _message(message: Message) -> JsonValue:
    return {"role": message.role, "content": message.content}
