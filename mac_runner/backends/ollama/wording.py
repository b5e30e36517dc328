"""A request in Ollama's words, and Ollama's answer in ours. Pure.

What Ollama calls an option has the name llama.cpp gave it. A list of choices is asked for as a JSON schema, the only
form Ollama can hold a reply to; the quotes it then comes in are taken off again, so that the choice reads the same
from every engine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from mac_runner.backends.chat import CLOSED_THOUGHT, OPEN_THOUGHT
from mac_runner.backends.foreign import scalars_only
from mac_runner.backends.redaction import Redactor
from mac_runner.errors import TransientBackendError
from mac_runner.limits import ENGINE_TOKENS_MAX
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
    """The `options` of a request; what is None is left out, and so left to the model's own defaults."""
    options: JsonObject = {
        option: value for name, option in _OPTIONS.items() if (value := getattr(sampling, name)) is not None
    }
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    return options | load_options(num_ctx)


def load_options(num_ctx: int | None) -> JsonObject:
    """The options a model is loaded with: a request that differs in one makes Ollama load it again."""
    return {} if num_ctx is None else {"num_ctx": num_ctx}


def messages_of(prompt: Prompt) -> list[dict[str, str]]:
    """The messages. Half a surrogate pair, for which UTF-8 has no bytes, goes as a question mark."""
    return [
        {"role": message.role, "content": message.content.encode("utf-8", "replace").decode()}
        for message in prompt.messages
    ]


def format_of(prompt: Prompt) -> dict[str, JsonValue] | None:
    """The JSON schema that the reply is held to."""
    if prompt.schema is not None:
        return dict(prompt.schema)
    return None if prompt.choices is None else {"type": "string", "enum": list(prompt.choices)}


def reply_of(response: ChatResponse, request: Request, *, context_tokens: int | None, redactor: Redactor) -> Reply:
    """The reply in `response`. Raises TransientBackendError when it was not brought to an end.

    A prompt that fills the whole context was cut to fit, or leaves no room for a reply: either way it did not fit.
    """
    tokens = TokenCount(prompt=_count(response.prompt_eval_count), completion=_count(response.eval_count))
    if context_tokens is not None and tokens.prompt >= context_tokens:
        return Reply(text="", finish_reason=FinishReason.OVERFLOW, tokens=TokenCount(prompt=tokens.prompt))
    finish_reason = _finish_reason(response, request.sampling, tokens, redactor)
    content = response.message.content or ""
    if request.prompt.schema is None and request.prompt.choices is not None:
        content = _unquoted(content)
    return Reply(
        text=redactor.reply(scalars_only(_with_thought(response.message.thinking or "", content))),
        finish_reason=finish_reason,
        tokens=tokens,
    )


def _count(tokens: int | None) -> int:
    """Tokens as the server counted them; none where it does not count."""
    if tokens is not None and not 0 <= tokens <= ENGINE_TOKENS_MAX:
        raise TransientBackendError("malformed answer from Ollama: a number of tokens is no count")
    return tokens or 0


def _finish_reason(response: ChatResponse, sampling: Sampling, tokens: TokenCount, redactor: Redactor) -> FinishReason:
    if response.done:
        match response.done_reason:
            case "stop":
                return FinishReason.STOP
            case "length":
                return FinishReason.LENGTH
            case None:  # The documented example gives no reason.
                return FinishReason.LENGTH if tokens.completion >= sampling.max_tokens else FinishReason.STOP
    raise TransientBackendError(
        f"Ollama gave the request up (done_reason {redactor.quoted(str(response.done_reason), 40)!r})"
    )


def _with_thought(thought: str, content: str) -> str:
    """The reply as the model wrote it: Ollama takes the thought out of it, together with its tags."""
    if not thought:
        return content
    return f"{OPEN_THOUGHT}{thought}{CLOSED_THOUGHT}\n{content}" if content else f"{OPEN_THOUGHT}{thought}"


def _unquoted(text: str) -> str:
    """The string that `text` is as JSON; one that was cut off, or is no string, is left as it came."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text
