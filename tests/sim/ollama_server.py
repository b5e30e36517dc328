"""A stub of Ollama: its documented API on a real socket, with models that answer at once, and faults to order.

It is as strict as the documents: a field or an option that they do not name is refused. Replies obey the `format` that
was asked for and depend on nothing but the request, so the same request gets the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, cast

from mac_runner.types import JsonObject, JsonValue
from tests.sim.behaviour import Behaviour, Received, Say, Send, encoded
from tests.sim.openai_server import Connection, OpenaiServer

CHARS_PER_TOKEN: Final = 4
FAR_FUTURE: Final = "2100-01-01T00:00:00Z"

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


def says(received: Received) -> Say:
    """Hello, or what the format asks for."""
    layout = received.json.get("format")
    if layout is None:
        return Say("Hello.")
    seed = cast("dict[str, int]", received.json["options"]).get("seed", 0)
    schema: JsonValue = {"type": "object"} if layout == "json" else layout
    return Say(json.dumps(legal(cast("JsonObject", schema), Random(seed))))


def unchanged(_received: Received, _due: Send) -> None:
    """Every request gets the answer that is due."""


@dataclass(eq=False)
class OllamaServer(OpenaiServer):
    """`answer` says what becomes of a chat that is well formed and fits; `look` may replace any answer that is due."""

    answer: Callable[[Received], Behaviour] = says
    look: Callable[[Received, Send], Behaviour | None] = unchanged
    shelf: dict[str, StubModel] = field(default_factory=lambda: {"qwen3:4b": StubModel()})
    """The models that are there; those of `library` can be pulled."""
    library: dict[str, StubModel] = field(default_factory=dict)
    version: str = "0.30.0"
    context_default: int = 4096
    api_key: str | None = None
    loads: list[JsonObject] = field(default_factory=list)
    """The requests to load a model, and no more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.script = self._chat
        self._loaded: dict[str, int] = {}

    @property
    def chats(self) -> list[JsonObject]:
        """The chat requests with messages, in the order in which they came."""
        return [received.json for received in self.received]

    def take(self, connection: Connection, received: Received) -> None:
        if received.path == "/api/chat" and received.json["messages"]:
            super().take(connection, received)
        else:
            self.pages.append(received.path)
            due = self._denial(received) or self._page_of(received)
            connection.act(self.look(received, due) or due, received)

    def _chat(self, received: Received) -> Behaviour:
        due = self._denial(received) or self._fault(received) or self._answered(received)
        return (self.look(received, due) or due) if isinstance(due, Send) else due

    def _denial(self, received: Received) -> Send | None:
        is_known = self.api_key is None or received.headers.get("authorization") == f"Bearer {self.api_key}"
        return None if is_known else failure(401, "unauthorized")

    def _page_of(self, received: Received) -> Send:
        match received.path:
            case "/api/version":
                return _sent({"version": self.version})
            case "/api/tags":
                return _sent({"models": [{"name": name, "model": name} for name in self.shelf]})
            case "/api/ps":
                return _sent({"models": [_running(name, size) for name, size in self._loaded.items()]})
            case "/api/show":
                return self._show(str(received.json["model"]))
            case "/api/pull":
                return self._pull(str(received.json["model"]))
            case "/api/chat":
                self.loads.append(received.json)
                return self._fault(received) or _sent(_response(received, "", done_reason="load"))
        return Send(404, b"404 page not found")

    def _show(self, name: str) -> Send:
        model = self._model(name)
        if model is None:
            return failure(404, f"model '{name}' not found")
        capabilities: list[JsonValue] = ["completion", "thinking"] if model.is_thinker else ["completion"]
        return _sent({"capabilities": capabilities, "model_info": {"x.context_length": model.context_max}})

    def _pull(self, name: str) -> Send:
        start: JsonObject = {"status": "pulling manifest"}
        if name not in self.library:
            return _lines(start, {"error": "pull model manifest: file does not exist"})
        self.shelf[name] = self.library[name]
        layer: JsonObject = {"status": "pulling aa11", "digest": "sha256:aa11", "total": 2_000_000_000}
        steps = ({**layer, "completed": 20_000_000 * percent} for percent in range(101))
        return _lines(start, *steps, {"status": "verifying sha256 digest"}, {"status": "success"})

    def _fault(self, received: Received) -> Send | None:
        """The error that a chat ends in; where it has none, its model is loaded."""
        body, name = received.json, str(received.json["model"])
        model = self._model(name)
        if model is None:
            return failure(404, f"model '{name}' not found")
        wrong = _misspelt(body)
        if wrong is not None:
            return failure(400, wrong)
        if body.get("think") and not model.is_thinker:
            return failure(400, f'"{name}" does not support thinking')
        context = min(cast("dict[str, int]", body["options"]).get("num_ctx", self.context_default), model.context_max)
        self._loaded = {_tagged(name): context}
        if _prompt_tokens(body) >= context and body.get("truncate", True) is False:
            return failure(400, "the input length exceeds the context length")
        return None

    def _answered(self, received: Received) -> Behaviour:
        said = self.answer(received)
        if not isinstance(said, Say):
            return said
        body, name = received.json, str(received.json["model"])
        model, context = self._model(name), self._loaded[_tagged(name)]
        assert model is not None
        prompt_tokens = min(_prompt_tokens(body), context)
        thought = model.thought if model.is_thinker and body.get("think", True) else ""
        limit = cast("dict[str, int]", body["options"]).get("num_predict", 1 << 30)
        written = (thought + said.text)[: CHARS_PER_TOKEN * min(limit, context - prompt_tokens)]
        ended = said.finish_reason if written == thought + said.text else "length"
        response = _response(received, written[len(thought) :], done_reason=ended, thinking=written[: len(thought)])
        return _sent({**response, "prompt_eval_count": prompt_tokens, "eval_count": _tokens(written)})

    def _model(self, name: str) -> StubModel | None:
        return self.shelf.get(name) or self.shelf.get(_tagged(name))


def failure(status: int, text: str, *, headers: tuple[tuple[str, str], ...] = ()) -> Send:
    """An error as Ollama reports it."""
    return Send(status, encoded({"error": text}), headers)


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


def _misspelt(body: JsonObject) -> str | None:
    """What a request says that the documents do not know."""
    options = cast("dict[str, int]", body["options"])
    unknown = sorted((set(body) - _CHAT_FIELDS) | (set(options) - set(_OPTIONS)))
    wrong = [name for name, value in options.items() if name in _OPTIONS and not isinstance(value, _OPTIONS[name])]
    if unknown or wrong:
        return f"unknown: {unknown}; of the wrong type: {wrong}"
    return None if 0 <= options.get("seed", 0) <= _SEED_MAX else "the seed is longer than 31 bits"


def _response(received: Received, text: str, *, done_reason: str, thinking: str = "") -> JsonObject:
    thought: JsonObject = {"thinking": thinking} if thinking else {}
    message: JsonObject = {"role": "assistant", "content": text, **thought}
    model = received.json["model"]
    return {"model": model, "created_at": FAR_FUTURE, "message": message, "done": True, "done_reason": done_reason}


def _running(name: str, context: int) -> JsonObject:
    return {"name": name, "model": name, "size": 1, "size_vram": 1, "expires_at": FAR_FUTURE, "context_length": context}


def _prompt_tokens(body: JsonObject) -> int:
    return _tokens("".join(message["content"] for message in cast("list[dict[str, str]]", body["messages"])))


def _tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def _tagged(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


def _sent(body: JsonObject) -> Send:
    return Send(200, encoded(body))


def _lines(*lines: JsonObject) -> Send:
    return Send(200, b"".join(encoded(line) + b"\n" for line in lines))
