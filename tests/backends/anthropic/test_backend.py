"""What the backend does in its own way at a stub of the Messages API: what is sent, and what each answer means."""

from __future__ import annotations

import pytest

from mac_runner.backends.testing import DECLINED
from mac_runner.environments.discussion.testing import refuses
from mac_runner.errors import BackendError, EngineDeadError, FormRefusedError, TransientBackendError
from mac_runner.types import FinishReason, JsonObject, JsonValue, Message, Prompt, Reply, Sampling, TokenCount
from tests.backends.asking import NOBODY, outcome, reply_of, up
from tests.sim.anthropic_server import AnthropicServer, failure, message
from tests.sim.behaviour import Behaviour, Reset, Send
from tests.sim.held_time import held
from tests.sim.requests import request

TALK = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Bridge?"),
    Message(role="user", content="Ferry? a\ud83db"),
    Message(role="assistant", content=" "),
    Message(role="assistant", content="Hm."),
    Message(role="user", content="Well?"),
)
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"why": {"type": "string", "maxLength": 80}, "answer": {"enum": ["a", "b"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


def sent(sampling: Sampling, prompt: Prompt | None = None, **settings: JsonValue) -> JsonObject:
    """The body of a request."""
    server = AnthropicServer(answer=lambda _received: message())
    reply_of(server, request(prompt=prompt, sampling=sampling), settings=settings)
    (received,) = server.received
    return received.json


def answered(answer: Behaviour, prompt: Prompt | None = None) -> Reply | BackendError:
    """What a request comes to, where every request has this answer."""
    return outcome(AnthropicServer(answer=lambda _received: answer), request(prompt=prompt))


def test_request_has_the_system_message_apart_and_messages_that_alternate() -> None:
    """The default temperature is not sent, the seed never."""
    body = sent(Sampling(seed=3), Prompt(messages=TALK))

    assert body == {
        "model": "stub",
        "max_tokens": 512,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Bridge?\n\nFerry? a?b"},
            {"role": "assistant", "content": "Hm."},
            {"role": "user", "content": "Well?"},
        ],
    }
    plain = sent(Sampling(), Prompt(messages=TALK), prompt_caching=False)
    assert plain["system"] == [{"type": "text", "text": "Be brief."}]


def test_every_setting_is_sent_under_its_name() -> None:
    """Only the older version of the API takes those that say how tokens are drawn."""
    sampling = Sampling(
        temperature=0.5, max_tokens=9, top_p=0.9, top_k=40, stop=("END",), reasoning_effort="low", thinking=False
    )
    body = sent(sampling, api_version="2023-06-01")

    assert {name: value for name, value in body.items() if name not in ("model", "messages")} == {
        "temperature": 0.5,
        "max_tokens": 9,
        "top_p": 0.9,
        "top_k": 40,
        "stop_sequences": ["END"],
        "output_config": {"effort": "low"},
        "thinking": {"type": "disabled"},
    }


def test_thinking_is_left_to_the_model_or_has_a_budget() -> None:
    """One token has no room for the budget: `doctor` asks for no more."""
    thinking = Sampling(thinking=True, max_tokens=4000)

    assert sent(thinking)["thinking"] == {"type": "adaptive", "display": "summarized"}
    budgeted = {"type": "enabled", "budget_tokens": 2000, "display": "summarized"}
    assert sent(thinking, thinking_budget_tokens=2000)["thinking"] == budgeted
    assert "thinking" not in sent(Sampling(thinking=True, max_tokens=1), thinking_budget_tokens=2000)
    assert "thinking" not in sent(Sampling(max_tokens=4000), thinking_budget_tokens=2000)


def test_schema_is_sent_as_the_api_takes_schemas() -> None:
    body = sent(Sampling(reasoning_effort="high"), Prompt(messages=TALK, schema=SCHEMA))

    why: JsonObject = {"type": "string", "description": "{maxLength: 80}"}
    schema = SCHEMA | {"properties": {"why": why, "answer": {"enum": ["a", "b"]}}}
    assert body["output_config"] == {"effort": "high", "format": {"type": "json_schema", "schema": schema}}


def test_reply_has_text_thought_and_every_token() -> None:
    usage: JsonObject = {"input_tokens": 5, "output_tokens": 7}
    usage |= {"cache_creation_input_tokens": 20, "cache_read_input_tokens": 100}

    assert answered(message("A bridge.", thinking="Both.", usage=usage)) == Reply(
        text="A bridge.", thinking="Both.", tokens=TokenCount(prompt=125, cached=100, completion=7)
    )


@pytest.mark.parametrize(
    ("answer", "text", "reason"),
    [
        (message("x", "end_turn"), "x", FinishReason.STOP),
        (message("x", "stop_sequence"), "x", FinishReason.STOP),
        (message("x", "max_tokens"), "x", FinishReason.LENGTH),
        (message("x", "model_context_window_exceeded"), "x", FinishReason.LENGTH),
        (message("", "max_tokens"), "<think>", FinishReason.LENGTH),
        (message("I will not.", "refusal"), "I will not.", FinishReason.STOP),
        (message("", "refusal"), DECLINED, FinishReason.STOP),
        (message("x", "tired"), "x", FinishReason("tired")),
        (message("x", usage={"input_tokens": -1, "output_tokens": "many"}), "x", FinishReason.STOP),
        (message("", "refusal", stop_details={"type": "refusal", "explanation": "No."}), "No.", FinishReason.STOP),
        (failure(400, "prompt is too long: 215000 tokens > 200000 maximum"), "", FinishReason.OVERFLOW),
        (
            failure(400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
            "",
            FinishReason.OVERFLOW,
        ),
        (failure(413, "Request exceeds the maximum size"), "", FinishReason.OVERFLOW),
    ],
)
def test_why_a_reply_ended(answer: Send, text: str, reason: FinishReason) -> None:
    reply = answered(answer)

    assert isinstance(reply, Reply)
    assert (reply.text, reply.finish_reason) == (text, reason)


def test_refusal_without_words_is_read_as_one() -> None:
    assert refuses(DECLINED)


@pytest.mark.parametrize(
    ("answer", "is_busy", "is_unreachable"),
    [
        (failure(529, "Overloaded", kind="overloaded_error"), True, False),
        (failure(529, "Overloaded", kind="overloaded_error", sent_as=200), True, False),
        (failure(503, "down"), False, False),
        (Reset(sent=10), False, True),
        (Send(200, b'{"content": 3}'), False, False),
        (message("", "odd"), False, False),
    ],
)
def test_what_may_pass_is_sent_again(answer: Behaviour, is_busy: bool, is_unreachable: bool) -> None:
    error = answered(answer)

    assert isinstance(error, TransientBackendError)
    assert (error.is_busy, error.is_unreachable) == (is_busy, is_unreachable)


@pytest.mark.parametrize(
    "text", ["Your credit balance is too low to access the Anthropic API.", "temperature is deprecated for this model"]
)
def test_what_waiting_does_not_change_ends_the_run(text: str) -> None:
    """The last refuses the settings of an agent, as a single word shows that is refused too."""
    assert isinstance(answered(failure(400, text)), EngineDeadError)


def test_form_that_the_model_refuses_is_named() -> None:
    refused = failure(400, "output_config.format: Extra inputs are not permitted")

    assert isinstance(answered(refused, Prompt(messages=TALK, schema=SCHEMA)), FormRefusedError)


def test_redirect_is_told_as_one_that_is_not_followed() -> None:
    assert "redirects" in str(answered(Send(307, b"", (("Location", f"{NOBODY}/v1/messages"),))))


@pytest.mark.parametrize("answer", [message(), failure(529, "Overloaded")])
@held
async def test_gateway_without_a_list_of_models_starts(answer: Send) -> None:
    async with up(AnthropicServer(models=(), answer=lambda _received: answer)):
        pass
