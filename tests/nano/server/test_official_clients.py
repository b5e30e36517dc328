"""The clients that OpenAI and Ollama publish, unchanged, against the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest

from tests.nano.server.stage import KEY
from tests.patience import LIMIT_S
from tests.sim.nano_model import CONTEXT_TOKENS
from tests.sim.nano_server import MODEL, Served, served

SCHEMA = {
    "type": "object",
    "properties": {"vote": {"type": "string", "enum": ["Ann", "Bob"]}},
    "required": ["vote"],
    "additionalProperties": False,
}
HI: Any = [{"role": "user", "content": "hi"}]
GREEDY = {"temperature": 0, "num_predict": 4}
TEXT: Any = {"model": MODEL, "prompt": "hi", "temperature": 0}
UNIFORM = {"temperature": 1000, "top_k": 0, "top_p": 1, "num_predict": 200}
THINKER = pytest.mark.parametrize("at_ollama", ["thinker"], indirect=True, ids=[""])


@pytest.fixture
def at_openai(model: Path) -> Any:
    return openai_client(model)


@pytest.fixture
def at_ollama(request: pytest.FixtureRequest) -> Any:
    return ollama_client(request.getfixturevalue(getattr(request, "param", "model")))


@asynccontextmanager
async def openai_client(model: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    async with served(model) as server, with_key(server, "any") as client:
        yield client


@asynccontextmanager
async def ollama_client(model: Path) -> AsyncIterator[ollama.AsyncClient]:
    async with served(model) as server, ollama.AsyncClient(server.url) as client:
        yield client


def with_key(server: Served, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=LIMIT_S)


def in_form(schema: object) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "vote", "schema": schema, "strict": True}}


async def test_openai_client_chats_whole_and_streamed(at_openai: openai.AsyncOpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": HI, "seed": 3, "n": 2}
    whole = await at_openai.chat.completions.create(**ask, max_tokens=8)
    ask |= {"max_completion_tokens": 8, "stream": True, "stream_options": {"include_usage": True}}
    chunks = [chunk async for chunk in await at_openai.chat.completions.create(**ask)]

    said = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    assert said == [choice.message.content for choice in whole.choices]
    assert said[0] != said[1]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {choice.finish_reason for chunk in chunks for choice in chunk.choices} == {None, "length"}
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens == whole.usage.prompt_tokens + 16


async def test_openai_client_gets_logprobs_of_what_was_and_might_have_been_said(at_openai: openai.AsyncOpenAI) -> None:
    chat = await at_openai.chat.completions.create(
        model=MODEL, messages=HI, temperature=0, max_tokens=4, logprobs=True, top_logprobs=2
    )
    text = await at_openai.completions.create(**TEXT, max_tokens=4, logprobs=2)

    assert chat.choices[0].logprobs is not None
    rows = chat.choices[0].logprobs.content or []
    assert [row.logprob for row in rows] == [row.top_logprobs[0].logprob for row in rows]
    assert len(rows) == 4
    columns = text.choices[0].logprobs
    assert len(columns.tokens) == len(columns.token_logprobs) == len(columns.top_logprobs) == 4
    for number in (0, 2):
        ask = {**TEXT, "temperature": 5, "seed": 1, "max_tokens": 20, "logprobs": number}
        drawn = (await at_openai.completions.create(**ask)).choices[0].logprobs
        assert all(token in top for token, top in zip(drawn.tokens, drawn.top_logprobs, strict=True))
        assert {len(top) for top in drawn.top_logprobs} <= {number, number + 1} | {1}


CALL: Any = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


async def test_clients_may_send_back_what_a_tool_has_said_where_the_template_has_calls_also_the_call(
    model: Path, at_openai: openai.AsyncOpenAI
) -> None:
    spoken: Any = [
        *HI,
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "a cat", "tool_call_id": "1"},
    ]
    called: Any = [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, spoken[-1]]
    function = {"name": "look", "arguments": {}}
    called_at_ollama = [*HI, {"role": "assistant", "tool_calls": [{"function": function}]}, {"role": "tool"}]

    assert (await at_openai.chat.completions.create(model=MODEL, messages=spoken, max_tokens=2)).choices
    with pytest.raises(openai.BadRequestError, match=r"messages\.1\.tool_calls"):
        await at_openai.chat.completions.create(model=MODEL, messages=called, max_tokens=2)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        await at_openai.chat.completions.create(model=MODEL, messages=HI, max_tokens=0)
    async with ollama_client(model) as at_ollama:
        assert (await at_ollama.chat(MODEL, [*HI, {"role": "tool", "content": "a cat"}], options=GREEDY)).done
        with pytest.raises(ollama.ResponseError, match=r"messages\.1\.tool_calls"):
            await at_ollama.chat(MODEL, called_at_ollama)


async def test_openai_client_stops_where_it_asks_and_is_held_to_a_schema(at_openai: openai.AsyncOpenAI) -> None:
    free = (await at_openai.completions.create(**TEXT, max_tokens=20)).choices[0].text
    stop = free[5:7]
    stopped = (await at_openai.completions.create(**TEXT, max_tokens=20, stop=stop)).choices[0]
    held = await at_openai.chat.completions.create(
        model=MODEL, messages=HI, seed=1, max_tokens=2000, response_format=in_form(SCHEMA)
    )

    assert (stopped.text, stopped.finish_reason) == (free.partition(stop)[0], "stop")
    assert json.loads(held.choices[0].message.content or "")["vote"] in ("Ann", "Bob")


async def test_openai_client_lists_the_model_and_raises_its_own_errors(model: Path) -> None:
    async with served(model) as server, with_key(server, "any") as client:
        assert [entry.id async for entry in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError, match="not found"):
            await client.models.retrieve("other")
        with pytest.raises(openai.BadRequestError, match="context") as caught:
            await client.completions.create(model=MODEL, prompt="word " * CONTEXT_TOKENS)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="constraint"):
            await client.chat.completions.create(model=MODEL, messages=HI, response_format=in_form({"type": "no such"}))
        await server.service.engine.shutdown()
        with pytest.raises(openai.InternalServerError, match="shut down"):
            await client.completions.create(model=MODEL, prompt="hi")


async def test_ollama_client_chats_whole_and_streamed(at_ollama: ollama.AsyncClient) -> None:
    messages = [{"role": "system", "content": "rules"}, *HI]
    options = {"seed": 3, "num_predict": 8, "num_ctx": 4096}
    whole = await at_ollama.chat(MODEL, messages, options=options)
    pieces = [piece async for piece in await at_ollama.chat(MODEL, messages, options=options, stream=True)]

    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * 8 + [True]
    assert (whole.done_reason, whole.eval_count) == ("length", 8)
    assert whole.total_duration is not None
    assert whole.total_duration >= (whole.prompt_eval_duration or 0) > 0


async def test_ollama_client_generates_with_a_template_and_without(at_ollama: ollama.AsyncClient) -> None:
    taught = await at_ollama.generate(MODEL, "hi", options=GREEDY)
    chatted = await at_ollama.chat(MODEL, HI, options=GREEDY)
    raw = await at_ollama.generate(MODEL, "hi", options=GREEDY, raw=True)
    held = await at_ollama.generate(MODEL, "vote", format=SCHEMA, options={"num_predict": 2000, "seed": 1})

    assert taught.response == chatted.message.content
    assert taught.prompt_eval_count == chatted.prompt_eval_count
    assert (raw.prompt_eval_count or 0) < (taught.prompt_eval_count or 0)
    assert json.loads(held.response or "")["vote"] in ("Ann", "Bob")


async def seed_of_an_answer(client: ollama.AsyncClient) -> int:
    """With every token as likely as any other, the one that closes a thought comes before long."""
    for seed in range(100):
        if (await client.chat(MODEL, HI, options={**UNIFORM, "seed": seed}, think=True)).message.content:
            return seed
    raise AssertionError("no thought was closed")


@THINKER
async def test_ollama_client_gets_thoughts_apart_from_answers(at_ollama: ollama.AsyncClient) -> None:
    options = {**UNIFORM, "seed": await seed_of_an_answer(at_ollama)}
    whole = (await at_ollama.chat(MODEL, HI, options=options, think=True)).message
    pieces = [
        piece.message async for piece in await at_ollama.chat(MODEL, HI, options=options, think=True, stream=True)
    ]
    generated = await at_ollama.generate(MODEL, "hi", options=options)

    assert whole.thinking
    assert whole.content
    assert "".join(piece.thinking or "" for piece in pieces) == whole.thinking
    assert "".join(piece.content or "" for piece in pieces) == whole.content
    assert (generated.thinking, generated.response) == (whole.thinking, whole.content)


@THINKER
async def test_ollama_client_may_have_a_model_not_think(at_ollama: ollama.AsyncClient) -> None:
    thought = await at_ollama.chat(MODEL, HI, options=GREEDY)
    answer = await at_ollama.chat(MODEL, HI, options=GREEDY, think=False)
    held = await at_ollama.chat(MODEL, HI, options={"num_predict": 2000, "seed": 1}, format=SCHEMA)

    assert (await at_ollama.show(MODEL)).capabilities == ["completion", "thinking"]
    assert (bool(thought.message.thinking), thought.message.content) == (True, "")
    assert (answer.message.thinking, bool(answer.message.content)) == (None, True)
    assert (thought.prompt_eval_count or 0) > (answer.prompt_eval_count or 0)
    assert json.loads(held.message.content or "")["vote"] in ("Ann", "Bob")


async def test_ollama_client_finds_the_model_and_raises_its_own_errors(at_ollama: ollama.AsyncClient) -> None:
    listed, running, shown = await at_ollama.list(), await at_ollama.ps(), await at_ollama.show(MODEL)

    assert [entry.model for entry in listed.models] == [entry.model for entry in running.models] == [MODEL]
    assert running.models[0].context_length == CONTEXT_TOKENS
    assert shown.capabilities == ["completion"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["qwen2.context_length"] == CONTEXT_TOKENS
    assert (await at_ollama.chat(f"{MODEL}:latest", [])).done_reason == "load"
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        await at_ollama.show("other")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="exceeds the context"):
        await at_ollama.generate(MODEL, "word " * 200, options={"num_ctx": 64})
    with pytest.raises(ollama.ResponseError, match="support thinking"):
        await at_ollama.chat(MODEL, HI, think=True)


async def test_clients_bring_a_key_and_are_denied_without_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ollama's client takes it from the environment."""
    async with served(model, api_key=KEY) as server:
        async with with_key(server, KEY) as client:
            assert [each.id async for each in client.models.list()] == [MODEL]
            asked = client.completions.create(model=MODEL, prompt="hi", max_tokens=2, stream=True)
            assert len([chunk async for chunk in await asked]) > 1
        async with with_key(server, "wrong") as stranger:
            with pytest.raises(openai.AuthenticationError) as caught:
                await stranger.models.list()
            assert caught.value.code == "invalid_api_key"
        async with ollama.AsyncClient(server.url) as at_ollama:
            with pytest.raises(ollama.ResponseError, match="key is missing") as denied:
                await at_ollama.list()
            assert denied.value.status_code == 401
        monkeypatch.setenv("OLLAMA_API_KEY", KEY)
        async with ollama.AsyncClient(server.url) as at_ollama:
            assert [each.model for each in (await at_ollama.list()).models] == [MODEL]
            assert (await at_ollama.chat(MODEL, HI, options={"num_predict": 2})).eval_count == 2
