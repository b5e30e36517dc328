"""A server of Anthropic's Messages API on a real socket: as strict as its documents, and as broken as a test wants it.

It refuses fields that the documents do not name, roles that do not alternate, empty texts, and the settings that do not
go together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from mac_runner.types import JsonObject, JsonValue
from tests.sim.behaviour import Behaviour, Received, Say, Send, echo, encoded
from tests.sim.openai_server import OpenaiServer

OLD: Final = "2023-06-01"
NEW: Final = "2026-10-21"
_DRAWING: Final = {"temperature", "top_p", "top_k"}
"""Fields that the new version has not."""
_FIELDS: Final = _DRAWING | {
    *("model", "max_tokens", "messages", "system", "stop_sequences", "thinking", "output_config", "metadata"),
}
_TYPES: Final = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


def message(
    text: str = "So be it.",
    stop_reason: str = "end_turn",
    *,
    thinking: str = "",
    usage: JsonObject | None = None,
    **more: JsonValue,
) -> Send:
    """A reply as the API has it."""
    thought: list[JsonValue] = [{"type": "thinking", "thinking": thinking, "signature": "x"}] if thinking else []
    said: list[JsonValue] = [{"type": "text", "text": text}] if text else []
    body: JsonObject = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "stub",
        "content": thought + said,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 20, "output_tokens": max(1, len(text) // 4)},
    }
    return Send(200, encoded(body | more))


def failure(
    status: int, text: str, *, kind: str | None = None, headers: tuple[tuple[str, str], ...] = (), sent_as: int = 0
) -> Send:
    """An error as the API reports it; `sent_as` is another status for the answer that has it."""
    error: JsonObject = {"type": kind or _TYPES.get(status, "api_error"), "message": text}
    return Send(sent_as or status, encoded({"type": "error", "error": error, "request_id": "req_1"}), headers)


@dataclass(eq=False)
class AnthropicServer(OpenaiServer):
    """`answer` says what becomes of a request that is well formed, of one that asks for a single token too."""

    answer: Callable[[Received], Behaviour] = echo
    api_key: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.script = self._checked
        self.page = self._look

    def _checked(self, received: Received) -> Behaviour:
        if (denial := self._denial(received)) is not None:
            return denial
        if received.path != "/v1/messages":
            return failure(404, f"no path {received.path}")
        for fault in _faults(received.json, is_new=received.headers["anthropic-version"] == NEW):
            return failure(400, fault)
        behaviour = self.answer(received)
        if isinstance(behaviour, Say):
            return message(behaviour.text, "max_tokens" if behaviour.finish_reason == "length" else "end_turn")
        return behaviour

    def _look(self, received: Received) -> Behaviour:
        if (denial := self._denial(received)) is not None:
            return denial
        name = received.path.removeprefix("/v1/models/")
        return Send(200, encoded({"type": "model", "id": name})) if name in self.models else failure(404, name)

    def _denial(self, received: Received) -> Send | None:
        if self.api_key is not None and received.headers.get("authorization") != f"Bearer {self.api_key}":
            return failure(401, "invalid bearer token")
        version = received.headers.get("anthropic-version")
        return None if version in (OLD, NEW) else failure(400, f"anthropic-version: {version}")


def _faults(body: JsonObject, *, is_new: bool) -> Iterator[str]:
    known = _FIELDS - _DRAWING if is_new else _FIELDS
    yield from (f"{name}: Extra inputs are not permitted" for name in sorted(set(body) - known))
    messages = cast("list[dict[str, str]]", body["messages"])
    roles = [each["role"] for each in messages]
    if roles != [("user", "assistant")[number % 2] for number in range(len(roles))]:
        yield f"messages: roles must alternate, found {roles}"
    if not roles or not all(each["content"].strip() for each in messages):
        yield "messages: text content blocks must be non-empty"
    temperature = cast("float", body.get("temperature", 1.0))
    if not 0 <= temperature <= 1:
        yield "temperature: range: 0..1"
    thinking = cast("JsonObject", body.get("thinking", {"type": "disabled"}))
    budget = cast("int", thinking.get("budget_tokens", 0))
    if thinking["type"] != "disabled" and (temperature != 1 or "top_k" in body):
        yield "thinking: temperature may only be set to 1 and top_k must be unset when thinking is enabled"
    if budget and not 1024 <= budget < cast("int", body["max_tokens"]):
        yield "max_tokens must be greater than thinking.budget_tokens"
    output = cast("dict[str, JsonObject]", body.get("output_config", {}))
    if "format" in output:
        yield from _schema_faults(cast("JsonObject", output["format"]["schema"]))


def _schema_faults(schema: JsonObject) -> Iterator[str]:
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        yield "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
    for name in {"minLength", "maxLength", "minimum", "maximum", "pattern"} & schema.keys():
        yield f"output_config.format.schema: property '{name}' is not supported"
    for part in cast("dict[str, JsonObject]", schema.get("properties", {})).values():
        yield from _schema_faults(part)
    for part in cast("list[JsonObject]", schema.get("anyOf", [])):
        yield from _schema_faults(part)
