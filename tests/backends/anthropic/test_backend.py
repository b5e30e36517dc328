"""The backend at a stub of the Messages API on a real socket: what is sent, and what becomes of each answer."""

from __future__ import annotations

import asyncio

import pytest

from mac_runner.backends.anthropic.backend import AnthropicBackend
from mac_runner.backends.anthropic.translation import DECLINED
from mac_runner.environments.discussion.testing import refuses
from mac_runner.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    FormRefusedError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.types import FinishReason, JsonObject, JsonValue, Message, Prompt, Reply, Sampling, TokenCount
from tests.backends.anthropic.asking import KEY, ask, backend_at, using
from tests.sim.anthropic_server import AnthropicServer, failure, message
from tests.sim.behaviour import Behaviour, Received, Reset, Send
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
    bodies: list[JsonObject] = []

    def answer(received: Received) -> Behaviour:
        bodies.append(received.json)
        return message()

    ask(answer, request(prompt=prompt, sampling=sampling), **settings)
    (body,) = bodies
    return body


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
    assert sent(thinking, thinking_budget_tokens=2000)["thinking"] == {
        "type": "enabled",
        "budget_tokens": 2000,
        "display": "summarized",
    }
    assert "thinking" not in sent(Sampling(thinking=True, max_tokens=1), thinking_budget_tokens=2000)
    assert "thinking" not in sent(Sampling(max_tokens=4000), thinking_budget_tokens=2000)


def test_schema_is_sent_as_the_api_takes_schemas() -> None:
    body = sent(Sampling(reasoning_effort="high"), Prompt(messages=TALK, schema=SCHEMA))

    assert body["output_config"] == {
        "effort": "high",
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {
                    "why": {"type": "string", "description": "{maxLength: 80}"},
                    "answer": {"enum": ["a", "b"]},
                },
                "required": ["answer"],
                "additionalProperties": False,
            },
        },
    }


def test_reply_has_text_thought_and_every_token() -> None:
    usage: JsonObject = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 100,
        "output_tokens": 7,
    }

    assert ask(lambda _: message("A bridge.", thinking="Both.", usage=usage), request()) == Reply(
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
    reply = ask(lambda _: answer, request())

    assert (reply.text, reply.finish_reason) == (text, reason)


def test_refusal_without_words_is_read_as_one() -> None:
    assert refuses(DECLINED)


def fault(answer: Behaviour, *, prompt: Prompt | None = None) -> BackendError:
    """The error that a request ends in, where every request has this answer."""
    with pytest.raises(BackendError) as caught:
        ask(lambda _: answer, request(prompt=prompt))
    return caught.value


@pytest.mark.ci
def test_what_may_pass_is_sent_again() -> None:
    """A rate limit and overload cost no attempt, and the API says how long to wait."""
    limited = fault(failure(429, "rate limit", kind="rate_limit_error", headers=(("retry-after", "7"),)))
    overloaded = fault(failure(529, "Overloaded", kind="overloaded_error"))
    inside = fault(failure(529, "Overloaded", kind="overloaded_error", sent_as=200))
    broken, gateway, cut = fault(failure(500, "oops")), fault(failure(503, "down")), fault(Reset(sent=10))
    garbage = [fault(Send(200, body)) for body in (b"<html>", b"[1]", b'{"content": 3}', message("x", "odd").body)]

    assert isinstance(limited, TransientBackendError)
    assert (limited.retry_after_s, limited.is_busy, limited.is_attempt) == (7.0, True, False)
    for busy in (overloaded, inside):
        assert isinstance(busy, TransientBackendError)
        assert busy.is_busy
    assert isinstance(broken, TransientBackendError)
    assert broken.is_attempt
    for gone in (gateway, cut):
        assert isinstance(gone, TransientBackendError)
        assert gone.is_unreachable
    assert all(isinstance(each, TransientBackendError) and each.is_attempt for each in garbage)


@pytest.mark.parametrize(
    "answer",
    [
        failure(401, "invalid bearer token"),
        failure(402, "billing", kind="billing_error"),
        failure(403, "no permission", kind="permission_error"),
        failure(404, "model: stub"),
        failure(400, "Your credit balance is too low to access the Anthropic API."),
        failure(400, "temperature is deprecated for this model"),
    ],
)
def test_what_waiting_does_not_change_ends_the_run(answer: Send) -> None:
    """The last refuses the settings of an agent, as a single word shows that is refused too."""
    assert isinstance(fault(answer), EngineDeadError)


@pytest.mark.parametrize("status", [400, 403])
def test_one_refused_prompt_fails_its_conversation_alone(status: int) -> None:
    """A gateway's filter may deny what the API would take."""

    def picky(received: Received) -> Behaviour:
        return failure(status, "this prompt will not do") if b"Bridge" in received.body else message()

    async def two(backend: AnthropicBackend) -> Reply:
        with pytest.raises(RequestRefusedError, match="this prompt"):
            await backend.generate(request("Bridge or ferry?"))
        return await backend.generate(request("Anything?"))

    assert using(AnthropicServer(answer=picky), two).text == "So be it."


def test_form_that_the_model_refuses_is_named() -> None:
    refused = fault(
        failure(400, "output_config.format: Extra inputs are not permitted"),
        prompt=Prompt(messages=TALK, schema=SCHEMA),
    )

    assert isinstance(refused, FormRefusedError)


def test_redirect_is_not_followed_with_the_key() -> None:
    moved = fault(Send(307, b"", (("Location", "http://127.0.0.1:9/v1/messages"),)))

    assert "redirects" in str(moved)


def test_start_finds_what_is_wrong() -> None:
    async def nothing(backend: AnthropicBackend) -> None:
        pass

    async def nowhere() -> None:
        backend = backend_at("http://127.0.0.1:9")
        try:
            await backend.start()
        finally:
            await backend.close()

    with pytest.raises(
        ConfigError, match=r"anthropic_config\.api_key_env: .*invalid bearer token.*\$ANTHROPIC_API_KEY"
    ):
        using(AnthropicServer(api_key="another"), nothing)
    with pytest.raises(ConfigError, match=r"anthropic_config\.model: .*check .* name"):
        using(AnthropicServer(models=(), answer=lambda _: failure(404, "model: stub")), nothing)
    using(AnthropicServer(models=()), nothing)  # A gateway without a list of models.
    using(AnthropicServer(models=(), answer=lambda _: failure(529, "Overloaded")), nothing)
    with pytest.raises(EngineDeadError, match="no answer from"):
        asyncio.run(nowhere())


def test_client_sends_nothing_again_and_shows_the_key_to_nobody() -> None:
    server = AnthropicServer(answer=lambda received: failure(500, f"you sent {received.headers['authorization']}"))

    with pytest.raises(TransientBackendError) as caught:
        using(server, lambda backend: backend.generate(request()))

    assert (server.requests, KEY in str(caught.value), "***" in str(caught.value)) == (1, False, True)
