"""The clients that OpenAI and Ollama publish, unchanged, against the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import ollama
import openai
import pytest

from tests.patience import LIMIT_S
from tests.sim.nano_model import CONTEXT_TOKENS
from tests.sim.nano_server import MODEL, Served, served

SCHEMA = {
    "type": "object",
    "properties": {"vote": {"type": "string", "enum": ["Ann", "Bob"]}},
    "required": ["vote"],
    "additionalProperties": False,
}


def with_openai(model: Path, scene: Callable[[openai.AsyncOpenAI, Served], Awaitable[None]]) -> None:
    async def on_stage() -> None:
        async with (
            served(model) as server,
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=LIMIT_S) as client,
        ):
            await scene(client, server)

    asyncio.run(on_stage())


def with_ollama(model: Path, scene: Callable[[ollama.AsyncClient, Served], Awaitable[None]]) -> None:
    async def on_stage() -> None:
        async with served(model) as server, ollama.AsyncClient(server.url) as client:
            await scene(client, server)

    asyncio.run(on_stage())


def test_openai_client_chats_whole_and_streamed(model: Path) -> None:
    async def scene(client: openai.AsyncOpenAI, _: Served) -> None:
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], seed=3, max_tokens=8, n=2
        )
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            seed=3,
            max_completion_tokens=8,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]

        said = ["", ""]
        for chunk in chunks:
            for choice in chunk.choices:
                said[choice.index] += choice.delta.content or ""
        assert said == [choice.message.content for choice in whole.choices]
        assert said[0] != said[1]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert {choice.finish_reason for chunk in chunks for choice in chunk.choices} == {None, "length"}
        assert whole.usage is not None
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens == whole.usage.prompt_tokens + 16

    with_openai(model, scene)


def test_openai_client_gets_logprobs_of_what_was_and_might_have_been_said(model: Path) -> None:
    async def scene(client: openai.AsyncOpenAI, _: Served) -> None:
        chat = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            temperature=0,
            max_tokens=4,
            logprobs=True,
            top_logprobs=2,
        )
        text = await client.completions.create(model=MODEL, prompt="hi", temperature=0, max_tokens=4, logprobs=2)

        assert chat.choices[0].logprobs is not None
        rows = chat.choices[0].logprobs.content or []
        assert [row.logprob for row in rows] == [row.top_logprobs[0].logprob for row in rows]
        assert len(rows) == 4
        columns = text.choices[0].logprobs
        assert columns is not None
        assert len(columns.tokens or []) == len(columns.token_logprobs or []) == len(columns.top_logprobs or []) == 4

    with_openai(model, scene)


def test_openai_client_stops_where_it_asks_and_is_held_to_a_schema(model: Path) -> None:
    async def scene(client: openai.AsyncOpenAI, _: Served) -> None:
        free = await client.completions.create(model=MODEL, prompt="hi", temperature=0, max_tokens=20)
        stop = free.choices[0].text[5:7]
        stopped = await client.completions.create(model=MODEL, prompt="hi", temperature=0, max_tokens=20, stop=stop)
        held = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "vote"}],
            seed=1,
            max_tokens=2000,
            response_format={"type": "json_schema", "json_schema": {"name": "vote", "schema": SCHEMA, "strict": True}},
        )

        assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == (
            free.choices[0].text.partition(stop)[0],
            "stop",
        )
        assert json.loads(held.choices[0].message.content or "")["vote"] in ("Ann", "Bob")

    with_openai(model, scene)


def test_openai_client_lists_the_model_and_raises_its_own_errors(model: Path) -> None:
    async def scene(client: openai.AsyncOpenAI, server: Served) -> None:
        assert [entry.id async for entry in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError, match="not found"):
            await client.models.retrieve("other")
        with pytest.raises(openai.BadRequestError, match="context") as caught:
            await client.completions.create(model=MODEL, prompt="word " * CONTEXT_TOKENS)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="constraint"):
            await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "x"}],
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such"}}},
            )
        await server.service.engine.shutdown()
        with pytest.raises(openai.InternalServerError, match="shut down"):
            await client.completions.create(model=MODEL, prompt="hi")

    with_openai(model, scene)


def test_ollama_client_chats_whole_and_streamed(model: Path) -> None:
    async def scene(client: ollama.AsyncClient, _: Served) -> None:
        messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": "hi"}]
        options = {"seed": 3, "num_predict": 8, "num_ctx": 4096}
        whole = await client.chat(MODEL, messages, options=options)
        pieces = [piece async for piece in await client.chat(MODEL, messages, options=options, stream=True)]

        assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
        assert [piece.done for piece in pieces] == [False] * 8 + [True]
        assert (whole.done_reason, whole.eval_count) == ("length", 8)
        assert whole.total_duration is not None
        assert whole.total_duration >= (whole.prompt_eval_duration or 0) > 0

    with_ollama(model, scene)


def test_ollama_client_generates_with_a_template_and_without(model: Path) -> None:
    async def scene(client: ollama.AsyncClient, _: Served) -> None:
        options = {"temperature": 0, "num_predict": 4}
        taught = await client.generate(MODEL, "hi", options=options)
        chatted = await client.chat(MODEL, [{"role": "user", "content": "hi"}], options=options)
        raw = await client.generate(MODEL, "hi", options=options, raw=True)
        held = await client.generate(MODEL, "vote", format=SCHEMA, options={"num_predict": 2000, "seed": 1})

        assert taught.response == chatted.message.content
        assert taught.prompt_eval_count == chatted.prompt_eval_count
        assert (raw.prompt_eval_count or 0) < (taught.prompt_eval_count or 0)
        assert json.loads(held.response or "")["vote"] in ("Ann", "Bob")

    with_ollama(model, scene)


HI = [{"role": "user", "content": "hi"}]


UNIFORM = {"temperature": 1000, "top_k": 0, "top_p": 1, "num_predict": 200}


async def seed_of_an_answer(client: ollama.AsyncClient) -> int:
    """With every token as likely as any other, the one that closes a thought comes before long."""
    for seed in range(100):
        if (await client.chat(MODEL, HI, options={**UNIFORM, "seed": seed}, think=True)).message.content:
            return seed
    raise AssertionError("no thought was closed")


def test_ollama_client_gets_thoughts_apart_from_answers(thinker: Path) -> None:
    async def scene(client: ollama.AsyncClient, _: Served) -> None:
        options = {**UNIFORM, "seed": await seed_of_an_answer(client)}
        whole = await client.chat(MODEL, HI, options=options, think=True)
        pieces = [piece async for piece in await client.chat(MODEL, HI, options=options, think=True, stream=True)]
        generated = await client.generate(MODEL, "hi", options=options)

        assert whole.message.thinking
        assert whole.message.content
        assert "".join(piece.message.thinking or "" for piece in pieces) == whole.message.thinking
        assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
        assert (generated.thinking, generated.response) == (whole.message.thinking, whole.message.content)

    with_ollama(thinker, scene)


def test_ollama_client_may_have_a_model_not_think(thinker: Path) -> None:
    async def scene(client: ollama.AsyncClient, _: Served) -> None:
        options = {"temperature": 0, "num_predict": 4}
        thought = await client.chat(MODEL, HI, options=options)
        answer = await client.chat(MODEL, HI, options=options, think=False)
        held = await client.chat(MODEL, HI, options={"num_predict": 2000, "seed": 1}, format=SCHEMA)

        assert (await client.show(MODEL)).capabilities == ["completion", "thinking"]
        assert (bool(thought.message.thinking), thought.message.content) == (True, "")
        assert (answer.message.thinking, bool(answer.message.content)) == (None, True)
        assert (thought.prompt_eval_count or 0) > (answer.prompt_eval_count or 0)
        assert json.loads(held.message.content or "")["vote"] in ("Ann", "Bob")

    with_ollama(thinker, scene)


def test_clients_bring_a_key_and_are_denied_without_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ollama's client takes it from the environment."""
    key, messages = "canary-0123456789abcdef", [{"role": "user", "content": "hi"}]

    async def on_stage() -> None:
        async with served(model, api_key=key) as server:
            url = f"{server.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=LIMIT_S) as client:
                assert [each.id async for each in client.models.list()] == [MODEL]
                asked = client.completions.create(model=MODEL, prompt="hi", max_tokens=2, stream=True)
                assert len([chunk async for chunk in await asked]) > 1
            async with openai.AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0, timeout=LIMIT_S) as client:
                with pytest.raises(openai.AuthenticationError) as caught:
                    await client.models.list()
                assert caught.value.code == "invalid_api_key"
            async with ollama.AsyncClient(server.url) as stranger:
                with pytest.raises(ollama.ResponseError, match="key is missing") as denied:
                    await stranger.list()
                assert denied.value.status_code == 401
            monkeypatch.setenv("OLLAMA_API_KEY", key)
            async with ollama.AsyncClient(server.url) as at_ollama:
                assert [each.model for each in (await at_ollama.list()).models] == [MODEL]
                assert (await at_ollama.chat(MODEL, messages, options={"num_predict": 2})).eval_count == 2

    asyncio.run(on_stage())


def test_ollama_client_finds_the_model_and_raises_its_own_errors(model: Path) -> None:
    async def scene(client: ollama.AsyncClient, _: Served) -> None:
        listed, running, shown = await client.list(), await client.ps(), await client.show(MODEL)

        assert [entry.model for entry in listed.models] == [entry.model for entry in running.models] == [MODEL]
        assert running.models[0].context_length == CONTEXT_TOKENS
        assert shown.capabilities == ["completion"]
        assert shown.modelinfo is not None
        assert shown.modelinfo["qwen2.context_length"] == CONTEXT_TOKENS
        assert (await client.chat(f"{MODEL}:latest", [])).done_reason == "load"
        with pytest.raises(ollama.ResponseError, match="not found") as caught:
            await client.show("other")
        assert caught.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match="exceeds the context"):
            await client.generate(MODEL, "word " * 200, options={"num_ctx": 64})
        with pytest.raises(ollama.ResponseError, match="support thinking"):
            await client.chat(MODEL, [{"role": "user", "content": "x"}], think=True)

    with_ollama(model, scene)
