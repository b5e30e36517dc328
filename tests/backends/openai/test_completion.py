"""What a good completion says, wherever the server puts it."""

from __future__ import annotations

import json

import pytest

from mac_runner.backends.openai import OpenaiConfig
from mac_runner.backends.testing import (
    CANARY,
    WITHHELD,
    Answer,
    OpenaiDialect,
    Redactor,
    SendingError,
    Standing,
    read_answer,
)
from mac_runner.errors import Verdict
from mac_runner.planning.testing import SimulatedClock
from mac_runner.types import FinishReason, JsonObject, JsonValue, PolicySpan, Reply, TokenCount, TokenTrace

KEY = "sk-canary-0123456789"


def chat(content: JsonValue = None, finish_reason: str | None = "stop", **message: JsonValue) -> JsonObject:
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish_reason}]}


def plain(text: str, finish_reason: str = "stop", **choice: JsonValue) -> JsonObject:
    return {"choices": [{"text": text, "finish_reason": finish_reason, **choice}]}


def read(body: JsonObject, *, has_tokens: bool = False, key: str | None = None) -> Reply:
    dialect = OpenaiDialect(OpenaiConfig(model="m", base_urls=("http://a/v1",)), has_tokens=has_tokens)
    answer = Answer(status=200, body=json.dumps(body).replace("Infinity", "1e999").encode())
    return read_answer(answer, CANARY, dialect, now=SimulatedClock().utc_now, redactor=Redactor(key))


def fault(body: JsonObject) -> SendingError:
    with pytest.raises(SendingError) as caught:
        read(body)
    return caught.value


def thought_kept_back(content: str | None, tokens: JsonValue) -> JsonObject:
    return {**chat(content, "length"), "usage": {"completion_tokens_details": {"reasoning_tokens": tokens}}}


THOUGHT: JsonObject = {
    "type": "thinking",
    "thinking": [{"type": "text", "text": "If I "}, {"type": "text", "text": "vote"}],
}
SHORT: JsonObject = {"type": "thinking", "thinking": "If I vote"}
SAID: list[JsonValue] = [{"type": "text", "text": "So "}, {"type": "text", "text": "be it."}]
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("body", "text", "thinking", "reason"),
    [
        (chat("Aye."), "Aye.", None, STOP),
        (plain("Aye.", "length"), "Aye.", None, LENGTH),
        (chat(""), "", None, STOP),
        # Null is a reply without a word.
        (chat(None), "", None, STOP),
        (chat(None, tool_calls=[]), "", None, STOP),
        ({"choices": [{"message": {"role": "assistant"}, "finish_reason": "stop"}]}, "", None, STOP),
        # Other servers' words for the end of a reply.
        *((chat("Aye.", word), "Aye.", None, STOP) for word in ("eos", "eos_token", "stop_sequence")),
        (chat("Aye.", "model_length"), "Aye.", None, LENGTH),
        # A refusal is the text where there is no other.
        (chat(None, refusal="I cannot."), "I cannot.", None, STOP),
        (chat(None, reasoning="Hm.", refusal="Aye."), "Aye.", "Hm.", STOP),
        # A thought before a text is set apart wherever the server puts it.
        (chat("Aye.", reasoning="Hm."), "Aye.", "Hm.", STOP),
        (chat("Aye.", reasoning_content=" Hm.\n"), "Aye.", "Hm.", STOP),
        (chat("<think>\nHm.\n</think>\n\nAye."), "Aye.", "Hm.", STOP),
        (chat([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Aye."}]), "Aye.", "Hm.", STOP),
        (plain(" <think>Hm.</think>Aye."), "Aye.", "Hm.", STOP),
        (chat("<think>\n\n</think>Aye."), "Aye.", None, STOP),
        (chat("Aye <think>. Hm."), "Aye <think>. Hm.", None, STOP),
        # A thought that was cut off stays open, and so does one that is kept back.
        *((chat(None, "length", **{key: "I"}), "<think>", "I", LENGTH) for key in ("reasoning", "reasoning_content")),
        *((chat([part], "length"), "<think>", "If I vote", LENGTH) for part in (THOUGHT, SHORT)),
        *((thought_kept_back(content, 512), "<think>", None, LENGTH) for content in (None, "")),
        (thought_kept_back(None, 0), "<think>", None, LENGTH),
        (thought_kept_back("", 0), "", None, LENGTH),
        # Parts of a text are joined.
        (chat(SAID), "So be it.", None, STOP),
        (chat([THOUGHT, *SAID]), "So be it.", "If I vote", STOP),
        (chat([]), "", None, STOP),
        # Half a surrogate pair is replaced.
        (chat("a\ud800b\U0001f600\udc00"), "a\ufffdb\U0001f600\ufffd", None, STOP),
    ],
)
def test_reply_has_a_text_a_thought_and_a_reason(
    body: JsonObject, text: str, thinking: str | None, reason: FinishReason
) -> None:
    reply = read(body)

    assert (reply.text, reply.thinking, reply.finish_reason) == (text, thinking, reason)


@pytest.mark.parametrize(
    ("versions", "span"),
    [
        (("4", "6", "7"), PolicySpan(4, 7)),
        ((4,), PolicySpan(4, 4)),
        (("default", "1"), PolicySpan(0, 1)),
        (("sft-3", "4"), None),  # Who names them so knows their order; we do not.
        ((), None),
    ],
)
def test_versions_of_the_weights_are_those_of_the_first_and_the_last_token(
    versions: tuple[JsonValue, ...], span: PolicySpan | None
) -> None:
    assert read(spans(*versions)).policy == span
    assert read(chat("Aye.")).policy is None
    with pytest.raises(SendingError, match="weight_versions"):
        read(spans(None))


def spans(*versions: JsonValue) -> JsonObject:
    return plain("Aye.", weight_versions=[{"version": version, "start": 0, "end": 1} for version in versions])


def test_thought_that_repeats_the_key_is_withheld_as_a_text_is() -> None:
    reply = read(chat(f"Aye, {KEY}.", reasoning=f"My key is {KEY}."), key=KEY)

    assert (reply.text, reply.thinking) == (WITHHELD, WITHHELD)


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({"type": "image_url", "image_url": {}}, r"content: .*image_url.* at `\$\[1\].type`"),
        ({"type": "text", "text": 7}, r"content: .* at `\$\[1\].text`"),
        ({"type": "thinking"}, r"content: .*`thinking` - at `\$\[1\]`"),
        (
            {"type": "thinking", "thinking": [{"type": "reference", "reference_ids": [1]}]},
            r"content: .*reference.* at `\$\[1\].thinking\[0\].type`",
        ),
        ({"type": ["text"]}, r"content: .* at `\$\[1\].type`"),
        ("So be it.", r"content: .* at `\$\[1\]`"),
    ],
)
def test_part_that_is_no_text_is_malformed_and_named(part: JsonValue, what: str) -> None:
    with pytest.raises(SendingError, match=f"malformed reply: {what}"):
        read(chat([SAID[0], part]))


def test_tokens_are_as_the_server_counts_them_or_none() -> None:
    """A count may be written as a float."""
    for nine, four, five in ((9, 4, 5), (9.0, 4.0, 5.0)):
        usage: JsonObject = {
            "prompt_tokens": nine,
            "completion_tokens": four,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": five},
        }
        assert read(chat("x") | {"usage": usage}).tokens == TokenCount(prompt=9, cached=5, completion=4)
        assert read(chat("x") | {"usage": usage | {"prompt_tokens_details": None}}).tokens.cached == 0
    assert read(chat("x")).tokens == TokenCount()


def test_count_that_counts_nothing_is_unknown_and_the_reply_is_read_all_the_same() -> None:
    odds: list[JsonValue] = [9.5, -1, -1.0, float("inf"), 1e300, 10**30, True, "7", [7], {"a": 7}]
    for odd in odds:
        usage: JsonObject = {
            "prompt_tokens": 9,
            "completion_tokens": odd,
            "prompt_tokens_details": {"cached_tokens": odd},
        }
        assert read(chat("x") | {"usage": usage}) == Reply(text="x", tokens=TokenCount(prompt=9)), odd
        assert read(chat("x") | {"usage": odd}) == read(chat("x") | {"usage": {"prompt_tokens_details": odd}})
        assert read(thought_kept_back("", odd)).text == ""
    more_than_all: JsonObject = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 10}}
    assert read(chat("x") | {"usage": more_than_all}).tokens == TokenCount(prompt=9)


def test_first_of_several_choices_is_the_reply() -> None:
    first: JsonObject = {"message": {"content": "Aye."}, "finish_reason": "stop"}
    others: list[JsonValue] = [{**first, "message": {"content": "Nay."}}, {}, None, "Nay."]
    for other in others:
        assert read({"choices": [first, other]}) == Reply(text="Aye.")


OF_CHAT: JsonObject = {
    "choices": [
        {
            "finish_reason": "stop",
            "token_ids": [7, 8],
            "message": {"content": "x"},
            "logprobs": {"content": [{"logprob": -1.5}, {"logprob": 0}]},
        }
    ],
    "prompt_token_ids": [1, 2, 3],
}
LIKELY: JsonObject = {"token_logprobs": [-1.5, 0]}


@pytest.mark.parametrize("body", [OF_CHAT, plain("x", token_ids=[7, 8], prompt_token_ids=[1, 2, 3], logprobs=LIKELY)])
def test_trace_is_read_from_where_each_endpoint_has_it(body: JsonObject) -> None:
    expected = TokenTrace(prompt_ids=(1, 2, 3), completion_ids=(7, 8), logprobs=(-1.5, 0.0))

    assert read(body, has_tokens=True).trace == expected
    assert read(body).trace is None


def test_trace_with_another_number_of_logprobs_is_malformed() -> None:
    with pytest.raises(SendingError, match="2 token ids with 1 "):
        read(plain("x", token_ids=[7, 8], prompt_token_ids=[], logprobs={"token_logprobs": [-1.5]}), has_tokens=True)


def test_reply_with_token_ids_that_repeats_the_key_is_malformed() -> None:
    """The token ids would give the key away."""
    body = plain(f"You sent {KEY}.", token_ids=[7, 8], prompt_token_ids=[1, 2, 3], logprobs=LIKELY)

    assert read(body, key=KEY).text == WITHHELD
    with pytest.raises(SendingError, match="repeats the key"):
        read(body, has_tokens=True, key=KEY)


def test_server_that_tells_no_token_ids_ends_the_run() -> None:
    with pytest.raises(SendingError, match=r"no prompt_token_ids; .* vLLM") as caught:
        read(chat("x"), has_tokens=True)

    assert caught.value.verdict is Verdict.FAIL_RUN


def test_reply_taken_away_by_the_server_is_refused_for_good() -> None:
    for reason in ("content_filter", "tool_calls", "function_call"):
        found = fault(chat(None, reason))
        assert (found.verdict, found.standing) == (Verdict.FAIL_CONVERSATION, Standing.SOUND)


def test_call_of_a_tool_in_the_place_of_a_text_is_refused_whatever_ended_it() -> None:
    found = fault(chat(None, tool_calls=[{"type": "function", "function": {"name": "vote", "arguments": "{}"}}]))

    assert "its own tools" in str(found)
    assert found.verdict is Verdict.FAIL_CONVERSATION


def test_reply_the_server_gave_up_is_asked_for_again() -> None:
    for reason in ("abort", "error"):
        found = fault(chat("So be", reason))
        assert reason in str(found)
        assert (found.verdict, found.standing) == (Verdict.RETRY, Standing.ANSWERED)


def test_reason_that_the_protocol_does_not_have_is_kept_where_there_is_a_text() -> None:
    odd: list[tuple[JsonValue, str]] = [
        ("repetition", "repetition"),
        ("x" * 99, "x" * 39 + "…"),
        (f"for {KEY}", WITHHELD),
        *((reason, "unknown") for reason in ("overflow", "", None, 7)),
    ]
    for reason, kept in odd:

        def ended(reason: JsonValue = reason, **message: JsonValue) -> JsonObject:
            return {"choices": [{"message": message, "finish_reason": reason}]}

        assert read(ended(content="Aye."), key=KEY) == Reply(text="Aye.", finish_reason=FinishReason(kept))
        assert (read(ended(reasoning="Hm.")).text, read(ended(reasoning="Hm.")).thinking) == ("<think>", "Hm.")
        with pytest.raises(SendingError, match="no text") as caught:
            read(ended(content=None), key=KEY)
        assert caught.value.standing is Standing.ANSWERED
        assert KEY not in str(caught.value)
