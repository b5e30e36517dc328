"""HTTP errors of model servers: statuses, error bodies, Retry-After, and what a refusal means. Pure.

One table of statuses serves every protocol; each dialect adds what its own servers say in the body. What a server means
when it refuses a request (`Refusal`) is read from its words, because most meanings have the status 400. The words
(`_WORDS`) were read on 2026-11-26: those of vLLM (0.32) and mac-serve in their sources, all others in what clients of
them match, in documentation and in reports of users. A gateway repeats the words of the server behind it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

from mac_runner.backends.chat_template import OPEN_THOUGHT, ChatShape, apart
from mac_runner.backends.redaction import ENGINE_ERROR_CHARS_MAX, Redactor, clipped
from mac_runner.errors import RETRY_AFTER_S_MAX
from mac_runner.types import FinishReason, JsonObject, JsonValue, Message, Reply

_VERDICT_CHARS: Final = 2000


class Meaning(Enum):
    """What a status says about the request, or about the server."""

    ANSWER = "answer"
    """The body has the answer."""
    BUSY = "busy"
    """Not now: the server works, and may answer the same request later."""
    BROKEN = "broken"
    """The server failed at this request; the status does not say whether it fails at every request."""
    GATEWAY = "gateway"
    """A gateway says that the engine behind it does not serve."""
    DENIED = "denied"
    """The key, the account, the address or the model's name is wrong: perhaps for this request, perhaps for all."""
    REFUSED = "refused"
    """This request is wrong, and stays so."""
    FOREIGN = "foreign"
    """No engine answers a completion with this status: something else listens here."""


_MEANINGS: Final = {
    200: Meaning.ANSWER,
    401: Meaning.DENIED,
    402: Meaning.DENIED,
    403: Meaning.DENIED,
    404: Meaning.DENIED,
    408: Meaning.BUSY,
    409: Meaning.BUSY,
    425: Meaning.BUSY,
    429: Meaning.BUSY,
    502: Meaning.GATEWAY,
    503: Meaning.GATEWAY,
    504: Meaning.GATEWAY,
    529: Meaning.BUSY,  # In no standard; some services send it when they are overloaded.
}


def meaning_of(status: int) -> Meaning:
    if status in _MEANINGS:
        return _MEANINGS[status]
    if 400 <= status < 500:
        return Meaning.REFUSED
    return Meaning.BROKEN if 500 <= status < 600 else Meaning.FOREIGN


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds from `now`, at most RETRY_AFTER_S_MAX; None when the header is missing, past, or unusable.

    Both forms of RFC 9110 are read, seconds and an HTTP date; fractions of a second are sent in practice.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        seconds = _seconds_until(header, now)
    return min(seconds, RETRY_AFTER_S_MAX) if seconds > 0 else None


def _seconds_until(text: str, now: datetime) -> float:
    try:
        moment = parsedate_to_datetime(text)
        # A date without a zone is in GMT, the only zone an HTTP date may have.
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):  # What the parser of mail dates raises on junk.
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """What an error body says, on one short line; empty where nothing can be read."""

    text: str = ""
    """The original, for verdicts only; longer than what is quoted, since gateways put words of their own first."""
    quoted: str = ""
    """The same for messages, withheld if it repeats a key."""
    codes: frozenset[str] = frozenset()
    param: str = ""
    """The field of the request that the server objects to, if it names one."""
    status: int | None = None
    """The HTTP status that the body itself names; with status 200 this one decides."""
    generation: str = ""
    """The reply that the model had made when the server gave the request up (Groq)."""


def error_body_of(body: bytes, redactor: Redactor) -> ErrorBody:
    """The error in the bytes of a body. Never raises."""
    text = body.decode("utf-8", "replace")
    value = _json(text)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]  # Gemini's form.
    if not isinstance(value, dict):
        value = {"error": text} if text else {}  # Most likely a proxy's page: its beginning is better than nothing.
    return error_body_in(value, redactor)


def error_body_in(body: JsonObject, redactor: Redactor) -> ErrorBody:
    """The error in a JSON body; the whole of it, where its form is not known. Never raises.

    OpenAI's form is `{"error": {"message": …, "code": …}}`, Ollama's `{"error": …}`, FastAPI's `{"detail": …}`. The
    code is a word, or a status as a number (OpenRouter, llama.cpp) or as a text (LiteLLM). OpenRouter has the body of
    the server behind it in `{"error": {"metadata": {"raw": …}}}`.
    """
    error = body.get("error") or body
    if not isinstance(error, dict):
        error = {"message": error}
    metadata = error.get("metadata")
    raw = _words(metadata.get("raw")) if isinstance(metadata, dict) else ""
    behind = _json(raw)
    inner = behind.get("error") or behind if isinstance(behind, dict) else {}
    found = inner if isinstance(inner, dict) else {}
    message = _words(error.get("message", body.get("detail"))) or (_words(body) if body else "")
    words = f"{message}: {raw}" if raw else message
    return ErrorBody(
        text=clipped(words, _VERDICT_CHARS),
        quoted=redactor.quoted(words),
        codes=frozenset(
            str(code) for one in (error, found) for name in ("code", "type") if (code := one.get(name)) is not None
        ),
        param=clipped(param) if isinstance(param := error.get("param", found.get("param")), str) else "",
        status=next(filter(None, (_status(error.get(name)) for name in ("code", "status", "status_code"))), None),
        generation=_words(error.get("failed_generation", found.get("failed_generation"))),
    )


def _json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _status(code: object) -> int | None:
    """The error status that `code` spells; a code may be anything."""
    try:
        number = int(str(code))
    except ValueError:
        return None
    return number if 400 <= number < 600 else None


def _words(value: JsonValue) -> str:
    if isinstance(value, dict | list):
        try:
            return json.dumps(value, ensure_ascii=False)
        except RecursionError:
            return ""
    return "" if value is None else str(value)


class Refusal(Enum):
    """What a refusal means, and what follows. Where words have several meanings, the first one counts.

    One in words that are not known fails its conversation; the error quotes them and names settings worth trying.
    """

    CUT_OFF = "cut off"
    """The reply reached its limit before it had any text, or its whole form: it is an open thought."""
    REPLY = "reply"
    """The model made a reply, and the server found it without its form: that reply is one to correct."""
    TOO_LONG = "too long"
    """The prompt, alone or with the longest reply, does not fit: FinishReason.OVERFLOW."""
    SYSTEM = "system"
    """The chat template takes no system message, or none here: the request is sent again, rewritten."""
    ALTERNATION = "alternation"
    """The chat template takes no two messages of one role in a row: the request is sent again, rewritten."""
    FORM = "form"
    """The server does not hold replies to this form: the run stops and names the setting."""


_WORDS: Final[Mapping[Refusal, Mapping[str, str]]] = {
    Refusal.CUT_OFF: {
        "Groq": r"max completion tokens reached before",
        "OpenAI": r"max_tokens or model output limit was reached",
    },
    Refusal.REPLY: {
        "Groq": r"json_validate_failed|output_parse_failed|tool_use_failed|generated json does not match"
        r"|failed to (?:generate|validate) json",
        "LiteLLM": r"jsonschemavalidationerror",
    },
    Refusal.TOO_LONG: {
        # Also llama.cpp's, SGLang's, Ollama's, Fireworks', Mistral's, MiniMax's and Anthropic's. What is too long is
        # so for the context: many refusals of other things speak of a context, of tokens and of what exceeds what.
        "many": r"(?:exceed(?:s|ed)?|(?:long|larg|great)er than|too (?:long|large) for)"
        r"(?: (?:the|this|your|its|model(?:'s)?|with|available|max|maximum|total|\d+)){0,6}"
        r" context[ _](?:length|size|window|limit)|\bcontext[ _](?:length|size|window)(?: is| was| has been)?[ _]"
        r"exceed(?:ed|s (?:the )?limit)|contextwindowexceeded",
        "Alibaba": r"range of input length should be",
        "Anthropic, Bedrock": r"(?:prompt|input) is too long",
        "Cohere": r"too many tokens: (?:total number of tokens|size limit)",
        "DeepInfra, Poolside": r"input length \d+ exceeds (?:the )?max",
        "DeepSeek, OpenRouter, vLLM": r"maximum context length is \d",
        "Gemini": r"input token count[^\n]{0,20} exceeds the maximum",
        "GitHub": r"prompt token count of \d+ exceeds",
        "Groq, Cerebras": r"reduce (?:the length of )?(?:the|your) (?:input )?(?:messages?|prompt)",
        "llama.cpp": r"exceed_context_size",
        "LM Studio": r"keep the first \d+ tokens when (?:the )?context",
        "mac-serve, Ollama": r"\b(?:request|prompt|input)\b[^\n,;]{0,30} (?:exceeds|is longer than) the context\b",
        "Moonshot": r"exceeded model token limit",
        "OpenAI": r"input tokens exceed the configured limit",
        "Text Generation Inference, Together": r"`inputs` (?:tokens \+ `max_new_tokens` must be|must have less than)",
        # Without a limit in the request it takes what the prompt leaves of the context; ours is never below one.
        "vLLM": r"longer than the maximum model length|max_tokens must be at least 1, got (?:-|0\b)",
        "xAI": r"maximum prompt length is \d",
        "Zhipu": r"prompt exceeds (?:the )?max",
    },
    Refusal.SYSTEM: {
        "many": r"system (?:role|message|prompt|instruction)s? (?:is |are )?not (?:supported|allowed|enabled)"
        r"|not support (?:the )?['\"]?system['\"]? (?:role|message|prompt|instruction)"
        r"|(?:unsupported|unknown|invalid|unexpected) role:? ['\"]?system\b"
        r"|role:? ['\"]?system['\"]? (?:is )?not \w+ed",
        "chat templates": r"system message must be (?:at the|the first)"
        r"|only user(?:, assistant and tool|,? and assistant) roles are",
        "Gemini": r"developer instruction is not enabled",
        "OpenAI": r"does not support '?system'? with this model",
    },
    Refusal.ALTERNATION: {
        "chat templates": r"roles must alternate",
        "Gemini": r"requests alternate between user and model",
        "Perplexity": r"should alternate with assistant",
    },
    Refusal.FORM: {
        "Anthropic": r"output_config\.format|output[ _]format",
        "LiteLLM, LM Studio, OpenAI, DeepSeek, Groq": r"response[ _]?format|json mode|schema for response",
        "llama.cpp, Text Generation Inference": r"grammar",
        "Ollama": r"struct field chatrequest\.format|invalid format",
        "SGLang, vLLM": r"json[ _]?schema|json[ _]?object|guided[ _](?:json|choice|decoding|grammar)"
        r"|structured[ _]?output",
        "any": r"schema",
    },
}
_PATTERNS: Final = {
    refusal: re.compile("|".join(f"(?:{words})" for words in said.values()), re.IGNORECASE)
    for refusal, said in _WORDS.items()
}
_FORM: Final = _PATTERNS[Refusal.FORM]
"""So broad that it is looked for where the server speaks, and not in what it repeats of the request behind that."""
_FORM_STATUSES: Final = frozenset({400, 404, 405, 415, 422, 501})
"""The statuses with which servers answer that they do not know a field, or a value of it."""
_FORM_BROKEN: Final = re.compile(
    r"failed to (?:parse|initialize|create) (?:the )?grammar|json schema conversion"
    r"|invalid json schema in format|vocabulary required for format",
    re.IGNORECASE,
)
"""What llama.cpp and Ollama answer with status 500 to a schema that they cannot follow."""
_SPOKEN: Final = frozenset({Meaning.ANSWER, Meaning.REFUSED, Meaning.BROKEN})
"""Statuses whose words count: llama.cpp sends what a chat template says as 500, OpenRouter an error with status 200."""
_CONTENT_TOO_LARGE: Final = 413


def refusal_of(status: int, error: ErrorBody) -> Refusal | None:
    """What an answer with an error means for its request; None where no words are known."""
    if status == _CONTENT_TOO_LARGE:
        return Refusal.TOO_LONG
    words = " ".join((error.text, error.param, *error.codes))
    if meaning_of(status) in _SPOKEN:
        known = (one for one, pattern in _PATTERNS.items() if pattern is not _FORM and pattern.search(words))
        refusal = next(known, Refusal.REPLY if error.generation else None)
        if refusal is Refusal.REPLY and _PATTERNS[Refusal.CUT_OFF].match(error.generation):
            return Refusal.CUT_OFF  # Groq may say it in the place of the reply.
        if refusal is not None:
            return refusal
    if status in _FORM_STATUSES:
        return Refusal.FORM if names_form(f"{error.param} {error.text[:ENGINE_ERROR_CHARS_MAX]}") else None
    return Refusal.FORM if status == 500 and _FORM_BROKEN.search(words) else None


def names_form(text: str) -> bool:
    return _FORM.search(text) is not None


def reply_to(refusal: Refusal | None, error: ErrorBody) -> Reply | None:
    """The reply that a refusal amounts to; None for one that leaves the request without a reply."""
    match refusal:
        case Refusal.TOO_LONG:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        case Refusal.CUT_OFF:
            return Reply(text=OPEN_THOUGHT, finish_reason=FinishReason.LENGTH)
        case Refusal.REPLY:
            text, thinking = apart(error.generation)
            return Reply(text=text, thinking=thinking)
    return None


def shape_after(refusal: Refusal | None, shape: ChatShape, messages: Sequence[Message]) -> ChatShape | None:
    """What to take the server's chat template for, where it refused `messages` in this `shape`.

    None where that says nothing, or where no other shape changes these messages. What the template complains of is
    tried first, and then the other: one without a system role may only say that roles must alternate.
    """
    if refusal not in (Refusal.SYSTEM, Refusal.ALTERNATION):
        return None
    ways = [replace(shape, has_system=False), replace(shape, must_alternate=True)]
    both = ChatShape(has_system=False, must_alternate=True)
    sent = shape.fit(messages)
    tried = (*(ways if refusal is Refusal.SYSTEM else reversed(ways)), both)
    return next((other for other in tried if other.fit(messages) != sent), None)


def worth_trying(setting: str) -> str:
    """The advice for a refusal in words that are not known."""
    return f"; settings worth trying: constrained_decoding: none, and {setting}"
