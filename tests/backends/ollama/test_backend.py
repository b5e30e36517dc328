"""The backend through the official client against the stub, over real sockets in held time."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mac_runner.backends.ollama.testing import OLLAMA_BODY_BYTES_MAX, OLLAMA_LOOK_INTERVAL_S, OllamaBackend
from mac_runner.backends.testing import held
from mac_runner.errors import (
    RETRY_AFTER_S_MAX,
    BackendError,
    EngineDeadError,
    FormRefusedError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.types import Decoding, FinishReason, JsonValue, Message, Prompt, Reply, Sampling, TokenCount
from tests.backends.ollama.asking import ask, backend_at, started, using
from tests.sim.held_time import HeldLoop
from tests.sim.ollama_server import GZIPPED, JSON, Fault, OllamaStub, StubModel, answering, cut_off, reset
from tests.sim.requests import EVERY_SETTING, request

FAR_FUTURE = "Fri, 01 Jan 2100 00:00:00 GMT"
RESPONSE: dict[str, JsonValue] = {"message": {"role": "assistant", "content": "x"}, "done": True, "done_reason": "stop"}


@pytest.fixture
def stub() -> Iterator[OllamaStub]:
    with OllamaStub(models={"qwen3:4b": StubModel(), "thinker:latest": StubModel(is_thinker=True)}) as stub:
        yield stub


def test_reply_tells_text_tokens_and_why_it_ended(stub: OllamaStub) -> None:
    stub.reply = lambda body: "Good day, everybody."

    whole = ask(backend_at(stub.host), "x" * 9)
    cut = ask(backend_at(stub.host), "x" * 9, sampling=Sampling(max_tokens=2))

    assert whole == Reply(text="Good day, everybody.", tokens=TokenCount(prompt=3, completion=5))
    assert cut == Reply(text="Good day", finish_reason=FinishReason.LENGTH, tokens=TokenCount(prompt=3, completion=2))


def test_request_carries_every_setting_under_the_name_ollama_has_for_it(stub: OllamaStub) -> None:
    ask(backend_at(stub.host, num_ctx=8192), sampling=EVERY_SETTING)

    (chat,) = stub.chats
    assert chat["options"] == {
        "temperature": 0.5,
        "num_predict": 9,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repeat_penalty": 1.1,
        "stop": ["END"],
        "seed": 3,
        "num_ctx": 8192,
    }
    assert (chat["model"], chat["keep_alive"], chat["stream"]) == ("qwen3:4b", "5m", False)


def test_each_agent_says_whether_and_how_hard_it_thinks() -> None:
    with OllamaStub(models={"thinker": StubModel(is_thinker=True)}) as stub:
        backend = backend_at(stub.host, model="thinker", think=False)

        async def all_three(ready: OllamaBackend) -> list[str | None]:
            asked = (Sampling(), Sampling(thinking=True), Sampling(reasoning_effort="high"))
            return [(await ready.generate(request(sampling=sampling))).thinking for sampling in asked]

        thoughts = using(backend, all_three)

    assert [chat.get("think") for chat in stub.chats] == [False, True, "high"]
    assert thoughts == [None, "hmm", "hmm"]


def test_setting_left_out_is_left_to_ollama(stub: OllamaStub) -> None:
    ask(backend_at(stub.host), sampling=Sampling())

    (chat,) = stub.chats
    assert chat["options"] == {"temperature": 1.0, "num_predict": 512}
    assert set(chat) == {"model", "messages", "options", "stream", "keep_alive", "truncate", "shift", "tools"}
    assert chat["tools"] == []


def test_messages_go_as_they_are_but_for_half_a_surrogate_pair(stub: OllamaStub) -> None:
    messages = (Message(role="system", content="Spiel — ja!"), Message(role="user", content="a\ud83db"))

    ask(backend_at(stub.host), prompt=Prompt(messages=messages))

    (chat,) = stub.chats
    assert chat["messages"] == [
        {"role": "system", "content": "Spiel — ja!"},
        {"role": "user", "content": "a?b"},
    ]


def test_reply_with_half_a_surrogate_pair_can_be_written_as_utf8(stub: OllamaStub) -> None:
    stub.reply = lambda body: "a\ud83db"

    assert ask(backend_at(stub.host)).text == "a\ufffdb"


def test_schema_of_the_prompt_is_the_format_of_the_request(stub: OllamaStub) -> None:
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"act": {"const": "wait"}},
        "required": ["act"],
    }

    reply = ask(backend_at(stub.host), prompt=Prompt(messages=(Message(role="user", content="?"),), schema=schema))

    assert stub.chats[0]["format"] == schema
    assert reply.text == '{"act": "wait"}'


def test_choice_is_asked_for_as_a_schema_and_comes_back_as_plain_text(stub: OllamaStub) -> None:
    prompt = Prompt(messages=(Message(role="user", content="?"),), choices=('say "no"', "yes"))
    stub.reply = lambda body: '"say \\"no\\""'

    whole = ask(backend_at(stub.host), prompt=prompt)
    cut = ask(backend_at(stub.host), prompt=prompt, sampling=Sampling(max_tokens=1))

    assert stub.chats[0]["format"] == {"type": "string", "enum": ['say "no"', "yes"]}
    assert whole.text == 'say "no"'
    assert (cut.text, cut.finish_reason) == ('"say', FinishReason.LENGTH)


def test_reply_is_held_to_any_json_or_to_nothing_as_its_model_is_set(stub: OllamaStub) -> None:
    free = Prompt(messages=(Message(role="user", content="?"),))
    offered = replace(free, schema={"type": "object"}, choices=("a", "b"))
    settings: tuple[tuple[Decoding, str | None], ...] = (("json_object", "json"), ("none", None))
    for decoding, form in settings:
        ask(backend_at(stub.host), prompt=held(offered, decoding))
        assert stub.chats[-1].get("format") == form
    assert held(replace(free, choices=("a", "b")), "json_object") == free


def test_server_that_refuses_a_form_is_told_from_one_that_fails(stub: OllamaStub, subtests: pytest.Subtests) -> None:
    rows = [
        (400, 'invalid format: "x"; expected "json" or a valid JSON Schema object'),
        (400, "json: cannot unmarshal object into Go struct field ChatRequest.format of type string"),
        (500, "invalid JSON schema in format"),
        (400, "Failed to initialize samplers: failed to parse grammar"),
    ]
    free = Prompt(messages=(Message(role="user", content="?"),))
    for status, words in rows:
        with subtests.test(words):
            for prompt, kind in ((replace(free, schema={"type": "object"}), FormRefusedError), (free, BackendError)):
                stub.faults.append(answering({"error": words}, status=status))
                with pytest.raises(kind) as caught:
                    ask(backend_at(stub.host), prompt=prompt)
                assert isinstance(caught.value, FormRefusedError) is prompt.is_constrained


@pytest.mark.parametrize(
    ("think", "thinking"),
    [(None, "hmm"), (True, "hmm"), (False, None)],
)
def test_thought_is_set_apart_from_the_reply(stub: OllamaStub, think: bool | None, thinking: str | None) -> None:
    stub.reply = lambda body: "It is I."

    reply = ask(backend_at(stub.host, model="thinker", think=think))

    assert (reply.text, reply.thinking) == ("It is I.", thinking)
    assert stub.chats[0].get("think") is think


def test_thought_that_was_cut_off_stays_open(stub: OllamaStub) -> None:
    stub.models["thinker:latest"] = StubModel(is_thinker=True, thought="I wonder who")

    reply = ask(backend_at(stub.host, model="thinker"), sampling=Sampling(max_tokens=2))

    assert (reply.text, reply.thinking, reply.finish_reason) == ("<think>", "I wonder", FinishReason.LENGTH)


def test_prompt_longer_than_the_context_is_an_overflow_and_never_shortened(stub: OllamaStub) -> None:
    reply = ask(backend_at(stub.host, num_ctx=100), "x" * 400)

    (chat,) = stub.chats
    assert (chat["truncate"], chat["shift"]) == (False, False)
    assert reply == Reply(text="", finish_reason=FinishReason.OVERFLOW)


@pytest.mark.parametrize(
    "text",
    [
        "input length exceeds maximum context length",
        "prompt too long; exceeded max context length by 3 tokens",
        "the request exceeds the available context size (4096 tokens), try increasing it",
        "the prompt is longer than the context",
        "the request exceeds the context: the prompt has 8198 tokens, longer than the context of 4096 allows",
        "context length exceeded",
    ],
)
@pytest.mark.parametrize("status", [400, 500])
def test_server_that_finds_the_prompt_too_long_in_any_words_is_understood(
    stub: OllamaStub, text: str, status: int
) -> None:
    stub.faults.append(said(text, status))

    assert ask(backend_at(stub.host)).finish_reason is FinishReason.OVERFLOW


def test_prompt_that_a_server_shortened_all_the_same_is_an_overflow(stub: OllamaStub) -> None:
    stub.faults.append(answering({**RESPONSE, "prompt_eval_count": 4096, "eval_count": 1}))

    reply = ask(backend_at(stub.host))

    assert (reply.text, reply.finish_reason) == ("", FinishReason.OVERFLOW)


@pytest.mark.ci
def test_as_many_requests_are_under_way_as_may_be() -> None:
    at_once = 150  # More than the client's own pool would have connections.
    with OllamaStub(together=at_once) as stub:

        async def crowd(backend: OllamaBackend) -> int:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(backend.generate(request()))
            return backend.capacity

        assert using(backend_at(stub.host, max_in_flight=at_once), crowd) == at_once
        assert len(stub.chats) == at_once


def fault(stub: OllamaStub, fault: Fault) -> BackendError:
    """The error of a request that is met with `fault`; the server answers the next one."""
    # What breaks on a kept connection without an answer is sent once more by itself, on a new one.
    stub.faults.extend([fault] * (2 if fault is reset else 1))

    async def program(backend: OllamaBackend) -> BackendError:
        with pytest.raises(BackendError) as raised:
            await backend.generate(request())
        assert (await backend.generate(request())).text == "Hello."
        return raised.value

    return using(backend_at(stub.host), program)


def said(text: str, status: int) -> Fault:
    return answering({"error": text}, status=status)


@pytest.mark.parametrize(
    "broken", [reset, cut_off(0), cut_off(20), said("bad gateway", 502), said("draining", 503), said("late", 504)]
)
def test_engine_that_is_gone_is_told_as_unreachable(stub: OllamaStub, broken: Fault) -> None:
    error = fault(stub, broken)

    assert isinstance(error, TransientBackendError)
    assert error.is_unreachable


def test_server_that_hangs_up_on_a_kept_connection_is_sent_the_request_over_a_new_one(stub: OllamaStub) -> None:
    stub.faults.append(reset)

    assert ask(backend_at(stub.host)).text == "Hello."
    assert len(stub.chats) == 2


def test_server_that_dies_over_a_request_on_a_kept_connection_is_told_as_a_death(stub: OllamaStub) -> None:
    async def die(writer: asyncio.StreamWriter) -> bool:
        stub.shut()
        return await reset(writer)

    stub.faults.append(die)

    with pytest.raises(TransientBackendError) as raised:
        ask(backend_at(stub.host))

    assert raised.value.is_engine_death


@pytest.mark.parametrize(
    ("header", "delay_s"),
    [("7", 7.0), ("1e9", RETRY_AFTER_S_MAX), (FAR_FUTURE, RETRY_AFTER_S_MAX), ("-1", None), ("soon", None)],
)
@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_that_says_how_long_it_wants_to_be_left_alone_is(
    stub: OllamaStub, status: int, header: str, delay_s: float | None
) -> None:
    busy = answering({"error": "slow down"}, status=status, content_type=f"{JSON}\r\nRetry-After: {header}")
    stub.faults.append(busy)

    with pytest.raises(TransientBackendError, match=rf"status {status}: slow down") as raised:
        ask(backend_at(stub.host))

    assert raised.value.retry_after_s == delay_s
    assert raised.value.is_unreachable == (status == 503)
    assert raised.value.is_busy == (status == 429 or delay_s is not None)


BUSY = "server busy, please try again.  maximum pending requests exceeded"


@pytest.mark.parametrize(
    "broken",
    [
        said(BUSY, 503),
        said("slow down", 429),
        said("conflict", 409),
        said('Post "http://127.0.0.1:41/completion": context deadline exceeded', 500),
        said("context deadline exceeded (Client.Timeout exceeded while awaiting headers)", 500),
        said("timeout exceeded: context deadline exceeded", 500),
        said("llama runner process has terminated", 500),
        answering(b"", status=500),
        answering(b'"boom"', status=500),
        answering(b"", status=307, content_type=f"{JSON}\r\nLocation: /api/elsewhere"),
        answering(b"<html>hello</html>", content_type="text/html"),
        answering(b"<html>oops</html>", status=500, content_type="text/html"),
        answering(b'{"message": {"role": "assi'),
        answering(b"[" * 100_000),
        answering([1, 2]),
        answering({"done": True}),
        answering(b"\xff\xfe"),
        answering({**RESPONSE, "message": {"role": "assistant", "content": 7}}),
        answering({**RESPONSE, "eval_count": "many"}),
        answering({**RESPONSE, "eval_count": -5}),
        answering({**RESPONSE, "eval_count": 10**30}),
        answering({**RESPONSE, "eval_count": float("nan")}),
        answering({**RESPONSE, "done": False}),
        answering({**RESPONSE, "done_reason": "load"}),
        answering(gzip.compress(json.dumps(RESPONSE).encode()), content_type=GZIPPED),
        answering(json.dumps(RESPONSE).encode() + b" " * OLLAMA_BODY_BYTES_MAX),
    ],
)
def test_answer_that_is_none_is_asked_for_again(stub: OllamaStub, broken: Fault) -> None:
    error = fault(stub, broken)

    assert isinstance(error, TransientBackendError)
    assert not error.is_unreachable


@pytest.mark.parametrize(
    ("broken", "is_death"),
    [
        (said("model runner has unexpectedly stopped, this may be due to resource limitations", 500), True),
        (said("llama runner process has terminated: signal: killed", 500), True),
        (said("out of memory", 500), False),
        (said("draining", 503), False),
        (said('Post "http://127.0.0.1:41/completion": context deadline exceeded', 500), False),
        # The connection broke, and the server is there.
        (reset, False),
        (cut_off(20), False),
    ],
)
def test_death_of_the_engine_is_told_from_other_faults(stub: OllamaStub, broken: Fault, is_death: bool) -> None:
    error = fault(stub, broken)

    assert isinstance(error, TransientBackendError)
    assert error.is_engine_death == is_death


def test_request_that_is_refused_is_not_sent_again(stub: OllamaStub) -> None:
    error = fault(stub, said("invalid format", 400))

    assert isinstance(error, RequestRefusedError)
    assert str(error) == f"Ollama at {stub.host}: status 400: invalid format"


DENIALS = [(404, "model 'qwen3:4b' not found"), (401, "unauthorized"), (402, "pay"), (403, "no")]


@pytest.mark.parametrize(("status", "text"), DENIALS)
def test_server_that_denies_everybody_ends_the_run(stub: OllamaStub, status: int, text: str) -> None:
    stub.faults.append(said(text, status))  # The request, and the canary after it.

    error = fault(stub, said(text, status))

    assert isinstance(error, EngineDeadError)
    assert str(error) == f"Ollama at {stub.host}: status {status}: {text}"


def silence() -> Fault:
    """Nothing ever comes, and more time of the running loop passes than anybody waits."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HeldLoop)

    async def fault(_writer: asyncio.StreamWriter) -> bool:
        loop.call_soon_threadsafe(loop.move, OLLAMA_LOOK_INTERVAL_S)
        return await asyncio.Event().wait()

    return fault


@pytest.mark.parametrize("canary", ["well", "silent", "refused"])
def test_denied_request_fails_alone_where_a_word_is_not_denied(stub: OllamaStub, canary: str) -> None:
    async def program(backend: OllamaBackend) -> str:
        faults = {"well": [], "silent": [silence()], "refused": [said("invalid", 400)]}
        stub.faults.extend([said("not with these words", 403), *faults[canary]])
        with pytest.raises(RequestRefusedError, match=r"status 403: not with"):
            await backend.generate(request())
        return (await backend.generate(request())).text

    assert using(backend_at(stub.host), program) == "Hello."


def test_denied_request_is_sent_again_when_the_server_is_gone_by_then(stub: OllamaStub) -> None:
    stub.faults.extend([said("no", 403), reset, reset])

    async def program(backend: OllamaBackend) -> None:
        with pytest.raises(TransientBackendError):
            await backend.generate(request())

    using(backend_at(stub.host), program)


def test_key_is_blotted_out_of_what_a_server_says(stub: OllamaStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "sk-canary-0123456789")

    error = fault(stub, said("bad header: Bearer sk-canary-0123456789", 400))

    assert str(error).endswith("status 400: bad header: Bearer ***")


def test_death_is_one_even_where_a_word_of_it_is_the_key(stub: OllamaStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "terminated")

    error = fault(stub, said("llama runner process has terminated", 500))

    assert isinstance(error, TransientBackendError)
    assert error.is_engine_death
    assert "process has ***" in str(error)


def test_overflow_is_one_even_where_a_word_of_it_is_the_key(stub: OllamaStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "context_length")
    stub.faults.append(said("context_length exceeded", 400))

    assert ask(backend_at(stub.host)).finish_reason is FinishReason.OVERFLOW


def test_key_is_blotted_out_of_what_is_quoted_of_an_answer_that_is_none(
    stub: OllamaStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "sk-canary-0123456789")
    error = fault(stub, answering({**RESPONSE, "done_reason": "no sk-canary-0123456789"}))

    assert "done_reason 'no ***'" in str(error)


def test_answer_of_wrong_types_is_told_by_its_flaws_and_not_quoted(stub: OllamaStub) -> None:
    error = fault(stub, answering({"message": "sk-canary-0123456789" * 9}))

    assert "message is not" in str(error)
    assert "sk-canary" not in str(error)


def test_error_of_the_server_is_quoted_short_and_harmless(stub: OllamaStub) -> None:
    error = fault(stub, said("no\x1b[2J\n" + "x" * 10_000, 400))

    assert len(str(error)) < 400
    assert str(error).isprintable()


def test_counts_that_are_left_out_are_none(stub: OllamaStub) -> None:
    stub.faults.append(answering({"message": {"role": "assistant", "content": "x"}, "done": True}))

    assert ask(backend_at(stub.host)) == Reply(text="x")


def test_server_that_hangs_is_found_out(stub: OllamaStub) -> None:
    async def program(backend: OllamaBackend) -> TransientBackendError:
        silent = silence()
        stub.script = lambda _path, _body, _due: silent
        with pytest.raises(TransientBackendError, match="hangs") as raised:
            await backend.generate(request())
        return raised.value

    error = using(backend_at(stub.host), program)

    assert (error.is_unreachable, error.is_engine_death) == (True, False)


def test_server_that_went_away_is_unreachable() -> None:
    with OllamaStub() as stub:
        backend = backend_at(stub.host)

        async def program(backend: OllamaBackend) -> TransientBackendError:
            await asyncio.to_thread(stub.stop)
            with pytest.raises(TransientBackendError) as raised:
                await backend.generate(request())
            return raised.value

        assert using(backend, program).is_unreachable


def test_server_that_dies_while_it_works_is_told_as_a_death() -> None:
    with OllamaStub() as stub:
        backend = backend_at(stub.host)
        working = threading.Event()

        async def work(_writer: asyncio.StreamWriter) -> bool:
            working.set()
            await asyncio.Event().wait()
            return False

        async def program(backend: OllamaBackend) -> TransientBackendError:
            stub.faults.append(work)
            asking = asyncio.create_task(backend.generate(request()))
            await asyncio.to_thread(working.wait)
            await asyncio.to_thread(stub.stop)
            with pytest.raises(TransientBackendError) as raised:
                await asking
            return raised.value

        error = using(backend, program)

    assert error.is_unreachable
    assert error.is_engine_death


def test_backend_that_was_not_started_says_so() -> None:
    with pytest.raises(EngineDeadError, match="not started"):
        asyncio.run(backend_at("http://127.0.0.1:1").generate(request()))


def test_free_port_has_no_server_and_the_error_says_what_to_do() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(EngineDeadError, match=rf"{host}.*ollama serve.*`host`"):
            started(backend_at(host))
