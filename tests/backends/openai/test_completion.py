"""What a good completion says, wherever the server puts it."""

from __future__ import annotations

import pytest

from mac_runner.backends.openai.testing import SendingError, Standing, read_completion
from mac_runner.backends.testing import Redactor
from mac_runner.errors import Verdict
from mac_runner.types import FinishReason, JsonObject, JsonValue, PolicySpan, Reply, TokenCount, TokenTrace

UNKEYED = Redactor(None)


def chat(content: JsonValue, *, finish_reason: str | None = "stop", **message: JsonValue) -> JsonObject:
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish_reason}]}


def read(body: JsonObject) -> Reply:
    return read_completion(body, has_tokens=False, redactor=UNKEYED)


def test_text_of_both_endpoints_is_read() -> None:
    assert read(chat("Aye.")).text == "Aye."
    assert read({"choices": [{"text": "Aye.", "finish_reason": "length"}]}).text == "Aye."
    assert read(chat("")).text == ""


def test_versions_of_the_weights_are_those_of_the_first_and_the_last_token() -> None:
    def spans(*versions: JsonValue) -> JsonObject:
        listed: list[JsonValue] = [{"version": version, "start": 0, "end": 1} for version in versions]
        return {"choices": [{"text": "Aye.", "finish_reason": "stop", "weight_versions": listed}]}

    assert read(chat("Aye.")).policy is None
    assert read(spans("4", "6", "7")).policy == PolicySpan(4, 7)
    assert read(spans(4)).policy == PolicySpan(4, 4)
    assert read(spans("default", "1")).policy == PolicySpan(0, 1)
    assert read(spans("sft-3", "4")).policy is None  # Who names them so knows their order; we do not.
    assert read(spans()).policy is None
    with pytest.raises(SendingError, match="weight_versions"):
        read(spans(None))


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_that_was_cut_off_stays_an_open_thought(key: str) -> None:
    reply = read(chat(None, finish_reason="length", **{key: "If I vote"}))

    assert (reply.text, reply.thinking) == ("<think>", "If I vote")
    assert reply.finish_reason is FinishReason.LENGTH


def test_thought_before_a_text_is_set_apart_wherever_the_server_puts_it(subtests: pytest.Subtests) -> None:
    bodies: list[JsonObject] = [
        chat("Aye.", reasoning="Hm."),
        chat("Aye.", reasoning_content=" Hm.\n"),
        chat("<think>\nHm.\n</think>\n\nAye."),
        chat([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Aye."}]),
        chat(None, reasoning="Hm.", refusal="Aye."),
        {"choices": [{"text": " <think>Hm.</think>Aye.", "finish_reason": "stop"}]},
    ]
    for body in bodies:
        with subtests.test(str(body)):
            assert (read(body).text, read(body).thinking) == ("Aye.", "Hm.")

    assert read(chat("<think>\n\n</think>Aye.")) == read(chat("Aye."))
    assert read(chat("Aye <think>. Hm.")).thinking is None


def test_key_in_a_thought_is_redacted_as_in_a_text() -> None:
    key = "sk-canary-0123456789abcdef"
    body = chat(f"Aye, {key}.", reasoning=f"My key is {key}.")
    reply = read_completion(body, has_tokens=False, redactor=Redactor(key))

    assert reply.thinking is not None
    assert key not in reply.text + reply.thinking


THOUGHT: JsonObject = {
    "type": "thinking",
    "thinking": [{"type": "text", "text": "If I "}, {"type": "text", "text": "vote"}],
}
ONE_TEXT: JsonObject = {"type": "text", "text": "So "}
TWO_TEXT: JsonObject = {"type": "text", "text": "be it."}


def test_parts_of_text_are_joined_and_a_thought_beside_them_is_set_apart() -> None:
    assert read(chat([ONE_TEXT, TWO_TEXT])).text == "So be it."
    assert read(chat([THOUGHT, ONE_TEXT, TWO_TEXT])).text == "So be it."
    assert read(chat([THOUGHT, ONE_TEXT, TWO_TEXT])).thinking == "If I vote"
    assert read(chat([])).text == ""


@pytest.mark.parametrize("part", [THOUGHT, {"type": "thinking", "thinking": "If I vote"}])
def test_part_of_a_thought_without_a_text_stays_an_open_thought(part: JsonObject) -> None:
    reply = read(chat([part], finish_reason="length"))

    assert (reply.text, reply.thinking) == ("<think>", "If I vote")


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
        read(chat([ONE_TEXT, part]))


@pytest.mark.parametrize(
    ("content", "reasoning_tokens", "text"),
    [(None, 512, "<think>"), ("", 512, "<think>"), (None, 0, "<think>"), ("", 0, "")],
)
def test_thought_that_is_kept_back_and_was_cut_off_is_told_from_an_empty_reply(
    content: str | None, reasoning_tokens: int, text: str
) -> None:
    usage: JsonObject = {"completion_tokens_details": {"reasoning_tokens": reasoning_tokens}}
    body = {**chat(content, finish_reason="length"), "usage": usage}

    assert (read(body).text, read(body).finish_reason) == (text, FinishReason.LENGTH)


@pytest.mark.parametrize("message", [{"content": None}, {"content": None, "tool_calls": []}, {"role": "assistant"}])
def test_null_is_a_reply_without_a_word(message: JsonObject) -> None:
    reply = read({"choices": [{"message": message, "finish_reason": "stop"}]})

    assert (reply.text, reply.finish_reason) == ("", FinishReason.STOP)


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("eos", FinishReason.STOP),
        ("eos_token", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("model_length", FinishReason.LENGTH),
    ],
)
def test_other_servers_words_for_the_end_of_a_reply_are_known(reason: str, meaning: FinishReason) -> None:
    assert read(chat("Aye.", finish_reason=reason)).finish_reason is meaning


def test_refusal_is_the_text_where_there_is_no_other() -> None:
    assert read(chat(None, refusal="I cannot.")).text == "I cannot."


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert read(chat("a\ud800b\U0001f600\udc00")).text == "a\ufffdb\U0001f600\ufffd"


def test_tokens_are_as_the_server_counts_them_or_none() -> None:
    usage: JsonObject = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 5},
    }

    assert read(chat("x") | {"usage": usage}).tokens == TokenCount(prompt=9, cached=5, completion=4)
    assert read(chat("x") | {"usage": usage | {"prompt_tokens_details": None}}).tokens.cached == 0
    assert read(chat("x")).tokens == TokenCount()


def test_count_that_is_written_as_a_float_is_that_count() -> None:
    usage: JsonObject = {
        "prompt_tokens": 9.0,
        "completion_tokens": 4.0,
        "prompt_tokens_details": {"cached_tokens": 5.0},
    }

    assert read(chat("x") | {"usage": usage}).tokens == TokenCount(prompt=9, cached=5, completion=4)


@pytest.mark.parametrize("count", [9.5, -1.0, float("inf"), 1e300, True])
def test_number_that_counts_nothing_is_malformed(count: float) -> None:
    with pytest.raises(SendingError, match="malformed reply: usage: "):
        read(chat("x") | {"usage": {"prompt_tokens": count}})


@pytest.mark.parametrize("is_chat", [True, False])
def test_trace_is_read_from_where_each_endpoint_has_it(is_chat: bool) -> None:
    choice: JsonObject = {"finish_reason": "stop", "token_ids": [7, 8]}
    body: JsonObject = {"choices": [choice]}
    if is_chat:
        choice |= {"message": {"content": "x"}, "logprobs": {"content": [{"logprob": -1.5}, {"logprob": 0}]}}
        body["prompt_token_ids"] = [1, 2, 3]
    else:
        choice |= {"text": "x", "logprobs": {"token_logprobs": [-1.5, 0]}, "prompt_token_ids": [1, 2, 3]}

    expected = TokenTrace(prompt_ids=(1, 2, 3), completion_ids=(7, 8), logprobs=(-1.5, 0.0))
    assert read_completion(body, has_tokens=True, redactor=UNKEYED).trace == expected
    assert read(body).trace is None


def test_trace_with_another_number_of_logprobs_is_malformed() -> None:
    choice: JsonObject = {"finish_reason": "stop", "text": "x", "token_ids": [7, 8], "prompt_token_ids": []}
    with pytest.raises(SendingError, match="2 token ids with 1 "):
        read_completion(
            {"choices": [choice | {"logprobs": {"token_logprobs": [-1.5]}}]}, has_tokens=True, redactor=UNKEYED
        )


def test_reply_with_token_ids_that_repeats_the_key_is_malformed() -> None:
    """The token ids would give the key away."""
    key = "sk-canary-0123456789"
    body = chat(f"You sent {key}.") | {"prompt_token_ids": []}

    assert read_completion(body, has_tokens=False, redactor=Redactor(key)).text == "You sent ***."
    with pytest.raises(SendingError, match="repeats the key"):
        read_completion(body, has_tokens=True, redactor=Redactor(key))


def test_server_that_tells_no_token_ids_ends_the_run() -> None:
    with pytest.raises(SendingError, match=r"no prompt_token_ids; .* vLLM") as caught:
        read_completion(chat("x"), has_tokens=True, redactor=UNKEYED)

    assert caught.value.verdict is Verdict.FAIL_RUN


@pytest.mark.parametrize("reason", ["content_filter", "tool_calls", "function_call"])
def test_reply_taken_away_by_the_server_is_refused_for_good(reason: str) -> None:
    with pytest.raises(SendingError) as caught:
        read(chat(None, finish_reason=reason))

    assert (caught.value.verdict, caught.value.standing) == (Verdict.FAIL_CONVERSATION, Standing.SOUND)


def test_call_of_a_tool_in_the_place_of_a_text_is_refused_whatever_ended_it() -> None:
    with pytest.raises(SendingError, match="its own tools") as caught:
        read(chat(None, tool_calls=[{"type": "function", "function": {"name": "vote", "arguments": "{}"}}]))

    assert caught.value.verdict is Verdict.FAIL_CONVERSATION


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_reply_the_server_gave_up_is_asked_for_again(reason: str) -> None:
    with pytest.raises(SendingError, match=reason) as caught:
        read(chat("So be", finish_reason=reason))

    assert caught.value.verdict is Verdict.RETRY


def test_reason_that_the_protocol_does_not_have_is_quoted() -> None:
    with pytest.raises(SendingError, match="finish_reason is 'end_turn', none of"):
        read(chat("Aye.", finish_reason="end_turn"))
    with pytest.raises(SendingError, match="finish_reason is null"):
        read(chat("Aye.", finish_reason=None))
