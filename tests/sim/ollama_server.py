"""A stub of Ollama: its documented API on a real socket, with models that answer at once, and faults to order.

It is as strict as the documents: a field or an option that they do not name is refused. Replies obey the `format` that
was asked for and depend on nothing but the request, so the same request gets the same answer.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias, cast

from mac_runner.types import JsonObject, JsonValue
from tests.patience import LIMIT_S

CHARS_PER_TOKEN: Final = 4
FAR_FUTURE: Final = "2100-01-01T00:00:00Z"

JSON: Final = "application/json; charset=utf-8"
GZIPPED: Final = f"{JSON}\r\nContent-Encoding: gzip"

_CHAT_FIELDS = {"model", "messages", "tools", "think", "format", "options", "stream", "keep_alive", "truncate", "shift"}
_OPTIONS: Final[dict[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(("num_ctx", "num_predict", "seed", "top_k"), int),
    **dict.fromkeys(("temperature", "top_p", "min_p"), (int, float)),
    **dict.fromkeys(("repeat_penalty", "presence_penalty", "frequency_penalty"), (int, float)),
    "stop": list,
}
_SEED_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StubModel:
    """What a model of the stub is like."""

    context_max: int = 40_960
    is_thinker: bool = False
    thought: str = "hmm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An answer as it goes over the wire. `lines` is streamed, a line at a time."""

    body: JsonValue | bytes = b""
    status: int = 200
    content_type: str = JSON
    lines: tuple[JsonObject, ...] = ()


Fault: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[bool]]
"""Takes the place of one answer; says whether the connection is good for another request."""
Script: TypeAlias = Callable[[str, JsonObject, Sent], Fault | None]
"""Looks at a path, a body and the answer due, and may order a fault in its place."""


class OllamaStub:
    """`with OllamaStub(...) as stub:` serves at `stub.host` from a thread of its own.

    Replies are held back until `together` of them can be given at once; while it `is_hung` it answers nothing.
    """

    def __init__(
        self,
        *,
        models: dict[str, StubModel] | None = None,
        version: str = "0.30.0",
        context_default: int = 4096,
        together: int = 1,
        api_key: str | None = None,
    ) -> None:
        self.models = {"qwen3:4b": StubModel()} if models is None else models
        self.version = version
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[str, JsonObject]] = []
        self.loaded: dict[str, int] = {}
        self.library: dict[str, StubModel] = {}
        self.is_hung = False
        self.script: Script = lambda _path, _body, _due: None
        self.reply: Callable[[JsonObject], str] = _reply
        self._context_default = context_default
        self._token = f"Bearer {api_key}" if api_key else ""
        self._together = asyncio.Barrier(together)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="ollama stub")
        self._port = 0

    @property
    def host(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def chats(self) -> list[JsonObject]:
        """The chat requests with messages, in the order in which they came."""
        return [body for path, body in self.requests if path == "/api/chat" and body["messages"]]

    def __enter__(self) -> OllamaStub:
        self._thread.start()
        assert self._ready.wait(LIMIT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port and every connection; safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(LIMIT_S)

    def shut(self) -> None:
        """Take no more connections; to be called by a fault."""
        self._listening.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._listening = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = self._listening.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        self._listening.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections.add(task)
        try:
            while True:
                token, request = await _read(reader)
                if self._token and token != self._token:
                    await _write(_error(401, "unauthorized"), writer)
                elif not await self._answer(request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, request: _Request, writer: asyncio.StreamWriter) -> bool:
        method, path, body = request
        self.requests.append((path, body))
        if self.is_hung:
            return await hang(writer)
        if path == "/api/chat" and body["messages"] and self.faults:
            return await self.faults.popleft()(writer)
        match method, path:
            case "GET", "/api/version":
                sent = Sent(body={"version": self.version})
            case "GET", "/api/tags":
                sent = Sent(body={"models": [{"name": name, "model": name} for name in self.models]})
            case "GET", "/api/ps":
                sent = Sent(body={"models": [_running(name, size) for name, size in self.loaded.items()]})
            case "POST", "/api/show":
                sent = self._show(body)
            case "POST", "/api/pull":
                sent = self._pull(body)
            case "POST", "/api/chat":
                sent = await self._chat(body)
            case _:
                sent = Sent(status=404, body=b"404 page not found", content_type="text/plain")
        fault = self.script(path, body, sent)
        if fault is not None:
            return await fault(writer)
        await _write(sent, writer)
        return True

    def _show(self, body: JsonObject) -> Sent:
        name = str(body["model"])
        model = self._model(name)
        if model is None:
            return _error(404, f"model '{name}' not found")
        capabilities: list[JsonValue] = ["completion", "thinking"] if model.is_thinker else ["completion"]
        return Sent(body={"capabilities": capabilities, "model_info": {"x.context_length": model.context_max}})

    def _pull(self, body: JsonObject) -> Sent:
        name = str(body["model"])
        start: JsonObject = {"status": "pulling manifest"}
        if name not in self.library:
            return Sent(lines=(start, {"error": "pull model manifest: file does not exist"}))
        self.models[name] = self.library[name]
        layer: JsonObject = {"status": "pulling aa11", "digest": "sha256:aa11", "total": 2_000_000_000}
        steps = ({**layer, "completed": 20_000_000 * percent} for percent in range(101))
        ending: tuple[JsonObject, ...] = ({"status": "verifying sha256 digest"}, {"status": "success"})
        return Sent(lines=(start, *steps, *ending))

    async def _chat(self, body: JsonObject) -> Sent:
        name = str(body["model"])
        model = self._model(name)
        if model is None:
            return _error(404, f"model '{name}' not found")
        wrong = _misspelt(body)
        if wrong is not None:
            return _error(400, wrong)
        if body.get("think") and not model.is_thinker:
            return _error(400, f'"{name}" does not support thinking')
        options = cast("dict[str, int]", body["options"])
        context = min(options.get("num_ctx", self._context_default), model.context_max)
        self.loaded = {_tagged(name): context}
        if not body["messages"]:
            return Sent(body=_response(name, "", done_reason="load"))
        await self._together.wait()
        return self._completion(name, model, body, context)

    def _completion(self, name: str, model: StubModel, body: JsonObject, context: int) -> Sent:
        messages = cast("list[dict[str, str]]", body["messages"])
        options = cast("dict[str, int]", body["options"])
        prompt_tokens = _tokens("".join(message["content"] for message in messages))
        if prompt_tokens >= context:
            if body.get("truncate", True) is False:
                return _error(400, "the input length exceeds the context length")
            prompt_tokens = context
        text, thought = self.reply(body), model.thought if model.is_thinker and body.get("think", True) else ""
        budget = CHARS_PER_TOKEN * min(options.get("num_predict", 1 << 30), context - prompt_tokens)
        written = (thought + text)[:budget]
        response = _response(
            name,
            written[len(thought) :],
            done_reason="stop" if written == thought + text else "length",
            thinking=written[: len(thought)],
        )
        counts: JsonObject = {"prompt_eval_count": prompt_tokens, "eval_count": _tokens(written)}
        return Sent(body=response | counts)

    def _model(self, name: str) -> StubModel | None:
        return self.models.get(name) or self.models.get(_tagged(name))


async def reset(writer: asyncio.StreamWriter) -> bool:
    """The connection breaks before a byte of the answer."""
    writer.transport.abort()
    return False


async def hang(writer: asyncio.StreamWriter) -> bool:
    """Nothing ever comes."""
    return await asyncio.Event().wait()


def answering(body: JsonValue | bytes, *, status: int = 200, content_type: str = JSON) -> Fault:
    """Another answer than the one due."""

    async def fault(writer: asyncio.StreamWriter) -> bool:
        await _write(Sent(body=body, status=status, content_type=content_type), writer)
        return True

    return fault


def cut_off(sent: int) -> Fault:
    """An answer whose connection breaks after the first `sent` bytes of the body."""

    async def fault(writer: asyncio.StreamWriter) -> bool:
        body = json.dumps(_response("m", "hello", done_reason="stop")).encode()
        writer.write(_head(200, "application/json", len(body)) + body[:sent])
        await writer.drain()
        return False

    return fault


def legal(schema: JsonObject, chance: Random) -> JsonValue:
    """A value that `schema` allows."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return chance.choice(cast("list[JsonValue]", schema["enum"]))
    if "anyOf" in schema:
        return legal(chance.choice(cast("list[JsonObject]", schema["anyOf"])), chance)
    match schema.get("type"):
        case "object":
            required = cast("list[str]", schema.get("required", []))
            properties = cast("dict[str, JsonObject]", schema.get("properties", {}))
            return {name: legal(properties[name], chance) for name in required}
        case "string":
            return "I know nothing."[: cast("int", schema.get("maxLength", 100))]
        case "integer":
            return cast("int", schema.get("minimum", 0))
    raise AssertionError(f"the stub cannot make a value of {schema}")


def _reply(body: JsonObject) -> str:
    if body.get("format") is None:
        return "Hello."
    seed = cast("dict[str, int]", body["options"]).get("seed", 0)
    schema: JsonValue = {"type": "object"} if body["format"] == "json" else body["format"]
    return json.dumps(legal(cast("JsonObject", schema), Random(seed)))


def _misspelt(body: JsonObject) -> str | None:
    """What a request says that the documents do not know."""
    options = cast("dict[str, int]", body["options"])
    unknown = sorted((set(body) - _CHAT_FIELDS) | (set(options) - set(_OPTIONS)))
    wrong = [name for name, value in options.items() if name in _OPTIONS and not isinstance(value, _OPTIONS[name])]
    if unknown or wrong:
        return f"unknown: {unknown}; of the wrong type: {wrong}"
    return None if 0 <= options.get("seed", 0) <= _SEED_MAX else "the seed is longer than 31 bits"


def _response(model: str, text: str, *, done_reason: str, thinking: str = "") -> JsonObject:
    thought: JsonObject = {"thinking": thinking} if thinking else {}
    message: JsonObject = {"role": "assistant", "content": text, **thought}
    return {"model": model, "created_at": FAR_FUTURE, "message": message, "done": True, "done_reason": done_reason}


def _running(name: str, context: int) -> JsonObject:
    return {"name": name, "model": name, "size": 1, "size_vram": 1, "expires_at": FAR_FUTURE, "context_length": context}


def _tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def _tagged(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


def _error(status: int, text: str) -> Sent:
    return Sent(status=status, body={"error": text})


def _head(status: int, content_type: str, size: int | None) -> bytes:
    length = "Transfer-Encoding: chunked" if size is None else f"Content-Length: {size}"
    return f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\n{length}\r\n\r\n".encode()


async def _write(sent: Sent, writer: asyncio.StreamWriter) -> None:
    if not sent.lines:
        body = sent.body if isinstance(sent.body, bytes) else json.dumps(sent.body).encode()
        writer.write(_head(sent.status, sent.content_type, len(body)) + body)
    else:
        writer.write(_head(sent.status, "application/x-ndjson", None))
        for line in sent.lines:
            chunk = json.dumps(line).encode() + b"\n"
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        writer.write(b"0\r\n\r\n")
    await writer.drain()


class _Request(NamedTuple):
    method: str
    path: str
    body: JsonObject


async def _read(reader: asyncio.StreamReader) -> tuple[str, _Request]:
    """What the next request of a connection is authorized by, and the request."""
    first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return headers.get("authorization", ""), _Request(method, path, json.loads(body) if body else {})
