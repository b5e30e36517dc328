"""What becomes of each status: the verdict, the pause, and the standing of the endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from mac_runner.backends.openai.testing import Answer, SendingError, Standing, model_names, read_answer
from mac_runner.backends.testing import Redactor
from mac_runner.errors import Verdict
from mac_runner.types import FinishReason, JsonObject, JsonValue

UNKEYED = Redactor(None)

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)

AGAIN, NEVER = Verdict.RETRY, Verdict.FAIL_CONVERSATION
SOUND, SHAKY, FAILING, DOUBTFUL = Standing.SOUND, Standing.SHAKY, Standing.FAILING, Standing.DOUBTFUL


def error(status: int, message: str = "no", *, retry_after: str | None = None, **more: JsonValue) -> SendingError:
    return fault(status, {"error": {"message": message, **more}}, retry_after=retry_after)


def fault(status: int, said: JsonObject, *, retry_after: str | None = None) -> SendingError:
    body = json.dumps(said).encode()
    with pytest.raises(SendingError) as caught:
        read_answer(
            Answer(status=status, body=body, retry_after=retry_after), has_tokens=False, now=NOW, redactor=UNKEYED
        )
    return caught.value


@pytest.mark.parametrize(
    ("status", "verdict", "standing"),
    [
        (301, AGAIN, SHAKY),
        (400, NEVER, Standing.REFUSING),
        (404, NEVER, DOUBTFUL),
        (429, AGAIN, SOUND),
        (500, AGAIN, FAILING),
        (503, AGAIN, SHAKY),
    ],
    ids=["foreign", "refused", "denied", "busy", "broken", "gateway"],
)
def test_meaning_of_a_status_has_its_verdict(status: int, verdict: Verdict, standing: Standing) -> None:
    found = error(status)

    assert (found.verdict, found.standing) == (verdict, standing)
    assert str(found) == f"status {status}: no"


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_server_is_left_alone_for_as_long_as_it_says(status: int) -> None:
    found = error(status, retry_after="7")

    assert (found.retry_after_s, found.is_busy) == (7.0, True)
    assert error(status).is_busy is (status in (409, 429))


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
    reply = read_answer(Answer(status=status, body=body), has_tokens=True, now=NOW, redactor=UNKEYED)

    assert (reply.text, reply.finish_reason) == ("", FinishReason.OVERFLOW)


def test_thought_that_left_no_room_for_a_reply_is_an_open_thought() -> None:
    text = "Could not finish the message because max_tokens or model output limit was reached. Please try again."
    body = json.dumps({"error": {"message": text, "type": "invalid_request_error"}}).encode()

    reply = read_answer(Answer(status=400, body=body), has_tokens=False, now=NOW, redactor=UNKEYED)

    assert (reply.text, reply.finish_reason) == ("<think>", FinishReason.LENGTH)


def test_context_length_is_no_outcome_of_a_server_error() -> None:
    assert error(500, "maximum context length").verdict is AGAIN


ERRORS = [400, 401, 402, 403, 404, 408, 413, 429, 500, 502, 503, 504, 529]


@pytest.mark.parametrize("spell", [int, str])
@pytest.mark.parametrize("status", ERRORS)
def test_error_told_with_200_is_what_the_same_status_is(status: int, spell: Callable[[int], JsonValue]) -> None:
    found, same = error(200, retry_after="7", code=spell(status)), error(status, retry_after="7")

    assert str(found).startswith(f"status {status}, ")
    assert str(found).endswith("status 200: no")
    assert (found.verdict, found.standing) == (same.verdict, same.standing)
    assert (found.retry_after_s, found.is_busy) == (same.retry_after_s, same.is_busy)


@pytest.mark.parametrize("status", ERRORS)
def test_error_in_the_choice_is_what_the_same_status_is(status: int) -> None:
    choice: JsonObject = {
        "finish_reason": "error",
        "message": {"content": "So be"},
        "error": {"message": "Provider returned error", "code": status},
    }

    found, same = fault(200, {"choices": [choice]}), error(status)

    assert "Provider returned error" in str(found)
    assert (found.verdict, found.standing, found.is_busy) == (same.verdict, same.standing, same.is_busy)


@pytest.mark.parametrize("more", [{}, {"choices": None}, {"choices": []}, {"object": "error"}])
def test_error_told_with_200_that_names_no_status_is_sent_again(more: JsonObject) -> None:
    found = fault(200, {"error": {"message": "overloaded", "code": "overloaded_error"}, **more})

    assert (found.verdict, found.standing, found.is_busy) == (AGAIN, SHAKY, False)
    assert str(found) == "status 200: overloaded"


@pytest.mark.parametrize("code", [400, "context_length_exceeded"])
def test_prompt_too_long_is_an_outcome_with_200_too(code: JsonValue) -> None:
    said = {"error": {"message": "This endpoint's maximum context length is 2048 tokens.", "code": code}}

    reply = read_answer(Answer(status=200, body=json.dumps(said).encode()), has_tokens=False, now=NOW, redactor=UNKEYED)

    assert (reply.text, reply.finish_reason) == ("", FinishReason.OVERFLOW)


def test_reply_beside_an_empty_error_is_a_reply() -> None:
    choice: JsonObject = {"finish_reason": "stop", "message": {"content": "Aye."}, "error": None}
    body = json.dumps({"choices": [choice], "error": None}).encode()

    assert read_answer(Answer(status=200, body=body), has_tokens=False, now=NOW, redactor=UNKEYED).text == "Aye."


def test_path_that_a_server_lacks_is_denied_though_it_answers_200() -> None:
    said: JsonObject = {"error": "Unexpected endpoint or method. (POST /chat/completions)"}

    assert (fault(200, said).verdict, fault(200, said).standing) == (NEVER, DOUBTFUL)
    with pytest.raises(SendingError, match="Unexpected endpoint") as caught:
        model_names(Answer(status=200, body=json.dumps(said).encode()), NOW, UNKEYED)
    assert caught.value.verdict is NEVER


def test_redirect_is_told_with_where_it_leads() -> None:
    answer = Answer(status=308, body=b"", location="https://gpu-1/v1/chat/completions")

    with pytest.raises(SendingError, match=r"308; .*gpu-1/v1/chat/completions"):
        read_answer(answer, has_tokens=False, now=NOW, redactor=UNKEYED)


def test_no_quota_left_is_for_a_canary_to_tell() -> None:
    assert error(429, code="insufficient_quota").standing is DOUBTFUL


def test_request_id_still_known_to_the_server_is_sent_again_later() -> None:
    assert error(400, "id c-1/0 already running").verdict is AGAIN


def test_models_are_listed_by_id() -> None:
    assert model_names(Answer(status=200, body=b'{"data": [{"id": "b"}, {"id": "a"}]}'), NOW, UNKEYED) == ("b", "a")


@pytest.mark.parametrize("body", [b"{}", b'{"data": {}}', b'{"data": [{}]}', b'{"data": ["a"]}', b"<html>"])
def test_list_of_models_that_is_none_is_an_error(body: bytes) -> None:
    with pytest.raises(SendingError):
        model_names(Answer(status=200, body=body), NOW, UNKEYED)
