"""Whatever comes over the wire is a reply or one typed error, with its verdict, its pause and a standing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mac_runner.backends.testing import (
    HTTP_BODY_BYTES_MAX,
    HTTP_GZIP_MEMBERS_MAX,
    Answer,
    Redactor,
    SendingError,
    Standing,
    page_of,
    read_answer,
    unpacked,
)
from mac_runner.errors import Verdict
from mac_runner.types import FinishReason, JsonObject, JsonValue, Reply
from tests.sim.openai_run import dialect_of
from tests.sim.requests import request

UNKEYED = Redactor(None)
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
AGAIN, NEVER = Verdict.RETRY, Verdict.FAIL_CONVERSATION
SOUND, SHAKY, FAILING, DOUBTFUL = Standing.SOUND, Standing.SHAKY, Standing.FAILING, Standing.DOUBTFUL
ANSWERED = Standing.ANSWERED


def read(
    body: bytes | JsonObject, status: int = 200, *, has_tokens: bool = False, retry_after: str | None = None
) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = Answer(status=status, body=data, retry_after=retry_after)
    return read_answer(answer, request(), dialect_of(has_tokens=has_tokens), now=lambda: NOW, redactor=UNKEYED)


def lack(said: bytes) -> str | None:
    """What a server with this list of models lacks."""
    dialect = dialect_of()
    return dialect.lack(page_of(Answer(status=200, body=said), dialect, NOW, UNKEYED), UNKEYED)


def fault(status: int, said: bytes | JsonObject, *, retry_after: str | None = None) -> SendingError:
    with pytest.raises(SendingError) as caught:
        read(said, status, retry_after=retry_after)
    return caught.value


def error(status: int, message: str = "no", *, retry_after: str | None = None, **more: JsonValue) -> SendingError:
    return fault(status, {"error": {"message": message, **more}}, retry_after=retry_after)


@pytest.mark.parametrize(
    ("status", "fields", "verdict", "standing"),
    [
        (301, {}, AGAIN, SHAKY),
        (400, {}, NEVER, Standing.REFUSING),
        (404, {}, NEVER, DOUBTFUL),
        (429, {}, AGAIN, SOUND),
        (500, {}, AGAIN, FAILING),
        (503, {}, AGAIN, SHAKY),
        (500, {"message": "maximum context length"}, AGAIN, FAILING),  # It is no outcome of a server error.
        (429, {"code": "insufficient_quota"}, NEVER, DOUBTFUL),  # A canary tells.
        (400, {"message": "id c-1/0 already running"}, AGAIN, SOUND),
    ],
)
def test_meaning_of_a_status_has_its_verdict(
    status: int, fields: JsonObject, verdict: Verdict, standing: Standing
) -> None:
    found = fault(status, {"error": {"message": "no", **fields}})

    assert (found.verdict, found.standing) == (verdict, standing)
    assert str(found) == f"status {status}: {fields.get('message', 'no')}"


ALL_THOUGHT = "Could not finish the message because max_tokens or model output limit was reached. Please try again."
LIMIT = "This endpoint's maximum context length is 2048 tokens."


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (400, {"message": "too long", "code": "context_length_exceeded"}),
        (400, {"message": "This model's maximum context length is 2048 tokens. However, you requested 3000 tokens"}),
        (400, {"message": "'max_tokens' is too large: 512. This model's maximum context length is 256 tokens"}),
        (400, {"message": "The decoder prompt (length 99) is longer than the maximum model length of 64."}),
        (413, {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}),
        (200, {"message": LIMIT, "code": 400}),
        (200, {"message": LIMIT, "code": "context_length_exceeded"}),
        (400, {"message": ALL_THOUGHT, "type": "invalid_request_error"}),
    ],
)
def test_prompt_or_thought_too_long_for_the_context_is_an_outcome(status: int, fields: JsonObject) -> None:
    """A thought that left no room for a reply is an open one."""
    is_thought = fields["message"] == ALL_THOUGHT
    reply = read({"error": fields}, status, has_tokens=not is_thought)

    expected = ("<think>", FinishReason.LENGTH) if is_thought else ("", FinishReason.OVERFLOW)
    assert (reply.text, reply.finish_reason) == expected


ERRORS = [400, 401, 402, 403, 404, 408, 429, 500, 502, 503, 504, 529]


@pytest.mark.parametrize("status", ERRORS)
def test_error_told_with_200_is_what_the_same_status_is_and_none_of_the_servers(status: int) -> None:
    same = error(status, retry_after="7")
    for code in (status, str(status)):
        found = error(200, retry_after="7", code=code)
        assert str(found).startswith(f"status {status}, ")
        assert str(found).endswith("status 200: no")
        assert (found.verdict, found.standing) == (same.verdict, ANSWERED)
        assert (found.retry_after_s, found.is_busy) == (same.retry_after_s, same.is_busy)

    inside: JsonObject = {"message": "Provider returned error", "code": status}
    choice: JsonObject = {"finish_reason": "error", "message": {"content": "So be"}, "error": inside}
    found, same = fault(200, {"choices": [choice]}), error(status)
    assert "Provider returned error" in str(found)
    assert (found.verdict, found.standing, found.is_busy) == (same.verdict, ANSWERED, same.is_busy)


@pytest.mark.parametrize("more", [{}, {"choices": None}, {"choices": []}, {"object": "error"}])
def test_error_told_with_200_that_names_no_status_is_sent_again(more: JsonObject) -> None:
    found = fault(200, {"error": {"message": "overloaded", "code": "overloaded_error"}, **more})

    assert (found.verdict, found.standing, found.is_busy) == (AGAIN, ANSWERED, False)
    assert str(found) == "status 200: overloaded"


def test_path_that_a_server_lacks_is_denied_though_it_answers_200() -> None:
    said: JsonObject = {"error": "Unexpected endpoint or method. (POST /chat/completions)"}

    assert (fault(200, said).verdict, fault(200, said).standing) == (NEVER, ANSWERED)
    with pytest.raises(SendingError, match="Unexpected endpoint") as caught:
        lack(json.dumps(said).encode())
    assert caught.value.verdict is NEVER


def test_redirect_is_told_with_where_it_leads() -> None:
    answer = Answer(status=308, body=b"", location="https://gpu-1/v1/chat/completions")

    with pytest.raises(SendingError, match=r"308; .*gpu-1/v1/chat/completions"):
        read_answer(answer, request(), dialect_of(), now=lambda: NOW, redactor=UNKEYED)


def test_models_are_listed_by_id_or_the_list_is_an_error() -> None:
    assert lack(b'{"data": [{"id": "b"}, {"id": "a"}]}') == "it has no model 'stub'; it has: a, b"
    assert lack(b'{"data": [{"id": "b"}, {"id": "stub"}]}') is None
    for body in (b"{}", b'{"data": {}}', b'{"data": [{}]}', b'{"data": ["a"]}', b"<html>"):
        with pytest.raises(SendingError):
            lack(body)


GOOD: JsonObject = {
    "id": "c",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "error": None,
            "message": {"role": "assistant", "content": "So be it.", "reasoning": None},
            "token_ids": [5, 6],
            "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]},
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
}
FINE = b'{"choices": [{"text": "x", "finish_reason": "stop"}]'
"""A good body, but for its end."""
MALFORMED = {
    "nothing": b"",
    "a page of HTML": b"<html><body>504 Gateway Time-out</body></html>",
    "truncated JSON": json.dumps(GOOD).encode()[:-20],
    "no UTF-8": b'{"choices": "\xff\xfe"}',
    "a list": b"[]",
    "NaN": FINE + b', "x": NaN}',
    "infinity": FINE + b', "x": -Infinity}',
    "a key twice": FINE + b', "x": 1, "x": 1}',
    "brackets 100,000 deep": FINE + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "objects 100,000 deep": FINE + b', "x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    "5,000 digits": FINE + b', "x": ' + b"9" * 5_000 + b"}",
    "no choices": b'{"id": "c"}',
    "an empty list of choices": b'{"choices": []}',
    "two choices": b'{"choices": [{}, {}]}',
    "choices that are no objects": b'{"choices": ["So be it."]}',
    "no text and an unknown finish_reason": b'{"choices": [{"message": {"content": ""}, "finish_reason": "tired"}]}',
    "content of another type": b'{"choices": [{"message": {"content": ["x"]}, "finish_reason": "stop"}]}',
    "null message": b'{"choices": [{"message": null, "finish_reason": "stop"}]}',
    "no text at all": b'{"choices": [{"finish_reason": "stop"}]}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_body_is_one_typed_error(body: bytes) -> None:
    found = str(fault(200, body))

    assert found.startswith("malformed reply: ")
    assert len(found) < 400
    assert str(fault(500, body)).startswith("status 500")


def test_body_that_is_no_json_is_told_by_its_beginning() -> None:
    body = b'data: {"error": {"message": "only streams are served"}}\n\ndata: [DONE]\n\n'

    with pytest.raises(SendingError, match=r"data: .*are served"):
        read(body)


JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: JsonValue, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a JSON value, the top excepted."""
    entries: Iterable[tuple[str | int, JsonValue]] = value.items() if isinstance(value, dict) else ()
    for key, entry in enumerate(value) if isinstance(value, list) else entries:
        yield (*path, key)
        yield from places(entry, (*path, key))


PLACES = tuple(places(GOOD))


@st.composite
def broken_bodies(draw: st.DrawFn) -> bytes:
    """A good body with values in it replaced, and then perhaps cut short or with bytes changed."""
    body: Any = deepcopy(GOOD)
    for _ in range(draw(st.integers(0, 2))):
        (*above, last), value = draw(st.sampled_from(PLACES)), draw(JSON)
        with suppress(LookupError, TypeError):  # What was replaced before may have no such place.
            reduce(getitem, above, body)[last] = value
    data = bytearray(json.dumps(body).encode())
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.none() | st.integers(0, len(data)))])


@pytest.mark.ci
@settings(max_examples=300)
@given(body=broken_bodies() | st.binary(max_size=200), has_tokens=st.booleans())
def test_any_body_is_a_reply_or_one_typed_error_and_sets_no_server_aside(body: bytes, has_tokens: bool) -> None:
    try:
        reply: Reply | SendingError = read(body, has_tokens=has_tokens)
    except SendingError as error:
        reply = error
    if isinstance(reply, SendingError):
        assert reply.standing in (ANSWERED, SOUND)
        return

    reply.text.encode("utf-8")
    assert min(reply.tokens.prompt, reply.tokens.cached, reply.tokens.completion) >= 0
    assert (reply.trace is not None) == has_tokens


@pytest.mark.ci
@settings(max_examples=300)
@given(status=st.integers(100, 999), body=broken_bodies() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_status_with_any_body_is_an_overflow_or_one_typed_error(status: int, body: bytes) -> None:
    try:
        reply = read(body, status)
    except SendingError:
        return

    assert status == 200 or reply.finish_reason is FinishReason.OVERFLOW


@pytest.mark.parametrize("logprob", ["1e999", "-1e999", "true", "null", '"-1"'])
def test_logprob_that_is_no_number_is_malformed(logprob: str) -> None:
    body = json.dumps(GOOD).replace("-0.5", logprob).encode()
    with pytest.raises(SendingError, match=r"malformed reply: logprobs: "):
        read(body, has_tokens=True)


def test_good_body_is_read_whatever_mark_of_the_byte_order_or_empty_error_it_has() -> None:
    assert read(FINE + b"}").text == read(FINE + b', "error": null}').text == "x"
    assert read(b"\xef\xbb\xbf" + FINE + b"}").text == "x"
    assert read(GOOD, has_tokens=True).text == "So be it."


MEMBERS = b"".join(map(gzip.compress, (b"So ", b"", b"be it.")))


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", " GZIP "])
@pytest.mark.parametrize(
    "body", [gzip.compress(b"So be it."), MEMBERS, MEMBERS + bytes(8)], ids=["one", "several", "padded"]
)
def test_compressed_body_is_unpacked(body: bytes, encoding: str) -> None:
    """Also one of several members, with padding behind them. Its bytes hold the time, so they are no name of a test."""
    assert unpacked(body, encoding, UNKEYED) == b"So be it."


@pytest.mark.parametrize(
    ("body", "encoding", "what"),
    [
        (gzip.compress(b'{"a": 1}')[:-9], "gzip", "ends too early"),
        (b'{"a": 1}', "gzip", "not gzip"),
        (b'{"a": 1}', "br", "was not asked for"),
        (gzip.compress(b'{"a":') + gzip.compress(b" 1}")[:-9], "gzip", "ends too early"),
        (gzip.compress(b" " * (HTTP_BODY_BYTES_MAX + 1)), "gzip", "bytes unpacked"),
        (gzip.compress(b" " * HTTP_BODY_BYTES_MAX) + gzip.compress(b" "), "gzip", "bytes unpacked"),
        (gzip.compress(b"") * (HTTP_GZIP_MEMBERS_MAX + 1), "gzip", "members"),
    ],
    ids=["cut short", "plain", "another encoding", "second cut short", "a bomb", "a bomb of two", "a swarm"],
)
def test_body_that_cannot_be_unpacked_is_malformed(body: bytes, encoding: str, what: str) -> None:
    with pytest.raises(SendingError, match=f"malformed reply: .*{what}"):
        unpacked(body, encoding, UNKEYED)
