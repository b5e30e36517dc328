"""A request → the bytes of its body. Pure.

The fields depend on what the server understands. A setting that only vLLM knows is refused for other servers when the
backend is built, because a server silently ignores what it does not know.

The limit on a reply is `max_tokens` unless the configuration says otherwise. OpenAI's newest models insist on its
successor `max_completion_tokens`, with an error; older servers silently ignore that one and answer without a limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from mac_runner.backends.chat_template import ChatShape, plain_text, switches_of
from mac_runner.backends.forms import JSON_OBJECT
from mac_runner.backends.openai.settings import OpenaiConfig
from mac_runner.types import JsonObject, JsonValue, Prompt, Request, Sampling

_OPTIONAL: Final = (
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "top_k",
    "min_p",
    "repetition_penalty",
    "reasoning_effort",
    "verbosity",
)

_QUICK: Final = msgspec.json.Encoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""For what msgspec refuses: half a surrogate pair, which a model may have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyWriter:
    """What all requests of one model have in common."""

    config: OpenaiConfig
    has_tokens: bool

    def body(self, request: Request, shape: ChatShape) -> bytes:
        """The body of a request to a server with a chat template of this `shape`."""
        fields = self._common(request.sampling)
        if self.config.endpoint == "chat":
            fields["messages"] = [
                {"role": message.role, "content": message.content} for message in shape.fit(request.prompt.messages)
            ]
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
        template: JsonObject = {**config.chat_template_kwargs, **switches_of(sampling.thinking)}
        if template:
            fields["chat_template_kwargs"] = template
        if self.has_tokens:
            fields["return_token_ids"] = True
            fields["logprobs"] = True if config.endpoint == "chat" else 1
        return fields

    def _constraint(self, prompt: Prompt) -> Mapping[str, JsonValue]:
        """What constrains the decoding to the legal replies, as far as the server can.

        OpenAI's `strict` allows no optional keys, which the schemas have, and its protocol has no form for a list of
        choices. There the prompt's words have to do, as for an engine that cannot constrain anything.
        """
        if self.config.server == "vllm":
            if prompt.schema is JSON_OBJECT:
                return {"structured_outputs": {"json_object": True}}
            if prompt.schema is not None:
                return {"structured_outputs": {"json": dict(prompt.schema)}}
            return {} if prompt.choices is None else {"structured_outputs": {"choice": list(prompt.choices)}}
        if prompt.schema is None or self.config.endpoint == "completions":
            return {}
        if prompt.schema is JSON_OBJECT:
            return {"response_format": {"type": "json_object"}}
        schema: JsonObject = {"name": "reply", "schema": dict(prompt.schema)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


def encoded(fields: JsonObject) -> bytes:
    """Compact JSON in UTF-8, with a question mark for half a surrogate pair, which has no bytes in UTF-8."""
    try:
        return _QUICK.encode(fields)
    except UnicodeEncodeError:
        return _ENCODER.encode(fields).encode("utf-8", "replace")
