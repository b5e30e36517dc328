"""The backend on the real engine, with a small random model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mac_runner.backends.nano import NanoConfig
from mac_runner.backends.nano.backend import NanoBackend
from mac_runner.environments.discussion.testing import Found, read_fields
from mac_runner.environments.town_of_salem.testing import read_object
from mac_runner.errors import ConfigError, EngineDeadError, RequestRefusedError
from mac_runner.types import FinishReason, JsonObject, Message, Prompt, Reply, Sampling
from tests.sim.nano_model import CONTEXT_TOKENS, make_nano_model
from tests.sim.requests import request


def config(model: Path, **more: object) -> NanoConfig:
    return NanoConfig.model_validate({"model": str(model), "num_threads": 1, "kv_cache_gib": 0.02, **more})


@asynccontextmanager
async def running(
    section: NanoConfig, *, traces: bool = False, told: list[str] | None = None
) -> AsyncIterator[NanoBackend]:
    backend = NanoBackend(name="m", config=section, traces=traces, say=([] if told is None else told).append)
    try:
        await backend.start()
        yield backend
    finally:
        await backend.close()


def play(section: NanoConfig, scene: Callable[[NanoBackend], Awaitable[None]], *, traces: bool = False) -> None:
    async def on_stage() -> None:
        async with running(section, traces=traces) as backend:
            await scene(backend)

    asyncio.run(on_stage())


def test_capacity_and_budget_come_from_the_seats_and_the_cache(model_directory: Path) -> None:
    async def scene(backend: NanoBackend) -> None:
        assert backend.capacity == 12
        assert backend.lookahead == 2
        # 2 layers of 2 heads of 16 numbers of 4 bytes, keys and values.
        assert backend.token_budget == int(0.02 * (1 << 30)) // (2 * 2 * 16 * 4 * 2) // 16 * 16

    play(config(model_directory, max_num_seqs_upper_bound=12), scene)


def test_same_seed_gives_the_same_reply_alone_and_in_a_crowd(model_directory: Path) -> None:
    async def scene(backend: NanoBackend) -> None:
        async def one(seed: int) -> Reply:
            return await backend.generate(request(f"say {seed % 3}", sampling=Sampling(seed=seed, max_tokens=8)))

        alone = [await one(seed) for seed in range(3)]
        async with asyncio.TaskGroup() as group:
            crowd = [group.create_task(one(seed)) for seed in range(12)]

        assert [(task.result().text, task.result().trace) for task in crowd[:3]] == [
            (reply.text, reply.trace) for reply in alone
        ]
        assert len({task.result().text for task in crowd}) > 6

    play(config(model_directory), scene, traces=True)


def test_one_engine_thinks_for_one_agent_and_not_for_another(model_directory: Path) -> None:
    async def main() -> dict[bool | None, Reply]:
        backend = NanoBackend(
            name="m", config=config(model_directory), traces=False, say=print, thinking={True: "deep"}
        )
        try:
            await backend.start()
            asked: tuple[bool | None, ...] = (None, True, False)
            return {
                value: await backend.generate(request(sampling=Sampling(seed=1, max_tokens=8, thinking=value)))
                for value in asked
            }
        finally:
            await backend.close()

    replies = asyncio.run(main())

    assert replies[True].text == "<think>"  # Cut off inside its thought.
    assert replies[True].tokens.prompt > replies[False].tokens.prompt
    assert (replies[False].text, replies[False].thinking) == (replies[None].text, None)


def test_thinking_is_refused_where_the_template_has_no_switch(tmp_path: Path) -> None:
    model = make_nano_model(tmp_path / "plain")
    backend = NanoBackend(name="m", config=config(model), traces=False, say=print, thinking={False: "quick"})

    async def main() -> None:
        try:
            await backend.start()
        finally:
            await backend.close()

    with pytest.raises(ConfigError, match=r"'enable_thinking', .* agent 'quick'"):
        asyncio.run(main())


def test_reply_of_two_processes_is_that_of_one(model_directory: Path) -> None:
    async def scene(backend: NanoBackend) -> None:
        sampling = Sampling(seed=1, max_tokens=8)
        found.append([await backend.generate(request(f"say {each}", sampling=sampling)) for each in range(3)])

    found = list[list[Reply]]()
    for size in (1, 2):
        play(config(model_directory, tensor_parallel_size=size), scene, traces=True)

    assert found[0] == found[1]


def test_heads_that_do_not_divide_are_bad_input(model_directory: Path) -> None:
    async def start() -> None:
        async with running(config(model_directory, tensor_parallel_size=4)):
            pytest.fail("it started")

    with pytest.raises(ConfigError, match=r"2 KV heads .* 4 ranks"):
        asyncio.run(start())


@pytest.mark.parametrize("name", ["messages", "self"])
def test_name_that_no_variable_of_a_template_can_have_is_bad_input(model_directory: Path, name: str) -> None:
    async def start() -> None:
        async with running(config(model_directory, chat_template_kwargs={name: 1})):
            pytest.fail("it started")

    with pytest.raises(ConfigError, match=f"nano_config.chat_template_kwargs.{name}: "):
        asyncio.run(start())


def test_trace_tells_every_token(model_directory: Path) -> None:
    async def scene(backend: NanoBackend) -> None:
        reply = await backend.generate(request(sampling=Sampling(seed=1, max_tokens=5)))

        assert reply.trace is not None
        assert len(reply.trace.prompt_ids) == reply.tokens.prompt
        assert len(reply.trace.completion_ids) == len(reply.trace.logprobs) == reply.tokens.completion
        assert reply.finish_reason is FinishReason.LENGTH

    play(config(model_directory), scene, traces=True)


def test_prompt_that_leaves_no_room_overflows_and_a_reply_ends_with_the_window(model_directory: Path) -> None:
    async def scene(backend: NanoBackend) -> None:
        long = await backend.generate(request("word " * CONTEXT_TOKENS))
        short = await backend.generate(request("go", sampling=Sampling(temperature=0.0, max_tokens=500)))

        assert (long.finish_reason, long.text) == (FinishReason.OVERFLOW, "")
        assert short.finish_reason is FinishReason.LENGTH
        assert short.tokens.prompt + short.tokens.completion == 64

    play(config(model_directory, max_model_len=64), scene)


def test_prompt_that_fills_the_window_to_the_last_token_overflows(model_directory: Path) -> None:
    async def count(backend: NanoBackend) -> None:
        found.append((await backend.generate(request("go", sampling=Sampling(max_tokens=1)))).tokens.prompt)

    async def scene(backend: NanoBackend) -> None:
        assert (await backend.generate(request("go"))).finish_reason is FinishReason.OVERFLOW

    found: list[int] = []
    play(config(model_directory), count)
    play(config(model_directory, max_model_len=found[0]), scene)


SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"vote": {"enum": ["Ann", "Bob"]}},
    "required": ["vote"],
    "additionalProperties": False,
}


def test_reply_keeps_to_schema_and_choices(model_directory: Path) -> None:
    messages = (Message(role="user", content="vote"),)

    async def scene(backend: NanoBackend) -> None:
        held = await backend.generate(
            request(prompt=Prompt(messages=messages, schema=SCHEMA), sampling=Sampling(seed=1, max_tokens=2000))
        )
        chosen = await backend.generate(request(prompt=Prompt(messages=messages, choices=("guilty", "innocent"))))

        assert json.loads(held.text)["vote"] in ("Ann", "Bob")
        assert chosen.text in ("guilty", "innocent")

    play(config(model_directory), scene)


def test_reasoning_that_the_template_opens_keeps_its_tag(model_directory: Path) -> None:
    async def scene(backend: NanoBackend) -> None:
        reply = await backend.generate(request(sampling=Sampling(seed=1, max_tokens=2)))

        assert reply.text == "<think>"
        assert reply.thinking

    play(config(model_directory, chat_template_kwargs={"enable_thinking": True}), scene)


def test_reply_held_to_a_form_has_no_thought_though_the_template_opens_one(model_directory: Path) -> None:
    messages = (Message(role="user", content="vote"),)
    form = Prompt(messages=messages, schema=SCHEMA)
    acts = Prompt(messages=messages, schema={"const": {"act": "wait"}})
    choice = Prompt(messages=messages, choices=("guilty", "innocent"))

    async def scene(backend: NanoBackend) -> None:
        held, acted, chosen = [
            await backend.generate(request(prompt=prompt, sampling=Sampling(seed=1, max_tokens=2000)))
            for prompt in (form, acts, choice)
        ]

        found = read_fields(held, ["vote"])
        assert isinstance(found, Found)
        assert found.get("vote") in ("Ann", "Bob")
        assert read_object(acted.text) == {"act": "wait"}
        assert chosen.text in ("guilty", "innocent")

    play(config(model_directory, chat_template_kwargs={"enable_thinking": True}), scene)


@pytest.mark.parametrize("is_thinking", [True, False])
def test_it_is_told_that_forms_leave_no_room_for_the_thought_of_the_template(
    model_directory: Path, is_thinking: bool
) -> None:
    told: list[str] = []

    async def on_stage() -> None:
        async with running(config(model_directory, chat_template_kwargs={"enable_thinking": is_thinking}), told=told):
            pass

    asyncio.run(on_stage())

    assert len(told) == is_thinking
    assert all(line.startswith("model m: its ") for line in told)


@pytest.mark.parametrize(
    ("template", "why"),
    [("{{ broken", "it cannot write a user's message"), ("hello", "it leaves out what a user says")],
)
def test_template_that_can_never_work_is_bad_input(tmp_path: Path, template: str, why: str) -> None:
    model = make_nano_model(tmp_path / "tiny")
    (model / "chat_template.jinja").write_text(template)

    async def scene(backend: NanoBackend) -> None:
        raise AssertionError("it started")

    with pytest.raises(ConfigError, match=f"nano_config.model: .*{why}") as caught:
        play(config(model), scene)

    assert caught.value.key == ("model_definitions", "m", "nano_config", "model")


def test_schema_that_cannot_be_followed_fails_its_conversation_alone(model_directory: Path) -> None:
    bad = Prompt(messages=(Message(role="user", content="go"),), schema={"type": "no such type"})

    async def scene(backend: NanoBackend) -> None:
        with pytest.raises(RequestRefusedError, match="constraint"):
            await backend.generate(request(prompt=bad))
        assert (await backend.generate(request(sampling=Sampling(seed=1, max_tokens=1)))).tokens.completion == 1

    play(config(model_directory), scene)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda model: (model / "config.json").unlink(), "there is no config.json"),
        (lambda model: (model / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda model: (model / "model.safetensors").write_bytes(b"junk"), "cannot be read"),
        (lambda model: (model / "generation_config.json").write_text('{"top_p": 7}'), "recommends a wrong setting"),
    ],
)
def test_directory_without_a_whole_model_is_bad_input(tmp_path: Path, spoil: Callable[[Path], None], told: str) -> None:
    model = make_nano_model(tmp_path / "model")
    spoil(model)

    async def start() -> None:
        async with running(config(model)):
            pytest.fail("it started")

    with pytest.raises(ConfigError, match=told) as caught:
        asyncio.run(start())

    assert caught.value.key[:3] == ("model_definitions", "m", "nano_config")


def test_backend_that_is_closed_answers_nobody(model_directory: Path) -> None:
    async def after_the_end() -> None:
        async with running(config(model_directory)) as backend:
            pass
        await backend.close()
        with pytest.raises(EngineDeadError):
            await backend.generate(request())

    asyncio.run(after_the_end())
