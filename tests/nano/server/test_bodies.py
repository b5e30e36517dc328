"""Whatever a client sends is a request or a refusal that names the field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.nano.server.bodies import Body, parse_body
from mac_runner.nano.server.ollama_requests import ChatRequest, GenerateRequest, ShowRequest
from mac_runner.nano.server.openai_requests import ChatBody, CompletionBody
from mac_runner.nano.server.refusals import RefusedError

KINDS = (ChatBody, CompletionBody, ChatRequest, GenerateRequest, ShowRequest)
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
        (CompletionBody, {**TEXT, "stop": ["x"] * 65}, "stop.tuple[str, ...]"),
        (ChatRequest, {**TALK, "options": {"temprature": 1}}, "options.temprature"),
        (ChatRequest, {**TALK, "options": {"num_predict": -9}}, "options.num_predict"),
        (GenerateRequest, {"model": 3}, "model"),
    ],
)
def test_what_is_wrong_is_named(kind: type[Body], content: object, field: str | None) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_body(kind, content if isinstance(content, bytes) else json.dumps(content).encode())

    assert caught.value.refusal.status == 400
    if field is not None:
        assert (caught.value.refusal.field or "").startswith(field.partition(".tuple")[0])


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(RefusedError):
        parse_body(ChatBody, json.dumps({**CHAT, "temperature": float("nan")}).encode())


@given(st.sampled_from(KINDS), st.binary() | st.recursive(st.none() | st.text(), st.lists).map(repr).map(str.encode))
def test_nothing_else_ever_comes_of_garbage(kind: type[Body], content: bytes) -> None:
    with pytest.raises(RefusedError):
        parse_body(kind, content)


def test_an_error_quotes_little() -> None:
    with pytest.raises(RefusedError) as caught:
        parse_body(ChatBody, json.dumps({**CHAT, **{f"{index}{'x' * 5000}": 1 for index in range(50)}}).encode())

    assert len(str(caught.value)) < 2500
    assert "(and 47 more)" in str(caught.value)
