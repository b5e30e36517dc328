"""Whatever a client sends is a request or a refusal that names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.nano.testing import (
    JSON_PARTS_MAX,
    Body,
    ChatBody,
    ChatRequest,
    CompletionBody,
    GenerateRequest,
    RefusedError,
    parse_body,
)

KINDS = (ChatBody, CompletionBody, ChatRequest, GenerateRequest)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
TALK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("kind", "content", "field"),
    [
        (ChatBody, b"", None),
        (ChatBody, b"{", None),
        (ChatBody, b"[]", None),
        (ChatBody, b"\xff\xfe", None),
        (ChatBody, b'{"model": "\\ud800"', None),
        (ChatBody, {"messages": CHAT["messages"]}, "model"),
        (ChatBody, {**CHAT, "messages": []}, "messages"),
        (ChatBody, {**CHAT, "messages": [{"role": "robot", "content": ""}]}, "messages.0.role"),
        (ChatBody, {**CHAT, "max_tokens": "5"}, "max_tokens"),
        (ChatBody, {**CHAT, "max_tokens": 0}, "max_tokens"),
        (ChatBody, {**CHAT, "n": 100_000}, "n"),
        (ChatBody, {**CHAT, "top_p": 1.5}, "top_p"),
        (ChatBody, {**CHAT, "temperature": -1}, "temperature"),
        (ChatBody, {**CHAT, "tempreature": 1}, "tempreature"),
        (ChatBody, {**CHAT, "response_format": {"type": "yaml"}}, "response_format.type"),
        (CompletionBody, {**TEXT, "logprobs": True}, "logprobs"),
        (CompletionBody, {**TEXT, "stop": ["x"] * 65}, "stop"),
        (CompletionBody, {**TEXT, "prompt": 3}, "prompt"),
        (CompletionBody, {**TEXT, "prompt": [[1], ["a"]]}, "prompt"),
        (ChatBody, {**CHAT, "messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
        (ChatRequest, {**TALK, "options": {"temprature": 1}}, "options.temprature"),
        (ChatRequest, {**TALK, "options": {"num_predict": -9}}, "options.num_predict"),
        (GenerateRequest, {"model": 3}, "model"),
    ],
)
def test_what_is_wrong_is_named(kind: type[Body], content: object, field: str | None) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_body(kind, content if isinstance(content, bytes) else json.dumps(content).encode())

    assert caught.value.refusal.status == 400
    assert caught.value.refusal.field == field
    assert not any(kind in str(caught.value) for kind in ("tuple[", "Many", ".str", "constrained"))


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(RefusedError):
        parse_body(ChatBody, json.dumps({**CHAT, "temperature": float("nan")}).encode())


@given(st.sampled_from(KINDS), st.binary() | st.recursive(st.none() | st.text(), st.lists).map(repr).map(str.encode))
def test_nothing_else_ever_comes_of_garbage(kind: type[Body], content: bytes) -> None:
    with pytest.raises(RefusedError):
        parse_body(kind, content)


def arrays(schema: object) -> Iterator[dict[str, object]]:
    """Every array in a validator's schema."""
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list | tuple) else ():
        yield from arrays(each)
    if isinstance(schema, dict) and schema.get("type") == "tuple":  # Lists are of JSON that may be anything.
        yield schema


@pytest.mark.parametrize("kind", KINDS)
def test_look_at_an_array_ends_with_the_first_item_at_fault(kind: type[Body]) -> None:
    """A body has room for millions of them, and an error for each would take all memory and time."""
    assert all(array.get("fail_fast") for array in arrays(kind.__pydantic_core_schema__))


def test_body_has_few_arrays_and_objects_and_strings_do_not_count() -> None:
    """Parsed, each takes some hundred bytes for the two or three it was sent in."""
    for more in (b"[],", b"{},", b"[[[[]]]],", b'"]",[],', b'"\\\\",[],', b'"\\"",{},', b'"\xff",[],'):
        body = b'{"model": "m", "prompt": [' + more * (JSON_PARTS_MAX + 1) + b'"'
        with pytest.raises(RefusedError, match="100000 arrays and objects"):
            parse_body(CompletionBody, body)
    for text in ("[" * (JSON_PARTS_MAX + 1), '{"a": "[\\"]"}' * JSON_PARTS_MAX, '\\"' * 3 + "{" * JSON_PARTS_MAX):
        assert parse_body(CompletionBody, json.dumps({"model": "m", "prompt": text}).encode()).prompt == text
    with pytest.raises(RefusedError, match="EOF while parsing"):
        parse_body(CompletionBody, b'{"model": "' + b'\\"[' * JSON_PARTS_MAX * 2)


def test_many_unknown_fields_are_only_counted() -> None:
    with pytest.raises(RefusedError, match="20000 fields"):
        parse_body(ChatBody, json.dumps({**CHAT, **{f"field{index}": 1 for index in range(20_000)}}).encode())


def test_an_error_quotes_little() -> None:
    with pytest.raises(RefusedError) as caught:
        parse_body(ChatBody, json.dumps({**CHAT, **{f"{index}{'x' * 5000}": 1 for index in range(50)}}).encode())

    assert len(str(caught.value)) < 2500
    assert "(and 47 more)" in str(caught.value)
