"""A server's answer (status, headers, body) → a Reply, or a SendingError; and what a protocol says of itself. Pure.

`errors` has the table of statuses, and that of what refusals mean. What the server of a protocol says in the body takes
precedence (`Dialect.said`), and so does this:

| answer | what follows |
|---|---|
| 200 with an error, as OpenRouter reports one that came after it began | as with the status that the error names, … |
| 200 with anything else that is no reply | sent again, … |

… but whatever came with status 200 came from a server that works: it is held against the request alone.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, NoReturn, TypeVar

import msgspec

from mac_runner.backends.chat_template import ChatShape
from mac_runner.backends.http.errors import (
    ErrorBody,
    Meaning,
    Refusal,
    error_body_in,
    error_body_of,
    meaning_of,
    refusal_of,
    reply_to,
    retry_after_s,
)
from mac_runner.backends.redaction import Redactor, bearer
from mac_runner.errors import Verdict
from mac_runner.structs import convert
from mac_runner.types import JsonObject, JsonValue, Message, Prompt, Reply, Request, Sampling, Turn

if TYPE_CHECKING:
    from mac_runner.backends.http.settings import AnthropicConfig, OllamaConfig, OpenaiConfig

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
    LATE = "late"
    """It gave no answer in time: a canary shows whether it gives any."""
    UNSENT = "unsent"
    """Nothing reached it: this process had no file descriptor left for a connection."""
    CUT_OFF = "cut off"
    """It broke off while it worked: a canary shows whether it died."""
    RESTARTED = "restarted"
    """Its engine died while it worked on this request, and it starts another one for the next."""
    HUNG = "hung"
    """It gave no answer at all for too long, and was set aside for it."""


class SendingError(Exception):
    """One request to one endpoint failed. It never leaves the package: the backend turns it into a BackendError.

    The scheduler decides by the verdict whether to send again; the choice of the next endpoint depends on the standing.
    `retry_after_s` and `is_busy` are as in TransientBackendError. `refusal` is what a refusal means, where known words
    say it. `status` is that of the answer, or the one that it names.
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
        status: int | None = None,
    ) -> None:
        super().__init__(text)
        self.standing = standing
        self.verdict = verdict
        self.refusal = refusal
        self.retry_after_s = retry_after_s
        self.is_busy = is_busy
        self.status = status


class NoModelError(SendingError):
    """The server lists its models, and ours is not among them."""


MALFORMED: Final = "malformed reply: "


def malformed(what: str) -> SendingError:
    """The error for an answer that cannot be read as a reply.

    The next answer may be right, so the request is sent again.
    """
    return SendingError(MALFORMED + what, standing=Standing.ANSWERED)


def refused(text: str) -> SendingError:
    """The error for an answer with what stays no reply to this request."""
    return SendingError(text, standing=Standing.SOUND, verdict=Verdict.FAIL_CONVERSATION)


class Treatment(NamedTuple):
    """What follows for the request, and for the endpoint that answered."""

    verdict: Verdict
    standing: Standing


_TREATMENTS: Final = {
    Meaning.BUSY: Treatment(Verdict.RETRY, Standing.SOUND),
    Meaning.BROKEN: Treatment(Verdict.RETRY, Standing.FAILING),
    Meaning.GATEWAY: Treatment(Verdict.RETRY, Standing.SHAKY),
    Meaning.DENIED: Treatment(Verdict.FAIL_CONVERSATION, Standing.DOUBTFUL),
    Meaning.REFUSED: Treatment(Verdict.FAIL_CONVERSATION, Standing.REFUSING),
    Meaning.FOREIGN: Treatment(Verdict.RETRY, Standing.SHAKY),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The parts of an HTTP answer that are read."""

    status: int
    body: bytes
    retry_after: str | None = None
    location: str | None = None


class Dialect(ABC):
    """What the protocol of a model's servers has of its own. Its methods raise SendingError or FormRefusedError."""

    servers: tuple[str, ...]
    """The addresses that the file lists, all alike."""
    config: OpenaiConfig | AnthropicConfig | OllamaConfig
    """The settings of the model's section."""
    path: str
    """Where completions are, below the URL of a server."""
    look_path: str
    """The page below that URL that shows whether a server is there, and has the model."""
    section: ClassVar[str]
    """The section of its settings, for messages."""
    urls: ClassVar[str]
    """The setting with the servers."""
    key_variable: str | None
    """The environment variable of the key; None without one."""
    address: ClassVar[str]
    """What to check of a server's address."""
    remedy: str
    """A setting worth trying where servers refuse what they do not explain."""
    starting: ClassVar[str] = "start the server"
    """What to do where none answers."""
    queues: ClassVar[bool] = False
    """Whether servers let any request wait for others, or for its model, so that a page has to show that they work."""
    has_template: bool = True
    """Whether servers write prompts with a chat template, which may refuse roles."""

    def headers(self, key: str | None) -> Mapping[str, str]:
        """What each request carries beside its body."""
        return bearer(key)

    @abstractmethod
    def body(self, request: Request, shape: ChatShape) -> bytes:
        """The body of a request to a server with a chat template of this `shape`."""

    @abstractmethod
    def reply(self, body: JsonObject, request: Request, redactor: Redactor) -> Reply:
        """The reply in an answer without an error, with all that it says."""

    def lack(self, _body: JsonObject, _redactor: Redactor) -> str | None:
        """Why a server with this look page cannot serve the model; None if it may, or the page does not say."""
        return None

    def error_in(self, body: JsonObject) -> JsonObject | None:
        """The part of a body with status 200 that has an error; None without one."""
        return body if body.get("error") else None

    def status_in(self, error: ErrorBody) -> int:
        """The status for an error that came with status 200."""
        return error.status or 200

    def said(self, _status: int, _error: ErrorBody) -> Meaning | Treatment | None:
        """What an error means by its words, where they say more than the status."""
        return None


CANARY: Final = Request(
    conversation="canary",
    turn=Turn(round=0, agent="canary", model="canary", place=0),
    prompt=Prompt(messages=(Message(role="user", content="Hi"),)),
    sampling=Sampling(max_tokens=1),
)
"""The smallest request there is: one token, from a word."""


def read_answer(
    answer: Answer, request: Request, dialect: Dialect, *, now: Callable[[], datetime], redactor: Redactor
) -> Reply:
    """The reply to a request. Raises SendingError."""
    if answer.status == 200:
        body = decode(answer.body, redactor)
        failed = dialect.error_in(body)
        if failed is None:
            return _withheld(dialect.reply(body, request, redactor), redactor)
        error = error_body_in(failed, redactor)
        status = dialect.status_in(error)
    else:
        error = error_body_of(answer.body, redactor)
        status = answer.status
    refusal = refusal_of(status, error)
    if (reply := reply_to(refusal, error)) is not None:
        return _withheld(reply, redactor)
    if refusal is Refusal.FORM and not request.prompt.is_constrained:
        refusal = None
    if refusal is not None:
        raise SendingError(
            f"status {status}: {error.quoted}",
            standing=Standing.SOUND if refusal is Refusal.FORM else Standing.REFUSING,
            verdict=Verdict.FAIL_CONVERSATION,
            refusal=refusal,
            status=status,
        )
    raise _fault(answer, status, error, dialect, now(), redactor)


def _withheld(reply: Reply, redactor: Redactor) -> Reply:
    """The reply without a text that repeats a key. Raises SendingError where its token ids would repeat it too."""
    text = redactor.reply(reply.text)
    thinking = None if reply.thinking is None else redactor.reply(reply.thinking)
    if (text, thinking) == (reply.text, reply.thinking):
        return reply
    if reply.trace is not None:
        raise malformed("it repeats the key, and so would its token ids")
    return replace(reply, text=text, thinking=thinking)


def page_of(answer: Answer, dialect: Dialect, now: datetime, redactor: Redactor) -> JsonObject:
    """The JSON of a page of a server. Raises SendingError."""
    if answer.status != 200:
        raise _fault(answer, answer.status, error_body_of(answer.body, redactor), dialect, now, redactor)
    body = decode(answer.body, redactor)
    if body.get("error"):
        error = error_body_in(body, redactor)
        raise _fault(answer, dialect.status_in(error), error, dialect, now, redactor)
    return body


def _fault(
    answer: Answer, status: int, error: ErrorBody, dialect: Dialect, now: datetime, redactor: Redactor
) -> SendingError:
    """What follows an error without a meaning of its own."""
    inside = ", reported with status 200" if answer.status == 200 != status else ""
    text = f"status {status}{inside}" + (f": {error.quoted}" if error.quoted else "")
    if 300 <= answer.status < 400 and answer.location:
        text += f"; it redirects to {redactor.quoted(answer.location)}, and redirects are not followed: name the right "
        text += dialect.urls
    found = dialect.said(status, error) or (Meaning.FOREIGN if status == 200 else meaning_of(status))
    verdict, standing = found if isinstance(found, Treatment) else _TREATMENTS[found]
    pause_s = retry_after_s(answer.retry_after, now) if verdict is Verdict.RETRY else None
    return SendingError(
        text,
        standing=Standing.ANSWERED if answer.status == 200 else standing,
        verdict=verdict,
        retry_after_s=pause_s,
        is_busy=found is Meaning.BUSY or pause_s is not None,  # By its status or words, or by asking for a pause.
        status=status,
    )


def converted(value: JsonValue, kind: type[T], name: str, redactor: Redactor) -> T:
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


_QUICK: Final = msgspec.json.Encoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""For what msgspec refuses: half a surrogate pair, which a model may have written."""


def encoded(fields: JsonObject) -> bytes:
    """Compact JSON in UTF-8, with a question mark for half a surrogate pair, which has no bytes in UTF-8."""
    try:
        return _QUICK.encode(fields)
    except UnicodeEncodeError:
        return _ENCODER.encode(fields).encode("utf-8", "replace")
