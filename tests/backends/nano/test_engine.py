"""The backend on the real engine, with a small random model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.nano.engine import params_of, verdicts
from mac_runner.environments.discussion.testing import Found, read_fields
from mac_runner.environments.town_of_salem.testing import read_object
from mac_runner.errors import ConfigError, EngineDeadError, RequestRefusedError, TransientBackendError
from mac_runner.nano import SamplingParams
from mac_runner.nano.testing import ReplicaLostError
from mac_runner.testing.backends import BackendContract, BackendHarness
from mac_runner.types import EFFORT_KEYS, FinishReason, JsonObject, Message, Prompt, Reply, Request, Sampling
from tests.backends.nano.engines import nano, started
from tests.sim.held_steps import HeldSteps, held_steps
from tests.sim.held_time import real
from tests.sim.nano_model import CONTEXT_TOKENS, make_nano_model
from tests.sim.requests import EVERY_SETTING, request

VOTE = (Message(role="user", content="vote"),)
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"vote": {"enum": ["Ann", "Bob"]}},
    "required": ["vote"],
    "additionalProperties": False,
}
CHOICE = Prompt(messages=VOTE, choices=("guilty", "innocent"))


class NanoHarness(BackendHarness):
    def __init__(self, model: Path, steps: HeldSteps) -> None:
        self.model, self.steps = model, steps

    def build(self) -> Backend:
        return nano(self.model, {"max_num_seqs_upper_bound": 6})

    def request_too_long(self) -> Request:
        return self.request("word " * CONTEXT_TOKENS)

    def request_cut_off(self) -> Request:
        return self.request(max_tokens=2)

    def request_slow(self) -> Request:
        slow = self.request(max_tokens=4000)
        self.steps.hold()
        return slow

    def request(self, content: str = "hello", *, seed: int = 1, max_tokens: int = 24) -> Request:
        self.steps.go()
        return super().request(content, seed=seed, max_tokens=max_tokens)


class TestNano(BackendContract):
    @pytest.fixture
    def harness(self, model_directory: Path) -> Iterator[BackendHarness]:
        with held_steps() as steps:
            yield NanoHarness(model_directory, steps)


def drawn(max_tokens: int = 8, seed: int = 1, thinking: bool | None = None) -> Sampling:
    return Sampling(seed=seed, max_tokens=max_tokens, thinking=thinking)


@real
async def test_capacity_and_budget_come_from_the_seats_and_the_cache(model_directory: Path) -> None:
    async with started(nano(model_directory, {"max_num_seqs_upper_bound": 12})) as backend:
        assert backend.capacity == 12
        assert backend.lookahead == 2
        # 2 layers of 2 heads of 16 numbers of 4 bytes, keys and values.
        assert backend.token_budget == int(0.02 * (1 << 30)) // (2 * 2 * 16 * 4 * 2) // 16 * 16


@real
async def test_same_seed_gives_the_same_reply_alone_and_in_a_crowd(model_directory: Path) -> None:
    async with started(nano(model_directory, traces=True)) as backend:

        async def one(seed: int) -> Reply:
            return await backend.generate(request(f"say {seed % 3}", sampling=drawn(seed=seed)))

        alone = [await one(seed) for seed in range(3)]
        crowd = await asyncio.gather(*map(one, range(12)))

    assert [(reply.text, reply.trace) for reply in crowd[:3]] == [(reply.text, reply.trace) for reply in alone]
    assert len({reply.text for reply in crowd}) > 6


@real
async def test_one_engine_thinks_for_one_agent_and_not_for_another(model_directory: Path) -> None:
    async with started(nano(model_directory, thinker="deep")) as backend:
        asked: tuple[bool | None, ...] = (None, True, False)
        plain, deep, quick = [await backend.generate(request(sampling=drawn(thinking=value))) for value in asked]

    assert deep.text == "<think>"  # Cut off inside its thought.
    assert deep.tokens.prompt > quick.tokens.prompt
    assert (quick.text, quick.thinking) == (plain.text, None)


@real
@pytest.mark.parametrize("kind", ["tensor_parallel_size", "data_parallel_size"])
async def test_reply_of_two_processes_is_that_of_one(model_directory: Path, kind: str) -> None:
    """Those of one conversation come from one replica, which has their prefix; the other has places and room, too."""
    found, room = list[list[Reply]](), list[tuple[int, int | None]]()
    for size in (1, 2):
        async with started(nano(model_directory, {kind: size}, traces=True)) as backend:
            found.append([await backend.generate(request(f"say {each}", sampling=drawn())) for each in range(3)])
            room.append((backend.capacity, backend.token_budget))

    assert found[0] == found[1]
    capacity, budget = room[0]
    assert budget is not None
    assert room[1] == (room[0] if kind == "tensor_parallel_size" else (2 * capacity, 2 * budget))


def test_request_that_replicas_were_lost_over_may_be_what_they_died_of() -> None:
    with pytest.raises(TransientBackendError, match="3 replicas") as caught, verdicts():
        raise ReplicaLostError("3 replicas were lost")

    assert caught.value.is_engine_death


@real
async def test_trace_tells_every_token(model_directory: Path) -> None:
    async with started(nano(model_directory, traces=True)) as backend:
        reply = await backend.generate(request(sampling=drawn(5)))

    assert reply.trace is not None
    assert len(reply.trace.prompt_ids) == reply.tokens.prompt
    assert len(reply.trace.completion_ids) == len(reply.trace.logprobs) == reply.tokens.completion
    assert reply.finish_reason is FinishReason.LENGTH


@real
async def test_prompt_that_leaves_no_room_overflows_and_a_reply_ends_with_the_window(model_directory: Path) -> None:
    async with started(nano(model_directory, {"max_model_len": 64})) as backend:
        long = await backend.generate(request("word " * CONTEXT_TOKENS))
        short = await backend.generate(request("go", sampling=Sampling(temperature=0.0, max_tokens=500)))
    async with started(nano(model_directory, {"max_model_len": short.tokens.prompt})) as backend:
        full = await backend.generate(request("go"))

    assert (long.finish_reason, long.text) == (FinishReason.OVERFLOW, "")
    assert short.finish_reason is FinishReason.LENGTH
    assert short.tokens.prompt + short.tokens.completion == 64
    assert full.finish_reason is FinishReason.OVERFLOW  # The prompt fills the window to the last token.


@pytest.mark.parametrize("kwargs", [{}, {"chat_template_kwargs": {"enable_thinking": True}}])
@real
async def test_reply_held_to_a_form_keeps_to_it_and_has_no_thought_though_the_template_opens_one(
    model_directory: Path, kwargs: JsonObject
) -> None:
    forms = (Prompt(messages=VOTE, schema=SCHEMA), Prompt(messages=VOTE, schema={"const": {"act": "wait"}}), CHOICE)
    async with started(nano(model_directory, kwargs)) as backend:
        free = await backend.generate(request(sampling=drawn(2)))
        held, acted, chosen = [await backend.generate(request(prompt=each, sampling=drawn(2000))) for each in forms]

    assert (free.text == "<think>", bool(free.thinking)) == (bool(kwargs), bool(kwargs))
    found = read_fields(held, ["vote"])
    assert isinstance(found, Found)
    assert found.get("vote") in ("Ann", "Bob")
    assert json.loads(held.text)["vote"] in ("Ann", "Bob")
    assert read_object(acted.text) == {"act": "wait"}
    assert chosen.text in ("guilty", "innocent")


@pytest.mark.parametrize("is_thinking", [True, False])
@real
async def test_it_is_told_that_forms_leave_no_room_for_the_thought_of_the_template(
    model_directory: Path, is_thinking: bool
) -> None:
    told: list[str] = []
    async with started(nano(model_directory, {"chat_template_kwargs": {"enable_thinking": is_thinking}}, told=told)):
        pass

    assert len(told) == is_thinking
    assert all(line.startswith("model m: its ") for line in told)


@real
async def test_schema_that_cannot_be_followed_fails_its_conversation_alone(model_directory: Path) -> None:
    async with started(nano(model_directory)) as backend:
        schemas: tuple[JsonObject, ...] = (
            {"type": "no such type"},
            {"minItems": 10**9},
            {"type": "integer", "multipleOf": 10**12 + 1},
        )
        for schema in schemas:
            with pytest.raises(RequestRefusedError, match=r"constraint|at most 10000"):
                await backend.generate(request(prompt=Prompt(messages=VOTE, schema=schema)))
        assert (await backend.generate(request(sampling=drawn(1)))).tokens.completion == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tensor_parallel_size": 4}, r"2 KV heads .* 4 ranks"),
        *(
            ({"chat_template_kwargs": {name: 1}}, f"nano_config.chat_template_kwargs.{name}: ")
            for name in ("messages", "self")  # No variable of a template can have these names.
        ),
    ],
)
@real
async def test_setting_that_cannot_be_is_bad_input(model_directory: Path, settings: JsonObject, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        async with started(nano(model_directory, settings)):
            pytest.fail("it started")


@real
async def test_thinking_is_refused_where_the_template_has_no_switch(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'enable_thinking', .* agent 'deep'"):
        async with started(nano(make_nano_model(tmp_path / "plain"), thinker="deep")):
            pytest.fail("it started")


def writing(file: str, text: str) -> Callable[[Path], object]:
    return lambda model: (model / file).write_text(text)


@pytest.mark.parametrize(
    ("spoil", "told", "key"),
    [
        (lambda model: (model / "config.json").unlink(), "there is no config.json", ()),
        (lambda model: (model / "tokenizer.json").unlink(), "has no tokenizer.json", ()),
        (writing("model.safetensors", "junk"), "cannot be read", ()),
        (writing("generation_config.json", '{"top_p": 7}'), "recommends a wrong setting", ()),
        (writing("chat_template.jinja", "{{ broken"), "it cannot write a user's message", ("model",)),
        (writing("chat_template.jinja", "hello"), "it leaves out what a user says", ("model",)),
    ],
)
@real
async def test_directory_without_a_model_that_can_work_is_bad_input(
    tmp_path: Path, spoil: Callable[[Path], object], told: str, key: tuple[str, ...]
) -> None:
    model = make_nano_model(tmp_path / "model")
    spoil(model)
    with pytest.raises(ConfigError, match=told) as caught:
        async with started(nano(model)):
            pytest.fail("it started")

    assert caught.value.key[: 3 + len(key)] == ("model_definitions", "m", "nano_config", *key)


@real
async def test_backend_that_is_closed_answers_nobody(model_directory: Path) -> None:
    async with started(nano(model_directory)) as backend:
        pass
    await backend.close()
    with pytest.raises(EngineDeadError):
        await backend.generate(request())


MODEL = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.1)


def params(sampling: Sampling, room_tokens: int = 100, **form: object) -> SamplingParams:
    prompt = Prompt(messages=VOTE, **form)  # type: ignore[arg-type]
    return params_of(sampling, prompt, defaults=MODEL, room_tokens=room_tokens)


def test_every_setting_for_drawing_tokens_is_honoured_and_the_models_own_where_none_is() -> None:
    found, own = params(EVERY_SETTING), params(Sampling(temperature=0.3, max_tokens=7))

    names = [name for name in Sampling.__slots__ if name not in EFFORT_KEYS]
    assert {name: getattr(found, name) for name in names} == {name: getattr(EVERY_SETTING, name) for name in names}
    assert (own.top_k, own.top_p, own.repetition_penalty) == (20, 0.95, 1.1)


def test_reply_is_no_longer_than_there_is_room() -> None:
    assert params(Sampling(max_tokens=7), room_tokens=3).max_tokens == 3


def test_schema_holds_before_choices() -> None:
    held = params(Sampling(), schema={"type": "object"}, choices=("a",))

    assert held.json_schema is not None
    assert (json.loads(held.json_schema), held.choices) == ({"type": "object"}, ())
    assert params(Sampling(), choices=("a", "b")).choices == ("a", "b")
