"""What becomes of each status: the verdict, the pause, and the standing of the endpoint."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.backends.openai.answer import Answer, model_names, read_answer
from mac_runner.backends.openai.faults import SendingError, Standing
from mac_runner.backends.retry_after import retry_after_s
from mac_runner.errors import Verdict
from mac_runner.types import FinishReason, JsonValue

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)

AGAIN, NEVER = Verdict.RETRY, Verdict.FAIL_CONVERSATION
SOUND, SHAKY, DOUBTFUL = Standing.SOUND, Standing.SHAKY, Standing.DOUBTFUL


def error(status: int, message: str = "no", *, retry_after: str | None = None, **more: JsonValue) -> SendingError:
    body = json.dumps({"error": {"message": message, **more}}).encode()
    with pytest.raises(SendingError) as caught:
        read_answer(Answer(status=status, body=body, retry_after=retry_after), has_tokens=False, now=NOW)
    return caught.value


@pytest.mark.parametrize(
    ("status", "verdict", "standing"),
    [
        (301, AGAIN, SHAKY),
        (400, NEVER, SOUND),
        (401, NEVER, DOUBTFUL),
        (402, NEVER, DOUBTFUL),
        (403, NEVER, DOUBTFUL),
        (404, NEVER, DOUBTFUL),
        (405, NEVER, SOUND),
        (408, AGAIN, SOUND),
        (409, AGAIN, SOUND),
        (413, NEVER, SOUND),
        (422, NEVER, SOUND),
        (425, AGAIN, SOUND),
        (429, AGAIN, SOUND),
        (500, AGAIN, SOUND),
        (502, AGAIN, SHAKY),
        (503, AGAIN, SHAKY),
        (504, AGAIN, SHAKY),
        (529, AGAIN, SOUND),
    ],
)
def test_status_has_its_verdict(status: int, verdict: Verdict, standing: Standing) -> None:
    found = error(status)

    assert (found.verdict, found.standing) == (verdict, standing)
    assert str(found) == f"status {status}: no"


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("0", None),
        ("-1", None),
        ("1e9", 60.0),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30.0),
        ("Thu, 01 Jan 2026 13:00:00 GMT", 60.0),
        ("Thu, 01 Jan 2026 11:59:59 GMT", None),
        ("Thu, 99 Jan 2026 11:59:59 GMT", None),
        ("Thu, 01 Jan 99999 00:00:00 GMT", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_obeyed_and_capped(status: int, header: str | None, pause_s: float | None) -> None:
    assert error(status, retry_after=header).retry_after_s == pause_s


@given(header=st.text() | st.from_regex(r"\A[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} -?\d+ \d+:\d+:\d+ \S*\Z"))
def test_any_retry_after_is_a_bounded_pause_or_none(header: str) -> None:
    pause_s = retry_after_s(header, NOW)

    assert pause_s is None or 0 < pause_s <= 60


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (400, {"message": "too long", "code": "context_length_exceeded"}),
        (400, {"message": "This model's maximum context length is 2048 tokens. However, you requested 3000 tokens"}),
        (400, {"message": "'max_tokens' is too large: 512. This model's maximum context length is 256 tokens"}),
        (400, {"message": "The decoder prompt (length 99) is longer than the maximum model length of 64."}),
        (413, {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}),
    ],
)
def test_prompt_too_long_for_the_context_is_an_outcome(status: int, fields: dict[str, str]) -> None:
    body = json.dumps({"error": fields}).encode()
    reply = read_answer(Answer(status=status, body=body), has_tokens=True, now=NOW)

    assert (reply.text, reply.finish_reason) == ("", FinishReason.OVERFLOW)


def test_context_length_is_no_outcome_of_a_server_error() -> None:
    assert error(500, "maximum context length").verdict is AGAIN


def test_no_quota_left_is_for_a_canary_to_tell() -> None:
    assert error(429, code="insufficient_quota").standing is DOUBTFUL


def test_request_id_still_known_to_the_server_is_sent_again_later() -> None:
    assert error(400, "Request id c-1/0/a/0/0 already running.").verdict is AGAIN


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": "out of luck"}', "out of luck"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"object": "error", "message": "no such thing", "code": 404}', "no such thing"),
        (b'{"error": {"code": 7}}', ""),
    ],
)
def test_complaint_is_found_in_every_usual_form(body: bytes, text: str) -> None:
    with pytest.raises(SendingError) as caught:
        read_answer(Answer(status=404, body=body), has_tokens=False, now=NOW)

    assert str(caught.value) == (f"status 404: {text}" if text else "status 404")


def test_models_are_listed_by_id() -> None:
    assert model_names(Answer(status=200, body=b'{"data": [{"id": "b"}, {"id": "a"}]}'), NOW) == ("b", "a")


@pytest.mark.parametrize("body", [b"{}", b'{"data": {}}', b'{"data": [{}]}', b'{"data": ["a"]}', b"<html>"])
def test_list_of_models_that_is_none_is_an_error(body: bytes) -> None:
    with pytest.raises(SendingError):
        model_names(Answer(status=200, body=body), NOW)
