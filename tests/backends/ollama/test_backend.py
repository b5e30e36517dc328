"""What the backend does in its own way through the official client, over real sockets in held time.
What becomes of a request whose server may hang, in simulated time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mac_runner.backends.testing import HTTP_BODY_BYTES_MAX
from mac_runner.backends.testing import held as held_to
from mac_runner.errors import FormRefusedError, RequestRefusedError, TransientBackendError
from mac_runner.types import Decoding, FinishReason, JsonObject, JsonValue, Message, Prompt, Reply, Sampling, TokenCount
from tests.backends.asking import HELD_S, KEY, error_of, fault_of, first, found, once_there, reply_of, up
from tests.sim.behaviour import Behaviour, Hang, Raw, Received, Reset, Say, Send, echo, encoded, head
from tests.sim.held_time import held, move
from tests.sim.ollama_server import OllamaServer, StubModel, failure
from tests.sim.requests import request

RESPONSE: JsonObject = {"message": {"role": "assistant", "content": "x"}, "done": True, "done_reason": "stop"}
FREE = Prompt(messages=(Message(role="user", content="?"),))


def saying(text: str) -> OllamaServer:
    return OllamaServer(answer=lambda _received: Say(text))


def thinking(thought: str = "hmm", *, says: str = "It is I.") -> OllamaServer:
    model = StubModel(is_thinker=True, thought=thought)
    return OllamaServer(shelf={"thinker:latest": model}, answer=lambda _received: Say(says))


def answering(**fields: JsonValue) -> Send:
    """A response with other fields than a good one has."""
    return Send(200, encoded(RESPONSE | fields))


def test_reply_tells_text_tokens_and_why_it_ended() -> None:
    server = saying("Good day, everybody.")
    whole = reply_of(server, request("x" * 9))
    cut = reply_of(server, request("x" * 9, sampling=Sampling(max_tokens=2)))

    assert whole == Reply(text="Good day, everybody.", tokens=TokenCount(prompt=3, completion=5))
    assert cut == Reply(text="Good day", finish_reason=FinishReason.LENGTH, tokens=TokenCount(prompt=3, completion=2))


def test_counts_that_are_left_out_are_none() -> None:
    bare = Send(200, encoded({"message": {"role": "assistant", "content": "x"}, "done": True}))

    assert reply_of(OllamaServer(answer=first(bare))) == Reply(text="x")


def test_count_that_counts_nothing_and_a_reason_of_its_own_are_held_against_no_reply() -> None:
    for odd in (-5, 10**30):
        server = OllamaServer(answer=first(answering(eval_count=odd, prompt_eval_count=odd, done_reason="tired")))
        assert reply_of(server) == Reply(text="x", finish_reason=FinishReason("tired"))


def test_request_says_how_it_is_to_be_served_and_leaves_the_rest_to_ollama() -> None:
    server = OllamaServer()
    messages = (Message(role="system", content="Spiel — ja!"), Message(role="user", content="?"))
    for settings in ({}, {"num_ctx": 8192}):
        reply_of(server, request(prompt=Prompt(messages=messages), sampling=Sampling()), settings=settings)

    plain, wide = server.chats
    assert plain == {
        "model": "qwen3:4b",
        "messages": [{"role": "system", "content": "Spiel — ja!"}, {"role": "user", "content": "?"}],
        "options": {"temperature": 1.0, "num_predict": 512},
        "stream": False,
        "keep_alive": "5m",
        "truncate": False,
        "shift": False,
    }
    assert wide["options"] == {"temperature": 1.0, "num_predict": 512, "num_ctx": 8192}


@held
async def test_each_agent_says_whether_and_how_hard_it_thinks() -> None:
    server = thinking()
    async with up(server, settings={"model": "thinker", "think": False}) as backend:
        asked = (Sampling(), Sampling(thinking=True), Sampling(reasoning_effort="high"))
        thoughts = [(await backend.generate(request(sampling=sampling))).thinking for sampling in asked]

    assert [chat.get("think") for chat in server.chats] == [False, True, "high"]
    assert thoughts == [None, "hmm", "hmm"]


def test_prompt_with_a_form_asks_for_it_and_a_choice_comes_back_as_plain_text() -> None:
    schema: JsonObject = {"type": "object", "properties": {"act": {"const": "wait"}}, "required": ["act"]}
    choices = replace(FREE, choices=('say "no"', "yes"))
    held_server, server = OllamaServer(), saying('"say \\"no\\""')

    assert reply_of(held_server, request(prompt=replace(FREE, schema=schema))).text == '{"act": "wait"}'
    assert held_server.chats[0]["format"] == schema
    whole = reply_of(server, request(prompt=choices))
    cut = reply_of(server, request(prompt=choices, sampling=Sampling(max_tokens=1)))
    assert server.chats[0]["format"] == {"type": "string", "enum": ['say "no"', "yes"]}
    assert whole.text == 'say "no"'
    assert (cut.text, cut.finish_reason) == ('"say', FinishReason.LENGTH)


def test_reply_is_held_to_any_json_or_to_nothing_as_its_model_is_set() -> None:
    server = OllamaServer()
    offered = replace(FREE, schema={"type": "object"}, choices=("a", "b"))
    settings: tuple[tuple[Decoding, str | None], ...] = (("json_object", "json"), ("none", None))
    for decoding, form in settings:
        reply_of(server, request(prompt=held_to(offered, decoding)))
        assert server.chats[-1].get("format") == form
    assert held_to(replace(FREE, choices=("a", "b")), "json_object") == FREE


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, 'invalid format: "x"; expected "json" or a valid JSON Schema object'),
        (400, "json: cannot unmarshal object into Go struct field ChatRequest.format of type string"),
        (500, "invalid JSON schema in format"),
        (400, "Failed to initialize samplers: failed to parse grammar"),
    ],
)
def test_server_that_refuses_a_form_is_told_from_one_that_fails(status: int, words: str) -> None:
    for prompt in (replace(FREE, schema={"type": "object"}), FREE):
        error = error_of(OllamaServer(answer=first(failure(status, words))), request(prompt=prompt))
        assert isinstance(error, FormRefusedError) is prompt.is_constrained


@pytest.mark.parametrize(("think", "thought"), [(None, "hmm"), (True, "hmm"), (False, None)])
def test_thought_is_set_apart_from_the_reply(think: bool | None, thought: str | None) -> None:
    server = thinking()
    reply = reply_of(server, settings={"model": "thinker", "think": think})

    assert (reply.text, reply.thinking) == ("It is I.", thought)
    assert server.chats[0].get("think") is think


def test_thought_that_was_cut_off_stays_open() -> None:
    reply = reply_of(thinking("I wonder who"), request(sampling=Sampling(max_tokens=2)), settings={"model": "thinker"})

    assert (reply.text, reply.thinking, reply.finish_reason) == ("<think>", "I wonder", FinishReason.LENGTH)


TOO_LONG = [
    "input length exceeds maximum context length",
    "prompt too long; exceeded max context length by 3 tokens",
    "the request exceeds the available context size (4096 tokens), try increasing it",
    "the prompt is longer than the context",
    "the request exceeds the context: the prompt has 8198 tokens, longer than the context of 4096 allows",
    "context length exceeded",
]


def test_prompt_that_is_too_long_in_any_words_or_was_shortened_all_the_same_is_an_overflow() -> None:
    shortened = answering(prompt_eval_count=4096, eval_count=1)
    servers = [OllamaServer(answer=first(failure(status, text))) for text in TOO_LONG for status in (400, 500)]
    for server in (*servers, OllamaServer(answer=first(shortened))):
        reply = reply_of(server)
        assert (reply.text, reply.finish_reason) == ("", FinishReason.OVERFLOW)
    never_sent_short = reply_of(OllamaServer(), request("x" * 400), settings={"num_ctx": 100})
    assert never_sent_short == Reply(text="", finish_reason=FinishReason.OVERFLOW)


@pytest.mark.ci
@held
async def test_as_many_requests_are_under_way_as_may_be() -> None:
    at_once = 150  # More than the client's own pool would have connections.
    server = OllamaServer(answer=once_there(at_once, echo), slots=at_once, latency_s=HELD_S)
    async with up(server, settings={"max_in_flight": at_once}) as backend:
        replies = await asyncio.gather(*(backend.generate(request()) for _ in range(at_once)))

        assert backend.capacity == len(replies) == server.account.in_use_max == at_once


CUT_SHORT = Raw((head(200, 100) + encoded(RESPONSE)[:20],), then="close")
TIMED_OUT = 'Post "http://127.0.0.1:41/completion": context deadline exceeded'


@pytest.mark.parametrize(
    ("broken", "is_unreachable", "is_busy", "is_death"),
    [
        # The connection broke, and the server is there.
        (Reset(), False, False, False),
        (CUT_SHORT, False, False, False),
        (failure(502, "bad gateway"), False, False, False),
        (failure(503, "draining"), False, False, False),
        (failure(504, "late"), False, False, False),
        (failure(503, "server busy, please try again.  maximum pending requests exceeded"), False, True, False),
        (failure(500, "out of memory"), False, False, False),
        (failure(500, TIMED_OUT), False, False, False),
        (failure(500, "context deadline exceeded (Client.Timeout exceeded while waiting)"), False, False, False),
        (failure(500, "timeout exceeded: context deadline exceeded"), False, False, False),
        (failure(500, "model runner has unexpectedly stopped, this may be due to limitations"), False, False, True),
        (failure(500, "llama runner process has terminated: signal: killed"), False, False, True),
        (Send(500), False, False, False),
        (Send(500, b'"boom"'), False, False, False),
        (Send(500, b"<html>oops</html>"), False, False, False),
        (Send(200, encoded({"done": True})), False, False, False),
        (answering(message={"role": "assistant", "content": 7}), False, False, False),
        (answering(eval_count=float("nan")), False, False, False),
        (answering(done=False), False, False, False),
        (answering(done_reason="load", message={"role": "assistant", "content": ""}), False, False, False),
        (Send(200, encoded(RESPONSE) + b" " * HTTP_BODY_BYTES_MAX), False, False, False),
    ],
)
@held
async def test_fault_says_whether_the_server_is_gone_busy_or_dead(
    broken: Behaviour, is_unreachable: bool, is_busy: bool, is_death: bool
) -> None:
    # What breaks on a kept connection without an answer is sent once more by itself, on a new one.
    async with up(OllamaServer(answer=first(*[broken] * (2 if broken == Reset() else 1)))) as backend:
        error = await found(backend)
        assert isinstance(error, TransientBackendError)
        assert (error.is_unreachable, error.is_busy, error.is_engine_death) == (is_unreachable, is_busy, is_death)
        assert (await backend.generate(request())).text == "So be it."


@held
async def test_server_that_hangs_over_its_first_request_is_found() -> None:
    async def pass_by() -> None:
        while True:
            for _ in range(50):  # Enough for whatever is on its way.
                await asyncio.sleep(0)
            move(1.0)

    server = OllamaServer(answer=lambda _received: Hang())
    async with up(server, settings={"timeout_s": 120}) as backend:
        server.look = lambda _received, _due: Hang()
        passing = asyncio.create_task(pass_by())
        error = await found(backend)
        passing.cancel()

    assert isinstance(error, TransientBackendError)
    assert "no answer for" in str(error)
    assert error.is_engine_death


@pytest.mark.parametrize("canary", [Say(), failure(400, "invalid")])
@held
async def test_denied_request_fails_alone_where_a_word_is_not_denied(canary: Behaviour) -> None:
    def script(received: Received) -> Behaviour:
        return canary if received.is_canary else failure(403, "not with these words")

    async with up(OllamaServer(answer=script)) as backend:
        with pytest.raises(RequestRefusedError, match=r"status 403: not with"):
            await backend.generate(request())


def test_denied_request_is_sent_again_when_the_server_is_gone_by_then() -> None:
    assert fault_of(OllamaServer(answer=first(failure(403, "no"), Reset(), Reset()))).is_unreachable


def test_what_is_told_of_an_answer_is_short_and_harmless_and_quotes_none_of_wrong_types() -> None:
    quoted = str(error_of(OllamaServer(answer=first(failure(400, "no\x1b[2J\n" + "x" * 10_000)))))
    flaws = str(fault_of(OllamaServer(answer=first(Send(200, encoded({"message": KEY * 9}))))))

    assert len(quoted) < 500
    assert quoted.isprintable()
    assert "`$.message`" in flaws
    assert "sk-canary" not in flaws
