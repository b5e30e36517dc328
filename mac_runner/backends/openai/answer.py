"""A server's answer (status, headers, body) → a Reply, or a SendingError. Pure; it raises nothing else.

`http_errors` has the table of statuses, `refusals` that of what refusals mean. What else some servers say in the body
takes precedence:

| answer | what follows |
|---|---|
| no quota left, which OpenAI sends as 429 | as with a wrong key: waiting does not help |
| 500 of a vLLM whose engine has ended | sent again; a canary shows whether the endpoint died over this request |
| 400 of a vLLM that still works on the request | sent again: it has not noticed that the first sending ended |
| 200 with an error, as OpenRouter reports one that came after it began | as with the status that the error names, … |
| 200 of LM Studio for a path that it does not have | as with 404, … |
| 200 with anything else that is no reply | sent again, … |

… but whatever came with status 200 came from a server that works: it is held against the request alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct

from mac_runner.backends.chat_template import OPEN_THOUGHT, apart
from mac_runner.backends.http_errors import (
    ErrorBody,
    Meaning,
    error_body_in,
    error_body_of,
    is_busy,
    meaning_of,
    retry_after_s,
)
from mac_runner.backends.redaction import Redactor
from mac_runner.backends.refusals import Refusal, refusal_of, reply_to
from mac_runner.backends.server_text import own_reason, scalars_only, token_count, tokens_of
from mac_runner.backends.updates import policy_of
from mac_runner.errors import Verdict
from mac_runner.structs import convert
from mac_runner.types import FinishReason, JsonObject, JsonValue, PolicySpan, Reply, TokenTrace

T = TypeVar("T")


class Standing(Enum):
    """What a fault says about the endpoint it happened at."""

    SOUND = "sound"
    """It works: this request, or this moment, was at fault."""
    ANSWERED = "answered"
    """It works: it answered this request, with what is no reply."""
    SHAKY = "shaky"
    """It may be gone: several of these in a row set it aside."""
    FAILING = "failing"
    """It is there and failed at this request: after several in a row a canary shows whether it fails at all."""
    REFUSING = "refusing"
    """It works and refuses this request: after several in a row a canary shows whether it refuses all."""
    GONE = "gone"
    """No server is there: it is set aside at once."""
    DOUBTFUL = "doubtful"
    """Only a canary can show whether it answers any request."""
    UNSENT = "unsent"
    """Nothing reached it: this process had no file descriptor left for a connection."""
    CUT_OFF = "cut off"
    """It broke off while it worked: a canary shows whether it died."""
    HUNG = "hung"
    """It gave no answer at all for too long, and was set aside for it."""


class SendingError(Exception):
    """One request to one endpoint failed. It never leaves the package: the backend turns it into a BackendError.

    The scheduler decides by the verdict whether to send again; the choice of the next endpoint depends on the standing.
    `retry_after_s` and `is_busy` are as in TransientBackendError. `refusal` is what a refusal means, where known words
    say it.
    """

    def __init__(
        self,
        text: str,
        *,
        standing: Standing,
        verdict: Verdict = Verdict.RETRY,
        retry_after_s: float | None = None,
        is_busy: bool = False,
        refusal: Refusal | None = None,
    ) -> None:
        super().__init__(text)
        self.standing = standing
        self.verdict = verdict
        self.refusal = refusal
        self.retry_after_s = retry_after_s
        self.is_busy = is_busy


class NoModelError(SendingError):
    """The server lists its models, and ours is not among them."""


MALFORMED: Final = "malformed reply: "


def malformed(what: str) -> SendingError:
    """The error for an answer that cannot be read as a reply.

    The next answer may be right, so the request is sent again.
    """
    return SendingError(MALFORMED + what, standing=Standing.ANSWERED)


def _refused(text: str) -> SendingError:
    return SendingError(text, standing=Standing.SOUND, verdict=Verdict.FAIL_CONVERSATION)


class _Treatment(NamedTuple):
    """What follows for the request, and for the endpoint that answered."""

    verdict: Verdict
    standing: Standing


_TREATMENTS: Final = {
    Meaning.BUSY: _Treatment(Verdict.RETRY, Standing.SOUND),
    Meaning.BROKEN: _Treatment(Verdict.RETRY, Standing.FAILING),
    Meaning.GATEWAY: _Treatment(Verdict.RETRY, Standing.SHAKY),
    Meaning.DENIED: _Treatment(Verdict.FAIL_CONVERSATION, Standing.DOUBTFUL),
    Meaning.REFUSED: _Treatment(Verdict.FAIL_CONVERSATION, Standing.REFUSING),
    Meaning.FOREIGN: _Treatment(Verdict.RETRY, Standing.SHAKY),
}
_ENDED: Final = _Treatment(Verdict.RETRY, Standing.CUT_OFF)

NO_QUOTA: Final = "insufficient_quota"
ENGINE_ENDED: Final = "EngineCore encountered an issue"
"""What vLLM's server answers to every request from the end of its engine to its own."""
STILL_RUNNING: Final = "already running"
"""What vLLM says about a request id while it has not noticed that the first sending was given up."""
NO_SUCH_PATH: Final = "Unexpected endpoint or method"
"""What LM Studio says, with status 200, for a path that it does not serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The parts of an HTTP answer that are read."""

    status: int
    body: bytes
    retry_after: str | None = None
    location: str | None = None


def read_answer(answer: Answer, *, has_tokens: bool, now: datetime, redactor: Redactor, is_held: bool = False) -> Reply:
    """The reply to a completion request. Raises SendingError.

    `has_tokens` says that token ids were asked for, `is_held` that the reply is to have a form.
    """
    if answer.status == 200:
        body = decode(answer.body, redactor)
        failed = _error_in(body)
        if failed is None:
            return read_completion(body, has_tokens=has_tokens, redactor=redactor)
        error = error_body_in(failed, redactor)
    else:
        error = error_body_of(answer.body, redactor)
    status = _status(answer, error)
    refusal = refusal_of(status, error)
    if (reply := reply_to(refusal, error)) is not None:
        return reply
    if refusal is Refusal.FORM and not is_held:
        refusal = None
    if refusal is not None:
        text = f"status {status}: {error.quoted}"
        raise SendingError(text, standing=Standing.SOUND, verdict=Verdict.FAIL_CONVERSATION, refusal=refusal)
    raise _fault_of(answer, error, now, redactor)


def model_names(answer: Answer, now: datetime, redactor: Redactor) -> tuple[str, ...]:
    """The models a server lists. Raises SendingError."""
    if answer.status != 200:
        raise _fault_of(answer, error_body_of(answer.body, redactor), now, redactor)
    body = decode(answer.body, redactor)
    if body.get("error"):
        raise _fault_of(answer, error_body_in(body, redactor), now, redactor)
    try:
        return tuple(model.id for model in _converted(body.get("data"), list[_Model], "data", redactor))
    except SendingError:
        raise SendingError("it lists no models", standing=Standing.SHAKY) from None


def _error_in(body: JsonObject) -> JsonObject | None:
    """The part of a body with status 200 that has an error: the whole, or the choice that failed half-way."""
    choices = body.get("choices")
    if not choices:
        return body if body.get("error") else None
    first = choices[0] if isinstance(choices, list) else None
    return first if isinstance(first, dict) and first.get("error") else None


def _status(answer: Answer, error: ErrorBody) -> int:
    """The status that decides: the answer's own, or for 200 the one that the error names, if it names one."""
    return error.status or 200 if answer.status == 200 else answer.status


def _fault_of(answer: Answer, error: ErrorBody, now: datetime, redactor: Redactor) -> SendingError:
    """What follows an error that is not an overflow."""
    status = _status(answer, error)
    inside = ", reported with status 200" if answer.status == 200 != status else ""
    text = f"status {status}{inside}" + (f": {error.quoted}" if error.quoted else "")
    if 300 <= answer.status < 400 and answer.location:
        text += f"; it redirects to {redactor.quoted(answer.location)}, and redirects are not followed: name the right "
        text += "base_url"
    has_ended = ENGINE_ENDED in error.text and status >= 500
    meaning = Meaning.BROKEN if has_ended else _meaning(status, error)
    verdict, standing = _ENDED if has_ended else _TREATMENTS[meaning]
    standing = Standing.ANSWERED if answer.status == 200 else standing
    pause_s = retry_after_s(answer.retry_after, now) if verdict is Verdict.RETRY else None
    return SendingError(
        text,
        standing=standing,
        verdict=verdict,
        retry_after_s=pause_s,
        is_busy=is_busy(meaning, retry_after_s=pause_s),
    )


def _meaning(status: int, error: ErrorBody) -> Meaning:
    """What an answer means: by its body where that says more than its status."""
    if NO_QUOTA in error.codes or (status == 200 and NO_SUCH_PATH in error.text):
        return Meaning.DENIED
    if STILL_RUNNING in error.text:
        return Meaning.BUSY
    return Meaning.FOREIGN if status == 200 else meaning_of(status)


# Completions. Chat and text completions differ in where text, token ids and log-probabilities are, and in nothing else.

_TokenIds: TypeAlias = tuple[Annotated[int, Meta(ge=0)], ...]
_Logprob: TypeAlias = Annotated[float, Meta(ge=-1e6, le=1e6)]
"""The bounds are far beyond any log-probability; 1e999 is an infinity to the decoder."""


class _Model(Struct):
    id: str


class _Choice(Struct):
    finish_reason: Any = None
    message: Any = UNSET
    text: Any = None
    token_ids: Any = None
    prompt_token_ids: Any = UNSET
    logprobs: Any = None
    weight_versions: Any = None


class _Completion(Struct):
    choices: Annotated[list[Any], Meta(min_length=1)]
    usage: Any = None
    prompt_token_ids: Any = None


class _Message(Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None


class _TextPart(Struct, tag="text"):
    text: str


class _ThoughtText(Struct):
    type: Literal["text"]
    text: str


class _ThoughtPart(Struct, tag="thinking"):
    """Mistral has parts in a thought (https://docs.mistral.ai/capabilities/reasoning), Anthropic one text."""

    thinking: str | list[_ThoughtText]


class _VersionSpan(Struct):
    """Tokens that weights of one version made, as mac-serve and vLLM write it."""

    version: str | int


class _Entry(Struct):
    logprob: _Logprob


_REASONS: Final = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,  # Together's, which has "stop" for stop sequences
    "stop_sequence": FinishReason.STOP,  # Text Generation Inference's, which has "stop" for the end-of-sequence token …
    "eos_token": FinishReason.STOP,  # … and this where it does not translate it
    "length": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,  # Mistral's, where the model's context ends
}
_TOOL_CALL: Final = "the server took the reply for a call of its own tools; start it without tool parsing"
_REFUSALS: Final = {
    "content_filter": "the server's content filter cut the reply off",
    "tool_calls": _TOOL_CALL,
    "function_call": _TOOL_CALL,
}
_CUT_OFF: Final = frozenset({"abort", "error"})
_THOUGHTS: Final = ("reasoning", "reasoning_content")
"""Where servers put a thought: vLLM and OpenRouter in the first, SGLang, llama.cpp and DeepSeek in the second."""


def read_completion(body: JsonObject, *, has_tokens: bool, redactor: Redactor) -> Reply:
    """The reply in `body`, the first where it has several. Raises SendingError.

    Every field that makes the reply is checked. What stands beside it, such as counts of tokens, may be anything.
    """
    completion = _converted(body, _Completion, "completion", redactor)
    choice = _converted(completion.choices[0], _Choice, "choices[0]", redactor)
    finish_reason = _finish_reason(choice.finish_reason, redactor)
    usage = _object(completion.usage)
    said, thought = _said(choice, finish_reason, usage, redactor)
    text, thinking = apart(scalars_only(said), scalars_only(thought))
    if not text and finish_reason not in _REASONS.values():
        raise malformed(f"finish_reason is {finish_reason}, and there is no text")
    shown = redactor.reply(text)
    shown_thinking = None if thinking is None else redactor.reply(thinking)
    if has_tokens and (shown, shown_thinking) != (text, thinking):
        raise malformed("it repeats the key, and so would its token ids")
    return Reply(
        text=shown,
        thinking=shown_thinking,
        finish_reason=finish_reason,
        tokens=tokens_of(
            prompt=usage.get("prompt_tokens"),
            completion=usage.get("completion_tokens"),
            cached=_object(usage.get("prompt_tokens_details")).get("cached_tokens"),
        ),
        trace=_trace(completion, choice, redactor) if has_tokens else None,
        policy=_policy(choice, redactor),
    )


def _policy(choice: _Choice, redactor: Redactor) -> PolicySpan | None:
    if choice.weight_versions is None:
        return None
    spans = _converted(choice.weight_versions, list[_VersionSpan], "weight_versions", redactor)
    return policy_of([span.version for span in spans])


def _finish_reason(reason: JsonValue, redactor: Redactor) -> FinishReason:
    if not isinstance(reason, str):
        return FinishReason.UNKNOWN
    if reason in _REFUSALS:
        raise _refused(_REFUSALS[reason])
    if reason in _CUT_OFF:
        raise SendingError(f"the server gave the request up (finish_reason {reason!r})", standing=Standing.ANSWERED)
    return _REASONS.get(reason) or own_reason(reason, redactor.quoted)


def _object(value: JsonValue) -> JsonObject:
    """`value`, or an object without fields for anything else."""
    return value if isinstance(value, dict) else {}


def _said(choice: _Choice, finish_reason: FinishReason, usage: JsonObject, redactor: Redactor) -> tuple[str, str]:
    """The text, or what the server sent in its place, and the thought that it took out of it."""
    if choice.message is UNSET:
        return _converted(choice.text, str, "text", redactor), ""
    message = _converted(choice.message, _Message, "message", redactor)
    name = next((name for name in _THOUGHTS if getattr(message, name)), None)
    aside = "" if name is None else _converted(getattr(message, name), str, name, redactor)
    is_cut_off = finish_reason is FinishReason.LENGTH and not (message.content or aside or message.refusal)
    hidden = token_count(_object(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    if is_cut_off and (message.content is None or hidden):
        return OPEN_THOUGHT, ""  # Hosted models think without showing it.
    text, thought = _content(message.content, redactor)
    thought = thought or aside
    # A server that takes the thought out of the text sends no text when the thought did not end; one that sends a
    # refusal apart sends none beside it.
    if not text and message.refusal:
        return _converted(message.refusal, str, "refusal", redactor), thought
    if not text and not thought and message.tool_calls:
        raise _refused(_TOOL_CALL)
    return text, thought  # The protocol also has null for an empty reply.


def _content(content: JsonValue, redactor: Redactor) -> tuple[str, str]:
    """The text of a message, and the thought before it, as one text or as parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    parts = _converted(content, list[_TextPart | _ThoughtPart], "content", redactor)
    text = "".join(part.text for part in parts if isinstance(part, _TextPart))
    thoughts = [part.thinking for part in parts if isinstance(part, _ThoughtPart)]
    return text, "".join(one if isinstance(one, str) else "".join(part.text for part in one) for one in thoughts)


def _trace(completion: _Completion, choice: _Choice, redactor: Redactor) -> TokenTrace:
    prompt_ids = completion.prompt_token_ids if choice.prompt_token_ids is UNSET else choice.prompt_token_ids
    ids = {"prompt_token_ids": prompt_ids, "token_ids": choice.token_ids}
    for name, found in ids.items():
        if found is None:
            text = f"the server sent no {name}; record_tokens needs vLLM 0.11 or later behind every base_url"
            raise SendingError(text, standing=Standing.ANSWERED, verdict=Verdict.FAIL_RUN)
    prompt, made = (_converted(found, _TokenIds, name, redactor) for name, found in ids.items())
    logprobs = _converted(choice.logprobs, dict[str, Any], "logprobs", redactor)
    listed = logprobs.get("token_logprobs", logprobs.get("content"))
    entries = _converted(listed, list[_Logprob | _Entry], "logprobs", redactor)
    if len(entries) != len(made):
        raise malformed(f"{len(made)} token ids with {len(entries)} log-probabilities")
    likely = [entry.logprob if isinstance(entry, _Entry) else entry for entry in entries]
    try:
        return TokenTrace(prompt_ids=prompt, completion_ids=made, logprobs=likely)
    except ValueError as fault:
        raise malformed(f"token ids: {fault}") from None


def _converted(value: JsonValue, kind: type[T], name: str, redactor: Redactor) -> T:
    """`value` as a `kind`. Raises SendingError, which names the place."""
    try:
        return convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # The latter for half a surrogate pair in a key.
        raise malformed(f"{name}: {redactor.quoted(str(error))}") from None


_QUOTED_CHARS: Final = 200
_QUOTED_BYTES: Final = 4096
"""Enough for a quotation of _QUOTED_CHARS in any characters."""


def decode(body: bytes, redactor: Redactor) -> JsonObject:
    """The JSON object in `body`, with or without a byte order mark. Raises SendingError.

    The standard decoder takes NaN for a number and keeps the last of two values with one key. It raises RecursionError
    for enough brackets, and ValueError for enough digits. Here each of these is the same malformed reply.
    """
    try:
        value = _DECODER.decode(body.decode("utf-8-sig"))
    except RecursionError:
        raise malformed("JSON nested too deep") from None
    except ValueError as error:  # Of the bytes, of the JSON, of a number with too many digits, or of ours below.
        # A proxy's page, or a stream that was not asked for: its beginning says what the error cannot.
        start = redactor.quoted(body[:_QUOTED_BYTES].decode("utf-8-sig", "replace"), _QUOTED_CHARS)
        raise malformed(f"not JSON: {error}; it begins: {start}" if start else f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise malformed(f"JSON, but {type(value).__name__} in the place of an object")
    return value


def _without_twins(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _reject(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_without_twins, parse_constant=_reject)
