"""A completion as the protocol has it → a Reply. Every field that is used is checked; a wrong one is a malformed reply.

Chat and text completions differ in where text, token ids and log-probabilities stand, and in nothing else.
"""

from __future__ import annotations

from typing import Final, cast

from mac_runner.backends.chat import OPEN_THOUGHT
from mac_runner.backends.foreign import scalars_only
from mac_runner.backends.openai.faults import SendingError, Standing, malformed
from mac_runner.backends.openai.parts import Content, read_parts
from mac_runner.backends.redaction import Redactor
from mac_runner.errors import Verdict
from mac_runner.limits import ENGINE_TOKENS_MAX
from mac_runner.types import FinishReason, JsonObject, JsonValue, Reply, TokenCount, TokenTrace

_REASONS: Final = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,  # Together's, which has "stop" for stop sequences
    "stop_sequence": FinishReason.STOP,  # Text Generation Inference's, which has "stop" for the end-of-sequence token …
    "eos_token": FinishReason.STOP,  # … and this where it does not translate it
    "length": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,  # Mistral's, where the model's context ends
}
_TOOL_CALL: Final = "the server took the reply for a call of its own tools; start it without tool parsing"
_CUT_OFF: Final = frozenset({"abort", "error"})
_ASIDE: Final = {"reasoning": OPEN_THOUGHT, "reasoning_content": OPEN_THOUGHT, "refusal": ""}
"""What a server may set apart from the text, and the mark it gets where it stands for the text."""
_LOGPROB_MAX: Final = 1e6
"""What no log-probability comes near; 1e999 is an infinity to the decoder."""


def read_completion(body: JsonObject, *, has_tokens: bool, redactor: Redactor) -> Reply:
    """The reply in `body`. Raises SendingError."""
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise malformed("it does not hold exactly one choice")
    choice = _object(choices[0], "choices[0]")
    finish_reason = _finish_reason(choice.get("finish_reason"), redactor)
    tokens = _usage(body.get("usage"))
    is_hidden = finish_reason is FinishReason.LENGTH and _has_hidden_thought(choice, body.get("usage"))
    text = OPEN_THOUGHT if is_hidden else scalars_only(_text(choice, redactor))
    shown = redactor.reply(text)
    if not has_tokens:
        return Reply(text=shown, finish_reason=finish_reason, tokens=tokens)
    if shown != text:
        raise malformed("it repeats the key, and so would its token ids")
    prompt_ids = choice.get("prompt_token_ids", body.get("prompt_token_ids"))
    trace = TokenTrace(
        prompt_ids=_token_ids(prompt_ids, "prompt_token_ids"),
        completion_ids=_token_ids(choice.get("token_ids"), "token_ids"),
        logprobs=_logprobs(choice.get("logprobs")),
    )
    if len(trace.logprobs) != len(trace.completion_ids):
        raise malformed(f"{len(trace.completion_ids)} token ids with {len(trace.logprobs)} log-probabilities")
    return Reply(text=text, finish_reason=finish_reason, tokens=tokens, trace=trace)


def _finish_reason(reason: JsonValue, redactor: Redactor) -> FinishReason:
    if isinstance(reason, str) and reason in _REASONS:
        return _REASONS[reason]
    match reason:
        case "content_filter":
            raise _refused("the server's content filter cut the reply off")
        case "tool_calls" | "function_call":
            raise _refused(_TOOL_CALL)
        case str() if reason in _CUT_OFF:
            raise SendingError(f"the server gave the request up (finish_reason {reason!r})", standing=Standing.SHAKY)
    if isinstance(reason, str):
        found = repr(redactor.quoted(reason))
    else:
        found = "null" if reason is None else type(reason).__name__
    raise malformed(f"finish_reason is {found}, none of {', '.join(_REASONS)}, content_filter")


def _text(choice: JsonObject, redactor: Redactor) -> str:
    if "message" not in choice:
        return _string(choice.get("text"), "text")
    message = _object(choice["message"], "message")
    content = _content(message.get("content"), redactor)
    if content.text:
        return content.text
    if content.thought:
        return OPEN_THOUGHT + content.thought
    # A server that takes the thought out of the text leaves no text when the thought never came to an end; one that
    # sets a refusal apart leaves none beside it.
    for key, mark in _ASIDE.items():
        if message.get(key):
            return mark + _string(message[key], key)
    if message.get("tool_calls"):
        raise _refused(_TOOL_CALL)
    return ""  # The protocol has null for a reply without a word, too.


def _content(content: JsonValue, redactor: Redactor) -> Content:
    match content:
        case None:
            return Content()
        case str():
            return Content(text=content)
        case list():
            return read_parts(content, redactor)
    raise malformed("content is no text")


def _has_hidden_thought(choice: JsonObject, usage: JsonValue) -> bool:
    """Whether a reply without a word was cut off in a thought that the server keeps to itself, as hosted models do."""
    message = choice.get("message")
    if not isinstance(message, dict) or any(message.get(key) for key in ("content", *_ASIDE)):
        return False
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return message.get("content") is None or bool(thought)


def _usage(usage: JsonValue) -> TokenCount:
    """Tokens as the server counted them; none where it does not count."""
    if usage is None:
        return TokenCount()
    counts = _object(usage, "usage")
    details = counts.get("prompt_tokens_details")
    cached = None if details is None else _object(details, "prompt_tokens_details").get("cached_tokens")
    return TokenCount(
        prompt=_count(counts.get("prompt_tokens"), "prompt_tokens"),
        cached=_count(cached, "cached_tokens"),
        completion=_count(counts.get("completion_tokens"), "completion_tokens"),
    )


def _token_ids(ids: JsonValue, name: str) -> tuple[int, ...]:
    if ids is None:
        text = f"the server sent no {name}; record_tokens needs vLLM 0.11 or later behind every base_url"
        raise SendingError(text, standing=Standing.SOUND, verdict=Verdict.FAIL_RUN)
    if not isinstance(ids, list):
        raise malformed(f"{name} is no list")
    if any(type(number) is not int or number < 0 for number in ids):
        raise malformed(f"{name} holds something that is no token id")
    return tuple(cast("list[int]", ids))


def _logprobs(logprobs: JsonValue) -> tuple[float, ...]:
    found = _object(logprobs, "logprobs")
    entries = found.get("token_logprobs", found.get("content"))
    if not isinstance(entries, list):
        raise malformed("logprobs is no list")
    return tuple(_number(entry.get("logprob") if isinstance(entry, dict) else entry, "logprobs") for entry in entries)


def _refused(text: str) -> SendingError:
    return SendingError(text, standing=Standing.SOUND, verdict=Verdict.FAIL_CONVERSATION)


def _object(value: JsonValue, name: str) -> JsonObject:
    if not isinstance(value, dict):
        raise malformed(f"{name} is no object")
    return value


def _string(value: JsonValue, name: str) -> str:
    if not isinstance(value, str):
        raise malformed(f"{name} is no text")
    return value


def _count(value: JsonValue, name: str) -> int:
    """None is 0. A gateway whose language has one kind of number may write 10 as 10.0."""
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= ENGINE_TOKENS_MAX:
        raise malformed(f"{name} is no count")
    return value


def _number(value: JsonValue, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LOGPROB_MAX:
        raise malformed(f"{name} holds something that is no number")
    return float(value)
