"""A server that repeats the key that it is sent, wherever an answer of HTTP, or of an API of models, has room for it.

`TRICKS` are whole answers, byte by byte, some of them no HTTP at all. What they repeat is the key in the `n`-th of
several encodings, further and further to the right, so that a quotation of an answer is cut at any place.
"""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import cycle
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import quote

from mac_runner.types import JsonValue
from tests.sim.behaviour import Raw, Received
from tests.sim.openai_server import Connection, OpenaiServer

Trick: TypeAlias = Callable[[str], bytes]
"""From what is to be repeated to the bytes of an answer."""

_OFFSETS: Final = 397
"""A prime, so that every trick comes at every offset in time."""
_ENCODINGS: Final[tuple[Callable[[str], str], ...]] = (
    lambda key: key,
    str.swapcase,
    lambda key: json.dumps(key)[1:-1],
    lambda key: quote(key, safe=""),
    lambda key: "".join(f"&#{ord(char)};" for char in key),
    lambda key: "".join(f"\\u{ord(char):04x}" for char in key),
    lambda key: b64encode(f"Bearer {key}".encode()).decode(),
    lambda key: key.encode().hex(),
)


def answer(body: JsonValue | bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer, after which the connection is closed."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", "Connection: close", *headers)
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + data


def _raw(text: str) -> bytes:
    return text.encode("latin-1")


def _page(echo: str) -> bytes:
    return f"<html>{echo}</html>".encode()


HTTP: Final[dict[str, Trick]] = {
    "reason of a denial": lambda echo: answer({}, f"401 {echo}"),
    "reason of success": lambda echo: answer(_page(echo), f"200 {echo}"),
    "no status": lambda echo: _raw(f"HTTP/1.1 {echo}\r\n\r\n"),
    "no status line": lambda echo: _raw(f"{echo}\r\n\r\n"),
    "a byte that no header has": lambda echo: answer({}, "200 OK", f"X-Echo: {echo}\x01"),
    "header without a colon": lambda echo: answer({}, "200 OK", echo),
    "name of a header": lambda echo: answer({}, "200 OK", f"{echo}: x"),
    "Content-Encoding": lambda echo: answer({}, "200 OK", f"Content-Encoding: {echo}"),
    "Transfer-Encoding": lambda echo: _raw(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: {echo}\r\n\r\n"),
    "Content-Length": lambda echo: _raw(f"HTTP/1.1 200 OK\r\nContent-Length: {echo}\r\n\r\n"),
    "size of a chunk": lambda echo: _raw(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{echo}\r\n"),
    "two lengths": lambda echo: answer({}, "200 OK", f"Content-Length: {echo}"),
    "cookie": lambda echo: answer(
        {}, "503 Busy", f"Set-Cookie: Bearer {echo}, x=1", f"Set-Cookie: a={echo}; Path={echo}"
    ),
    "Retry-After": lambda echo: answer({}, "429 Slow", f"Retry-After: {echo}"),
    "Location": lambda echo: answer(b"", "307 Moved", f"Location: http://u:{echo}@h/{echo}?key={echo}#{echo}"),
    "page of a proxy": lambda echo: answer(_page(echo), "502 Bad Gateway"),
    "page in place of an answer": lambda echo: answer(_page(echo)),
    "page, compressed": lambda echo: answer(gzip.compress(_page(echo)), "500 Broken", "Content-Encoding: gzip"),
    "compressed by no known way": lambda echo: answer(_page(echo), "200 OK", "Content-Encoding: gzip"),
    "page in UTF-16": lambda echo: answer(_page(echo).decode().encode("utf-16"), "500 Broken"),
    "stream": lambda echo: answer(
        f'data: {{"echo": "{echo}"}}\n\n'.encode(), "200 OK", "Content-Type: text/event-stream"
    ),
    "broken off": lambda echo: _raw(f"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{echo}"),
    "list": lambda echo: answer([echo]),
    "text": lambda echo: answer(echo),
    "no JSON": lambda echo: answer(f'{{"{echo}": {echo}'.encode()),
    "two keys": lambda echo: answer(f'{{"{echo}": 1, "{echo}": 2}}'.encode()),
    "refusal": lambda echo: answer({"error": {"message": echo, "type": echo, "code": echo}}, "400 Bad"),
    "refusal in words": lambda echo: answer({"error": f"no: {echo}"}, "422 Bad"),
    "refusal in parts": lambda echo: answer({"error": [{echo: [echo]}]}, "422 Bad"),
    "details": lambda echo: answer({"detail": [{"loc": [echo], "input": {"authorization": echo}}]}, "422 Bad"),
    "breakdown": lambda echo: answer({"error": {"message": json.dumps({"headers": echo})}}, "500 Broken"),
    "denial": lambda echo: answer({"error": {"message": f"Incorrect API key provided: {echo}"}}, "401 No"),
    "busy": lambda echo: answer({"error": {"message": echo}}, "429 Slow"),
    "error inside": lambda echo: answer({"error": {"message": echo, "code": 500}}),
}


def _choice(**choice: JsonValue) -> bytes:
    return answer({"choices": [choice]})


def _say(content: JsonValue, finish_reason: str = "stop", **more: JsonValue) -> bytes:
    return _choice(message={"role": "assistant", "content": content, **more}, finish_reason=finish_reason)


OPENAI: Final[dict[str, Trick]] = HTTP | {
    "reply": lambda echo: _say(f"You sent Bearer {echo}."),
    "thought": lambda echo: _say(None, "length", reasoning=echo),
    "thought in parts": lambda echo: _say([{"type": "thinking", "thinking": echo}, {"type": "text", "text": "No."}]),
    "reason to end": lambda echo: _say("x", echo),
    "part of a reply": lambda echo: _say([{"type": echo}]),
    "part of a thought": lambda echo: _say([{"type": "thinking", "thinking": [{"type": echo}]}]),
    "error of a choice": lambda echo: _choice(error={"message": echo}),
    "count": lambda echo: answer(
        {"choices": [{"text": "x", "finish_reason": "stop"}], "usage": {"prompt_tokens": echo}}
    ),
}


def _message(*content: JsonValue, stop_reason: str = "end_turn", **more: JsonValue) -> bytes:
    return answer({"type": "message", "content": list(content), "stop_reason": stop_reason, **more})


def _text(text: JsonValue) -> JsonValue:
    return {"type": "text", "text": text}


ANTHROPIC: Final[dict[str, Trick]] = HTTP | {
    "reply": lambda echo: _message(_text(f"You sent Bearer {echo}.")),
    "thought": lambda echo: _message({"type": "thinking", "thinking": echo}, _text("No.")),
    "kind of a block": lambda echo: _message({"type": [echo]}),
    "text of a block": lambda echo: _message(_text({echo: echo})),
    "reason to end": lambda echo: _message(_text("x"), stop_reason=echo),
    "refusal explained": lambda echo: _message(stop_reason="refusal", stop_details={"explanation": echo}),
    "count": lambda echo: _message(_text("x"), usage={"input_tokens": echo}),
    "kind of an error": lambda echo: answer({"type": "error", "error": {"type": echo, "message": echo}}, "529 Over"),
}


def _chat(**fields: JsonValue) -> bytes:
    good: dict[str, JsonValue] = {
        "message": {"role": "assistant", "content": "No."},
        "done": True,
        "done_reason": "stop",
    }
    return answer(good | fields)


OLLAMA: Final[dict[str, Trick]] = HTTP | {
    "reply": lambda echo: _chat(message={"role": "assistant", "content": f"You sent Bearer {echo}."}),
    "thought": lambda echo: _chat(message={"role": "assistant", "content": "x", "thinking": echo}),
    "reason to end": lambda echo: _chat(done_reason=echo),
    "message": lambda echo: _chat(message=echo),
    "role": lambda echo: _chat(message={"role": {echo: echo}, echo: [echo]}),
    "time": lambda echo: _chat(created_at={echo: 1}, total_duration=echo),
    "count": lambda echo: _chat(eval_count=echo),
    "runner": lambda echo: answer({"error": f"llama runner process has terminated: {echo}"}, "500 Broken"),
}

_GOOD: Final[dict[str, bytes]] = {
    "/models": answer({"data": [{"id": "stub"}]}),
    "/v1/models/stub": answer({"id": "stub"}),
    "/v1/messages": _message(_text("No.")),
    "/api/version": answer({"version": "0.30.0"}),
    "/api/show": answer({"capabilities": ["completion"], "model_info": {}}),
    "/api/ps": answer({"models": []}),
    "/api/tags": answer({"models": []}),
    "/api/pull": answer({"status": "success"}),
    "/api/chat": _chat(),
    "/chat/completions": _say("No."),
}


class EchoingServer(OpenaiServer):
    """Every second request for a reply is answered by the next of `tricks`, the others well.

    So is what is asked at the start, unless `at_start` has a trick for it. Below `/reply-N` all replies are the N-th
    trick, and below `/any-N` all answers. `played` counts the tricks.
    """

    def __init__(self, tricks: dict[str, Trick], at_start: Mapping[str, Trick] = MappingProxyType({})) -> None:
        super().__init__(keeps=False)
        self.tricks = tricks
        self.at_start = at_start
        self.played = Counter[str]()
        self._turns = cycle(tricks.items())
        self._asked = 0

    def take(self, connection: Connection, received: Received) -> None:
        connection.act(Raw((self._answer(received),), then="close"), received)

    def _answer(self, received: Received) -> bytes:
        key = received.headers.get("authorization", "").removeprefix("Bearer ")
        chosen = re.match(r"/(any|reply)-(\d+)/", received.path)
        trick = list(self.tricks.items())[int(chosen.group(2))] if chosen else None
        if trick is not None and received.path.startswith("/any"):
            return self._play(*trick, key)
        place = next((place for place in self.at_start if received.path.endswith(place)), None)
        if place is not None:
            return self._play(place, self.at_start[place], key)
        good = next(said for place, said in _GOOD.items() if received.path.endswith(place))
        if received.method == "GET" or received.path.endswith("/show") or received.json.get("messages") == []:
            return good
        if trick is not None:
            return self._play(*trick, key)
        if received.is_canary:
            return good
        self._asked += 1
        return good if self._asked % 2 else self._play(*next(self._turns), key)

    def _play(self, name: str, trick: Trick, key: str) -> bytes:
        number = sum(self.played.values())
        self.played[name] += 1
        return trick("." * (7 * number % _OFFSETS) + _ENCODINGS[number % len(_ENCODINGS)](key))
