"""What a stub server can do with a request."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, cast

from mac_runner.types import JsonObject


@dataclass(frozen=True)
class Received:
    """One request. `number` counts those for completions, from 0."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @cached_property
    def json(self) -> JsonObject:
        """The body."""
        return cast("JsonObject", json.loads(self.body))

    @property
    def is_canary(self) -> bool:
        """Whether this asks for one token only, or whether a setting is refused."""
        if self.headers.get("x-request-id") == "canary":
            return True
        options = self.json.get("options")  # Ollama has them here.
        return (options.get("num_predict") if isinstance(options, dict) else self.json.get("max_tokens")) == 1


@dataclass(frozen=True, slots=True)
class Say:
    """A completion with this text; `usage` has its tokens: of the prompt, those cached, of the completion."""

    text: str = "So be it."
    finish_reason: str = "stop"
    latency_s: float | None = None
    usage: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """These bytes, with this status and these headers."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is torn down when the work is done, with `sent` after that many bytes of the reply."""

    sent: int = 0


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing, for ever."""


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes in so many pieces and nothing around them, the last one for ever where it `is_endless`."""

    pieces: tuple[bytes, ...] = ()
    then: Literal["keep", "close", "reset"] = "keep"
    interval_s: float = 0.0
    is_endless: bool = False


Behaviour: TypeAlias = Say | Send | Reset | Hang | Raw


def echo(received: Received) -> Say:
    """A text that depends on the request alone, so that a run has the same transcripts whatever went wrong in it."""
    return Say(f"word {hashlib.sha256(received.body).hexdigest()[:12]}")


def completion(said: Say, received: Received) -> bytes:
    """The body of a completion, as the path wants it."""
    choice: JsonObject = {"index": 0, "finish_reason": said.finish_reason}
    if received.path.endswith("/chat/completions"):
        choice["message"] = {"role": "assistant", "content": said.text}
    else:
        choice["text"] = said.text
    prompt, cached, tokens = said.usage or (len(received.body) // 4, 0, len(said.text) // 4)
    usage: JsonObject = {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return encoded({"id": "c", "object": "chat.completion", "model": "stub", "choices": [choice], "usage": usage})


def failure(status: int, message: str, *, code: str | None = None, headers: tuple[tuple[str, str], ...] = ()) -> Send:
    """An error as servers of this protocol report it."""
    return Send(status, encoded({"error": {"message": message, "type": "error", "code": code}}), headers)


def squeezed(body: bytes, status: int = 200) -> Send:
    """A body that comes compressed, asked for or not."""
    return Send(status, gzip.compress(body), (("Content-Encoding", "gzip"),))


def encoded(value: JsonObject) -> bytes:
    """JSON as it goes over the wire."""
    return json.dumps(value).encode("utf-8")


def head(status: int, size: int, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The bytes before a body of `size` bytes."""
    more = "".join(f"{name}: {value}\r\n" for name, value in headers)
    text = f"HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n{more}\r\n"
    return text.encode("latin-1")


def flood(size: int = 1 << 30) -> Raw:
    """A body that is to have this many bytes, and does not end with them."""
    return Raw((head(200, size), b"x" * 65_536), is_endless=True)
