"""Our own backends `openai` and `ollama` on real generation, and each other's equal where they can be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.ollama import OllamaConfig
from mac_runner.backends.testing import OllamaBackend, held
from mac_runner.clock import SystemClock
from mac_runner.config import ModelDefinition
from mac_runner.errors import ConfigError, RequestRefusedError
from mac_runner.spec import AgentDefinition
from mac_runner.types import Decoding, FinishReason, JsonObject, Message, Prompt, Reply, Sampling
from tests.backends.building import built
from tests.backends.nano.engines import nano
from tests.sim.building import request_for
from tests.sim.nano_model import CONTEXT_TOKENS
from tests.sim.nano_server import MODEL, Served, served
from tests.sim.requests import request

Answer = TypeVar("Answer")
Of = Callable[[Served], Backend]
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"vote": {"enum": ["Ann", "Bob"]}},
    "required": ["vote"],
    "additionalProperties": False,
}
VOTE = (Message(role="system", content="rules"), Message(role="user", content="vote"))
EVERYTHING = Sampling(
    temperature=0.9,
    max_tokens=9,
    top_p=0.9,
    top_k=50,
    min_p=0.01,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    repetition_penalty=1.1,
    stop=("@@",),
    seed=7,
)


def openai_backend(server: Served, *, record_tokens: bool = True, **more: object) -> Backend:
    section = {"model": MODEL, "base_urls": [f"{server.url}/v1"], "server": "vllm", **more}
    definition = ModelDefinition.model_validate(
        {"backend": "openai", "openai_config": section, "record_tokens": record_tokens}
    )
    return built(definition)


def ollama_backend(server: Served, **more: object) -> Backend:
    config = OllamaConfig.model_validate({"model": MODEL, "host": server.url, "num_ctx": 4096, **more})
    agent = AgentDefinition(agent_id="a", role="player", model="m", repetition_penalty=1.1, presence_penalty=0.1)
    return OllamaBackend(request_for(config, SystemClock(), agents=[agent]))


@asynccontextmanager
async def started(model: Path, of: Of) -> AsyncIterator[Backend]:
    """A backend of a server, or one that needs none."""
    async with served(model) as server:
        backend = of(server)
        try:
            await backend.start()
            yield backend
        finally:
            await backend.close()


@pytest.fixture(params=[openai_backend, ollama_backend])
def backend(model: Path, request: pytest.FixtureRequest) -> Any:
    return started(model, request.param)


async def from_all(model: Path, ask: Callable[[Backend], Awaitable[Answer]]) -> list[Answer]:
    """What each of our backends answers."""
    found = list[Answer]()
    for of in (openai_backend, ollama_backend, lambda _: nano(model, traces=True)):
        async with started(model, of) as backend:
            found.append(await ask(backend))
    return found


async def test_reply_is_the_same_through_the_server_and_without_it(model: Path) -> None:
    asked = request(prompt=Prompt(messages=VOTE), sampling=EVERYTHING)
    through, at_ollama, within = await from_all(model, lambda backend: backend.generate(asked))

    assert within.trace is not None
    assert (through.text, through.trace) == (within.text, within.trace)
    assert at_ollama.text == within.text
    assert at_ollama.tokens.completion == within.tokens.completion


async def test_reply_is_held_to_schema_and_choices(backend: Backend) -> None:
    sampling = Sampling(seed=1, max_tokens=2000)
    held = await backend.generate(request(prompt=Prompt(messages=VOTE, schema=SCHEMA), sampling=sampling))
    choices = Prompt(messages=VOTE, choices=("guilty", "innocent"))
    chosen = await backend.generate(request(prompt=choices, sampling=sampling))

    assert json.loads(held.text)["vote"] in ("Ann", "Bob")
    assert chosen.text in ("guilty", "innocent")


async def test_reply_is_held_to_any_json_object_or_to_nothing_as_its_model_is_set(model: Path) -> None:
    asked = request(prompt=Prompt(messages=VOTE, schema=SCHEMA), sampling=EVERYTHING)
    settings: tuple[Decoding, ...] = ("json_object", "none")

    async def said(backend: Backend) -> dict[str, str]:
        requests = {one: replace(asked, prompt=held(asked.prompt, one)) for one in settings}
        return {one: (await backend.generate(each)).text for one, each in requests.items()}

    found = await from_all(model, said)

    assert found[0] == found[1] == found[2]
    assert found[0]["json_object"].startswith("{")
    assert not found[0]["none"].startswith("{")


async def test_prompt_that_does_not_fit_is_an_outcome(backend: Backend) -> None:
    assert (await backend.generate(request("word " * CONTEXT_TOKENS))).finish_reason is FinishReason.OVERFLOW


async def test_schema_that_cannot_be_followed_fails_its_conversation_alone(backend: Backend) -> None:
    await backend.generate(request(prompt=Prompt(messages=VOTE, schema=SCHEMA), sampling=Sampling(seed=1)))
    with pytest.raises(RequestRefusedError, match="constraint"):
        await backend.generate(request(prompt=Prompt(messages=VOTE, schema={"type": "no such"})))
    assert (await backend.generate(request(sampling=Sampling(seed=1, max_tokens=1)))).tokens.completion == 1


async def test_reply_does_not_depend_on_the_crowd(backend: Backend) -> None:
    async def one(seed: int) -> str:
        return (await backend.generate(request(sampling=Sampling(seed=seed, max_tokens=8)))).text

    alone = [await one(seed) for seed in range(2)]
    async with asyncio.TaskGroup() as group:
        crowd = [group.create_task(one(seed)) for seed in range(10)]

    assert [task.result() for task in crowd[:2]] == alone


async def test_openai_backend_completes_plain_text(model: Path) -> None:
    async with started(model, lambda server: openai_backend(server, endpoint="completions")) as backend:
        reply = await backend.generate(request(sampling=EVERYTHING))

    assert reply.trace is not None
    assert len(reply.trace.logprobs) == reply.tokens.completion


async def test_thoughts_come_back_apart_from_the_reply(thinker: Path) -> None:
    """As the same engine in this process tells them, whose template opens them too."""
    found = list[Reply]()
    backends: tuple[Of, ...] = (
        ollama_backend,
        lambda server: ollama_backend(server, think=True),
        lambda _: nano(thinker, {"chat_template_kwargs": {"enable_thinking": True}}, traces=True),
    )
    for of in backends:
        async with started(thinker, of) as backend:
            found.append(await backend.generate(request(sampling=EVERYTHING)))

    assert len({(reply.text, reply.thinking) for reply in found}) == 1
    assert found[0].thinking


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (lambda server: openai_backend(server, model="other"), "has no model 'other'"),
        (lambda server: ollama_backend(server, model="other"), "has no model 'other'"),
        (lambda server: ollama_backend(server, think=True), "does not support thinking"),
        (lambda server: ollama_backend(server, num_ctx=2 * CONTEXT_TOKENS), "with a context of 8192 tokens at most"),
    ],
)
async def test_what_a_model_cannot_do_is_said_at_the_start(model: Path, of: Of, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        async with started(model, of):
            raise AssertionError("it started")
