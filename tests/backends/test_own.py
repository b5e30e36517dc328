"""A class that a user wrote, as a backend: the contract, and what becomes of one that breaks it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mac_runner.backends import Backend, BackendRequest
from mac_runner.backends.testing import OwnBackend, own_spec
from mac_runner.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    MacRunnerError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.planning.testing import SimulatedClock
from mac_runner.plugins import Code, Plugin
from mac_runner.registry import BackendSpec
from mac_runner.scheduler.testing import generate
from mac_runner.section import NoSettings
from mac_runner.spec import AgentDefinition
from mac_runner.testing.backends import BackendContract, BackendHarness
from mac_runner.types import FinishReason, Reply, Request, TokenCount, TokenTrace
from tests.backends.asking import started
from tests.patience import LIMIT_S
from tests.sim.building import request_for
from tests.sim.held_time import real
from tests.sim.requests import request

HOME = "/home/ann/bird.py"


def plugin(value: object) -> Plugin:
    return Plugin("./bird.py:Bird", value, Code(None, None, "0" * 64, Path(HOME)))


def built(value: object, *agents: AgentDefinition, record_tokens: bool = False) -> Backend:
    spec = own_spec(plugin(value))
    name, settings = "./bird.py:Bird", spec.settings()
    return spec.build(request_for(settings, SimulatedClock(), backend=name, record_tokens=record_tokens, agents=agents))


def agent(**settings: object) -> AgentDefinition:
    return AgentDefinition.model_validate({"agent_id": "a", "role": "player", "model": "m", **settings})


def reply_of(backend: Backend) -> Reply:
    """The reply of a backend, asked as a run asks it."""

    async def program() -> Reply:
        async with started(backend):
            return await generate(backend, request(), deadline_s=LIMIT_S, clock=SimulatedClock())

    return asyncio.run(program())


class Slow(BaseModel):
    words_max: int = 50


class Bird(OwnBackend):
    """The last word of a prompt, on the event loop."""

    Settings = Slow
    honours = frozenset({"seed", "max_tokens"})
    capacity = 3

    async def generate(self, request: Request) -> Reply:
        words = request.prompt.messages[-1].content.split()
        if len(words) > self.settings.words_max:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        await asyncio.sleep(0.01 * len(words))
        count = min(request.sampling.max_tokens, 2)
        ending = FinishReason.STOP if count == 2 else FinishReason.LENGTH
        tokens = TokenCount(prompt=len(words), completion=count)
        return Reply(text=words[-1], finish_reason=ending, tokens=tokens)


class Parrot:
    """The same in a thread, and without the base class."""

    Settings = Slow

    def __init__(self, settings: Slow) -> None:
        self.settings = settings

    def generate(self, request: Request) -> str | Reply:
        words = request.prompt.messages[-1].content.split()
        return Reply(text="", finish_reason=FinishReason.OVERFLOW) if len(words) > 50 else words[-1]


class ThreadHarness(BackendHarness):
    patience_s = LIMIT_S
    kind: type = Parrot

    def build(self) -> Backend:
        return built(self.kind)

    def request_too_long(self) -> Request:
        return self.request("word " * 51)


class OwnHarness(ThreadHarness):
    kind = Bird

    def request_cut_off(self) -> Request:
        return self.request(max_tokens=1)

    def request_slow(self) -> Request:
        return self.request("word " * 50)


@pytest.mark.ci
class TestAsync(BackendContract):
    @pytest.fixture
    def harness(self) -> BackendHarness:
        return OwnHarness()


class TestThread(BackendContract):
    @pytest.fixture
    def harness(self) -> BackendHarness:
        return ThreadHarness()


def test_capacity_is_that_of_the_class_or_follows_from_how_it_generates() -> None:
    capacities = {
        "own": built(Bird).capacity,
        "thread": built(Parrot).capacity,
        "async": built(type("Later", (), {"generate": returning("x")})).capacity,
    }

    assert capacities == {"own": 3, "thread": 1, "async": 8}


@real
async def test_as_many_plain_calls_run_at_once_as_there_is_capacity() -> None:
    together = threading.Barrier(3, timeout=LIMIT_S)

    class Pair(OwnBackend):
        capacity = 3

        def generate(self, request: Request) -> str:
            return f"{together.wait() >= 0}"

    async with started(built(Pair)) as backend:
        found = await asyncio.gather(*(backend.generate(request()) for _ in range(3)))

    assert [reply.text for reply in found] == ["True"] * 3


def test_a_class_that_cannot_be_a_backend_is_refused_with_its_file_and_a_remedy() -> None:
    def yields(self: object, request: Request) -> Any:
        yield "x"

    def plain(self: object, request: Request) -> str:
        return "x"

    bad: dict[str, object] = {
        "it is str; a backend is a class with `generate(self, request)`": "a text",
        "it is function; a backend is a class": plain,
        "the class has no `generate`": type("Mute", (), {}),
        "has no `generate`": type("Heir", (OwnBackend,), {}),
        "`generate` yields": type("Yields", (), {"generate": yields}),
        "`Settings` is not a pydantic model": type("Odd", (), {"generate": plain, "Settings": dict}),
        "`honours` holds 'temprature'": type("Typo", (), {"generate": plain, "honours": {"temprature"}}),
        "`honours` is 'seed'; it is a set of names": type("Bare", (), {"generate": plain, "honours": "seed"}),
        "`constrains` holds 'grammar'": type("Held", (), {"generate": plain, "constrains": {"grammar"}}),
    }
    told = {expected: refusal_of(value) for expected, value in bad.items()}

    assert {expected: text for expected, text in told.items() if expected not in text or HOME not in text} == {}


def refusal_of(value: object) -> str:
    try:
        own_spec(plugin(value))
    except ConfigError as fault:
        return str(fault)
    return "accepted"


@pytest.mark.parametrize(("key", "value"), [("temperature", 0.2), ("top_p", 0.9), ("stop", ["x"])])
def test_settings_that_a_backend_does_not_honour_are_refused_and_defaults_are_not(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: .* add it to the `honours` of its class") as caught:
        built(Bird, agent(**{key: value}))

    assert caught.value.key == ("agent_definitions", 0, key)
    built(Bird, agent(temperature=1.0, stop=[], max_tokens=9), agent(model="other", temperature=0.1))


def test_tokens_that_a_backend_does_not_tell_are_not_recorded() -> None:
    with pytest.raises(ConfigError, match=r"record_tokens: .*'./bird.py:Bird'"):
        built(Bird, record_tokens=True)


def raising(fault: BaseException) -> Callable[..., Awaitable[str]]:
    async def generate(self: object, request: Request) -> str:
        raise fault

    return generate


def returning(found: object) -> Callable[..., Awaitable[Any]]:
    async def generate(self: object, request: Request) -> Any:
        return found

    return generate


def refusing_start(self: object) -> None:
    raise KeyError("weights")


def test_what_a_backend_does_wrong_has_a_verdict_and_names_its_line() -> None:
    """Mistakes of its code fail the conversation; what it says itself, a failed start or a lost file ends the run."""

    fine = returning("x")

    def forgot(self: object, request: Request) -> Any:
        return fine(self, request)

    missing = FileNotFoundError("words.txt")
    odd_text, odd_end = Reply(text=3), Reply(text="", finish_reason="stop")  # type: ignore[arg-type]
    odd_tokens = Reply(text="", tokens=TokenCount(prompt=-1))
    odd_trace = Reply(text="", trace=TokenTrace(prompt_ids=[1], completion_ids=[2], logprobs=[float("nan")]))
    cases: list[tuple[type[MacRunnerError], str, dict[str, Any]]] = [
        (RequestRefusedError, "failed: test_own.py:", {"generate": raising(KeyError("text"))}),
        (RequestRefusedError, "KeyError: 'text'", {"generate": raising(KeyError("text"))}),
        (RequestRefusedError, "CancelledError", {"generate": raising(asyncio.CancelledError())}),
        (RequestRefusedError, "no such word", {"generate": raising(RequestRefusedError("no such word"))}),
        (EngineDeadError, "it burnt", {"generate": raising(EngineDeadError("it burnt"))}),
        (EngineDeadError, "FileNotFoundError: words.txt; put the file back", {"generate": raising(missing)}),
        (TransientBackendError, "ConnectionError", {"generate": raising(ConnectionError("gone"))}),
        (TransientBackendError, "TimeoutError", {"generate": raising(TimeoutError())}),
        (RequestRefusedError, "`generate` returned int", {"generate": returning(3)}),
        (RequestRefusedError, "`generate` returned NoneType", {"generate": returning(None)}),
        (RequestRefusedError, "a Reply whose text is 3", {"generate": returning(odd_text)}),
        (RequestRefusedError, "that is not a finite number", {"generate": returning(odd_trace)}),
        (RequestRefusedError, "finish_reason is 'stop'", {"generate": returning(odd_end)}),
        (RequestRefusedError, "tokens are (-1, 0, 0)", {"generate": returning(odd_tokens)}),
        (RequestRefusedError, "write `async def generate`", {"generate": forgot}),
        (EngineDeadError, "failed in `start`: ", {"generate": fine, "start": refusing_start}),
        (EngineDeadError, "`capacity` of its backend './bird.py:Bird' is 0", {"generate": fine, "capacity": 0}),
        (EngineDeadError, "`lookahead` of its backend './bird.py:Bird' is 'x'", {"generate": fine, "lookahead": "x"}),
    ]
    wrong = []
    for verdict, text, members in cases:
        try:
            reply = reply_of(built(type("Bad", (), members)))
        except (BackendError, ConfigError) as fault:
            if not isinstance(fault, verdict) or text not in str(fault):
                wrong.append(f"{text}: {type(fault).__name__}: {fault}")
        else:
            wrong.append(f"{text}: {reply}")

    assert wrong == []


def failing_init(self: object, settings: object = None) -> None:
    raise KeyError("path")


def greedy_init(self: object, one: object, two: object) -> None: ...


@pytest.mark.parametrize(
    ("init", "told"),
    [(failing_init, r"test_own\.py:\d+: KeyError: 'path'"), (greedy_init, "class has `Settings`")],
)
def test_an_init_that_fails_is_bad_input_before_anything_starts(init: Callable[..., None], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        built(type("Bad", (OwnBackend,), {"__init__": init, "generate": returning("x")}))


def test_settings_named_as_those_of_built_in_backends_say_how_a_model_is_served() -> None:
    class Bird:
        class Settings(BaseModel):
            model: Path = Path("models/bird")
            base_urls: tuple[str, ...] = ("http://a/v1", "http://b/v1")
            max_in_flight: int = 32
            tensor_parallel_size: int = 2

        def generate(self, request: Request) -> str:
            return "tweet"

    spec = own_spec(plugin(Bird))
    serving = spec.serving(spec.settings())

    assert (serving.model, serving.lanes, serving.slots, serving.gpus) == ("models/bird", 2, 16, 2)
    assert serving.alone == {"base_urls": ("http://a/v1",), "max_in_flight": 16}


def test_a_text_is_a_reply() -> None:
    assert reply_of(built(type("Short", (), {"generate": returning("hello")}))) == Reply(text="hello")


def test_what_a_spec_of_ones_own_builds_is_refused_by_its_name_where_its_code_raises() -> None:
    class Countless(Backend):
        """It lacks `capacity`."""

        async def generate(self, request: Request) -> Reply:
            return Reply(text="never")

    def build(asked: BackendRequest[Any]) -> Backend:
        return Countless()  # type: ignore[abstract]

    with pytest.raises(
        ConfigError, match=r"model_definitions\.m\.backend: './bird\.py:Bird' cannot be made: .*capacity"
    ):
        built(BackendSpec(settings=NoSettings, build=build, describe=lambda settings: "bird"))

    def missing(asked: BackendRequest[Any]) -> Backend:
        raise ModuleNotFoundError("no bird", name="bird")

    with pytest.raises(ModuleNotFoundError, match="no bird"):
        built(BackendSpec(settings=NoSettings, build=missing, describe=lambda settings: "bird"))


def test_a_reply_of_a_spec_of_ones_own_that_is_none_ends_the_run_by_the_name_of_its_class() -> None:
    class Terse(Backend):
        """It forgets to make a Reply of its text."""

        capacity = 1

        async def generate(self, request: Request) -> Any:
            return "never"

    spec = BackendSpec(settings=NoSettings, build=lambda _request: Terse(), describe=lambda settings: "terse")
    with pytest.raises(EngineDeadError, match="`generate` of Terse returned str, no Reply") as caught:
        reply_of(built(spec))
    assert caught.value.model == "m"
