"""Whatever comes over the wire is a reply or one typed error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mac_runner.backends.openai.testing import (
    HTTP_BODY_BYTES_MAX,
    HTTP_GZIP_MEMBERS_MAX,
    Answer,
    SendingError,
    read_answer,
    unpacked,
)
from mac_runner.backends.testing import Redactor
from mac_runner.types import FinishReason, JsonObject, JsonValue, Reply

UNKEYED = Redactor(None)

GOOD: JsonObject = {
    "id": "c",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
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
    "no finish_reason": b'{"choices": [{"message": {"content": "x"}}]}',
    "an unknown finish_reason": b'{"choices": [{"message": {"content": "x"}, "finish_reason": "tired"}]}',
    "content of another type": b'{"choices": [{"message": {"content": ["x"]}, "finish_reason": "stop"}]}',
    "null message": b'{"choices": [{"message": null, "finish_reason": "stop"}]}',
    "no text at all": b'{"choices": [{"finish_reason": "stop"}]}',
    "counts that are texts": b'{"choices": [{"text": "x", "finish_reason": "stop"}], "usage": {"prompt_tokens": "7"}}',
    "counts below zero": b'{"choices": [{"text": "x", "finish_reason": "stop"}], "usage": {"prompt_tokens": -7}}',
    "a count of 4,000 digits": b'{"choices": [{"text": "x", "finish_reason": "stop"}], "usage": {"prompt_tokens": '
    + b"9" * 4_000
    + b"}}",
}


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def read(body: bytes, *, has_tokens: bool = False) -> Reply:
    return read_answer(Answer(status=200, body=body), has_tokens=has_tokens, now=NOW, redactor=UNKEYED)


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_body_is_one_typed_error(body: bytes) -> None:
    with pytest.raises(SendingError, match=r"^malformed reply: ") as caught:
        read(body)

    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_body_of_an_error_is_no_second_error(body: bytes) -> None:
    with pytest.raises(SendingError, match=r"^status 500"):
        read_answer(Answer(status=500, body=body), has_tokens=False, now=NOW, redactor=UNKEYED)


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
    entries: Iterable[tuple[str | int, JsonValue]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    for key, entry in entries:
        yield (*path, key)
        yield from places(entry, (*path, key))


def descend(value: JsonValue, key: str | int) -> JsonValue:
    """What stands under `key`, if anything does."""
    if isinstance(value, dict):
        return value.get(str(key))
    return value[key] if isinstance(value, list) and isinstance(key, int) and key < len(value) else None


PLACES = tuple(places(GOOD))


@st.composite
def broken_bodies(draw: st.DrawFn) -> bytes:
    """A good body with a value in it replaced or taken out, and then perhaps cut short or with a byte changed."""
    body = deepcopy(GOOD)
    for _ in range(draw(st.integers(0, 2))):
        *above, last = draw(st.sampled_from(PLACES))
        here: JsonValue = body
        for key in above:
            here = descend(here, key)
        if isinstance(here, dict):
            here[str(last)] = draw(JSON)
    data = bytearray(json.dumps(body).encode())
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.none() | st.integers(0, len(data)))])


@pytest.mark.ci
@settings(max_examples=300)
@given(body=broken_bodies() | st.binary(max_size=200), has_tokens=st.booleans())
def test_any_body_is_a_reply_or_one_typed_error(body: bytes, has_tokens: bool) -> None:
    try:
        reply = read(body, has_tokens=has_tokens)
    except SendingError:
        return

    reply.text.encode("utf-8")
    assert min(reply.tokens.prompt, reply.tokens.cached, reply.tokens.completion) >= 0
    assert (reply.trace is not None) == has_tokens


@pytest.mark.ci
@settings(max_examples=300)
@given(status=st.integers(100, 999), body=broken_bodies() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_status_with_any_body_is_an_overflow_or_one_typed_error(status: int, body: bytes) -> None:
    try:
        reply = read_answer(Answer(status=status, body=body), has_tokens=False, now=NOW, redactor=UNKEYED)
    except SendingError:
        return

    assert status == 200 or reply.finish_reason is FinishReason.OVERFLOW


@pytest.mark.parametrize("logprob", ["1e999", "-1e999", "true", "null", '"-1"'])
def test_logprob_that_is_no_number_is_malformed(logprob: str) -> None:
    body = json.dumps(GOOD).replace("-0.5", logprob).encode()
    with pytest.raises(SendingError, match=r"malformed reply: logprobs: "):
        read(body, has_tokens=True)


def test_good_body_is_read() -> None:
    assert read(FINE + b"}").text == "x"
    assert read(json.dumps(GOOD).encode(), has_tokens=True).text == "So be it."


def test_mark_of_the_byte_order_is_no_part_of_the_json() -> None:
    assert read(b"\xef\xbb\xbf" + FINE + b"}").text == "x"


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", " GZIP "])
def test_compressed_body_is_unpacked(encoding: str) -> None:
    assert unpacked(gzip.compress(b"So be it."), encoding, UNKEYED) == b"So be it."


@pytest.mark.parametrize("rest", [b"", bytes(8)], ids=["nothing", "padding"])
def test_members_of_a_compressed_body_are_joined(rest: bytes) -> None:
    members = b"".join(map(gzip.compress, (b"So ", b"", b"be it.")))

    assert unpacked(members + rest, "gzip", UNKEYED) == b"So be it."


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
