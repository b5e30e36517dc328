"""`InferenceEngine` on a fleet in simulated time."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.backends import Backend
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.backends.testing import uncharged
from mac_runner.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.fleet import InferenceEngine, InferenceRequest
from mac_runner.fleet import inference as module
from mac_runner.fleet.testing import FleetPlan, Place, chat_of
from mac_runner.planning.testing import SimulatedClock
from mac_runner.spec import FleetConfig
from mac_runner.types import JsonObject, Reply, Request, Sampling, TokenCount
from tests.sim.fake_fleet import FakeFleet, FakeLanes, lane_at, spec
from tests.sim.shuffled import ShuffledLoop

T = TypeVar("T")
P = ParamSpec("P")

DOCUMENT = '''
from __future__ import annotations
class InferenceEngine:
    def __init__(self, *, max_agents_per_gpu: int = 2, max_gpus: int = 8,
                 enable_mig: bool = False):
        """Start vLLM servers and build the GPU allocator."""

    async def register_agent(self, *, agent_id: str, model_ckpt: str | Path,
                             lane_hint: int | None = None) -> None:
        """Pin an agent to a lane; loads checkpoint lazily."""

    async def run(self, agent_id: str, prompt: str, *,
                  step: Literal["think", "plan", "act"],
                  max_tokens: int) -> str: ...

    async def shutdown(self) -> None: ...
'''
"""The API of the specification of the inference engine, version 0.3, section 4."""


def simulated(program: Callable[[], Awaitable[T]], seed: int = 1) -> T:
    async def whole() -> T:
        return await program()

    with asyncio.Runner(loop_factory=lambda: ShuffledLoop(seed)) as runner:
        return runner.run(whole())


def simulated_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """A test that is a coroutine."""

    @wraps(test)
    def runs(*args: P.args, **kwargs: P.kwargs) -> None:
        simulated(lambda: test(*args, **kwargs))

    return runs


Answer = Callable[[Request], Awaitable[Reply]]


class FakeBackend(Backend):
    """Answers as the test says, as many at once as the lanes have slots."""

    def __init__(self, lanes: FakeLanes, answer: Answer) -> None:
        self.lanes = lanes
        self.answer = answer
        self.requests: list[Request] = []
        self.at_once = self.most = 0
        self.is_closed = False

    @property
    def capacity(self) -> int:
        return sum(lane.slots for lane in self.lanes.up)

    def on_resize(self, tell: Callable[[], None]) -> bool:
        self.lanes.on_change(tell)
        return True

    async def close(self) -> None:
        self.is_closed = True

    async def generate(self, request: Request) -> Reply:
        self.requests.append(request)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            return await self.answer(request)
        finally:
            self.at_once -= 1


async def echo(request: Request) -> Reply:
    await asyncio.sleep(1.0)
    return Reply(text=request.prompt.messages[-1].content.upper(), tokens=TokenCount(prompt=3, completion=2))


class TestedEngine(InferenceEngine):
    """On a fleet without processes, two lanes for each checkpoint."""

    __test__ = False
    places = 2
    slots = 2

    def __init__(self, answer: Answer = echo, **settings: Any) -> None:
        self.events: list[tuple[str, JsonObject]] = []
        self.answer = answer
        self.fleet: FakeFleet | None = None
        self.backends: dict[str, FakeBackend] = {}
        super().__init__(
            clock=SimulatedClock(),
            on_event=lambda name, fields: self.events.append((name, fields)),
            serve=lambda checkpoint: FleetModelConfig(model=checkpoint, max_num_seqs=self.slots),
            **settings,
        )

    @asynccontextmanager
    async def fleet_of(self, models: Mapping[str, FleetModelConfig]) -> AsyncIterator[FakeFleet]:
        places = tuple(Place(number=number) for number in range(self.places))
        lanes = tuple(
            spec(name, place.number, model.max_num_seqs, 10_000 + 100 * at + place.number)
            for at, (name, model) in enumerate(models.items())
            for place in places
        )
        plan = FleetPlan(config=FleetConfig(), models=dict(models), places=places, lanes=lanes)
        addresses = {lane.name: lane_at(lane.url, lane.name, slots=lane.slots) for lane in lanes}
        by_model = {name: tuple(addresses[lane.name] for lane in lanes if lane.model == name) for name in models}
        self.fleet = FakeFleet({name: FakeLanes(each, up=each) for name, each in by_model.items()}, plan=plan)
        yield self.fleet
        self.fleet = None

    def backend_of(self, name: str, fleet: Any) -> Backend:
        assert self.fleet is not None
        self.backends[name] = FakeBackend(self.fleet.model(name), self.answer)
        return self.backends[name]

    async def registered(self, *agents: str) -> None:
        for agent in agents:
            await self.register_agent(agent_id=agent, model_ckpt="models/town")

    async def act(self, agent: str, prompt: str = "x", max_tokens: int = 1) -> str:
        return await self.run(agent, prompt, step="act", max_tokens=max_tokens)

    def acts(self, agents: str) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self.act(agent)) for agent in agents]

    @property
    def town(self) -> FakeBackend:
        """The backend of the checkpoint."""
        return self.backends["town"]

    @property
    def lanes(self) -> FakeLanes:
        """Its lanes."""
        assert self.fleet is not None
        return self.fleet.model("town")

    def named(self, name: str) -> list[JsonObject]:
        return [fields for event, fields in self.events if event == name]


def test_the_signatures_are_those_of_the_specification() -> None:
    names: dict[str, Any] = {"Path": Path, "Literal": Literal}
    exec(DOCUMENT, names)

    for name in ("__init__", "register_agent", "run", "shutdown"):
        theirs, ours = (inspect.signature(getattr(one, name)) for one in (names["InferenceEngine"], InferenceEngine))
        for parameter in theirs.parameters.values():
            mine = ours.parameters[parameter.name]
            assert (mine.kind, mine.default) == (parameter.kind, parameter.default), (name, parameter.name)
            assert mine.name == "self" or eval(mine.annotation, vars(module)) == eval(parameter.annotation, names)
        added = [one for key, one in ours.parameters.items() if key not in theirs.parameters]
        assert all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in added), name
        if name != "__init__":
            assert eval(ours.return_annotation) == eval(theirs.return_annotation)
            assert inspect.iscoroutinefunction(getattr(InferenceEngine, name))


@simulated_time
async def test_prompts_are_answered_and_events_name_the_agent_its_lane_and_the_tokens(tmp_path: Path) -> None:
    async with TestedEngine(events_file=tmp_path / "log.jsonl") as engine:
        await engine.registered("ann")
        assert await engine.run("ann", "who?", step="think", max_tokens=9) == "WHO?"

    (start,), (done,) = engine.named("EVENT_INFER_START"), engine.named("EVENT_INFER_DONE")

    assert (start["agent"], start["prompt_len"], start["step"], start["model"]) == ("ann", 4, "think", "models/town")
    assert (done["agent"], done["tokens_out"], done["latency_ms"], done["step"]) == ("ann", 2, 1000.0, "think")
    assert {"time", "gpu", "lane"} <= start.keys() & done.keys()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["EVENT_INFER_START", "EVENT_INFER_DONE"]
    assert lines[1]["tokens_out"] == 2


@simulated_time
async def test_no_more_requests_are_in_flight_than_lanes_that_are_up_have_slots() -> None:
    async with TestedEngine() as engine:
        await engine.registered(*"abcdefghij")
        await engine.start()
        lanes, backend, calls = engine.lanes, engine.town, engine.acts("abcdefghij")
        await asyncio.sleep(0.5)
        assert backend.at_once == 4
        lanes.change("town@0")
        await asyncio.sleep(1.0)
        assert backend.at_once == 2
        lanes.change()
        await asyncio.sleep(100.0)
        assert (backend.at_once, sum(call.done() for call in calls)) == (0, 6)
        lanes.change("town@1")
        await asyncio.gather(*calls)
        assert (backend.most, backend.at_once) == (4, 0)


@simulated_time
async def test_a_request_is_sent_again_with_the_same_seed_until_it_is_answered() -> None:
    faults: list[Exception] = [
        TransientBackendError("reset", goes_elsewhere=True),
        TransientBackendError("busy", is_busy=True, retry_after_s=7.0),
        ConnectionResetError("away"),
    ]

    async def answer(request: Request) -> Reply:
        if faults:
            raise faults.pop(0)
        return await echo(request)

    async with TestedEngine(answer) as engine:
        await engine.registered("ann")
        assert await engine.act("ann", "who?", 9) == "WHO?"

    requests = engine.town.requests

    assert len(requests) == 4
    assert len({(one.sampling.seed, one.request_id, one.prompt) for one in requests}) == 1
    at_once, asked_for, drawn = (float(str(event["delay_s"])) for event in engine.named("EVENT_RETRY"))
    assert at_once == 0.0
    assert 7.0 <= asked_for <= 7.7
    assert 2.0 <= drawn <= 4.0
    assert engine.named("EVENT_INFER_DONE")[0]["sendings"] == 4


@pytest.mark.parametrize(
    ("fault", "sendings"),
    [
        (RequestRefusedError("no"), 1),
        (EngineDeadError("gone"), 1),
        (TransientBackendError("broken"), 5),
        (TransientBackendError("died", is_engine_death=True, goes_elsewhere=True), 3),
    ],
)
@simulated_time
async def test_an_error_stands_in_the_place_of_a_reply_in_a_batch_and_the_others_are_answered(
    fault: BackendError, sendings: int
) -> None:
    async def answer(request: Request) -> Reply:
        if request.turn.agent == "b":
            raise fault
        return await echo(request)

    async with TestedEngine(answer) as engine:
        await engine.registered(*"abc")
        requests = [InferenceRequest(agent_id=agent, prompt=agent, step="plan", max_tokens=1) for agent in "bac"]
        failed, *answered = await engine.batch_run(requests)
        assert (failed, answered) == (fault, ["A", "C"])

    assert sum(one.turn.agent == "b" for one in engine.town.requests) == sendings
    assert len(engine.named("EVENT_GIVE_UP")) == 1


def test_a_model_that_stays_away_is_given_up_after_the_patience() -> None:
    async def answer(request: Request) -> Reply:
        raise TransientBackendError("nothing listens", is_unreachable=True)

    async def program() -> float:
        async with TestedEngine(answer) as engine:
            await engine.registered("a")
            with pytest.raises(EngineDeadError, match=r"town has answered no request .*: nothing listens; .*ask again"):
                await engine.act("a")
        return asyncio.get_running_loop().time()

    assert 60 <= simulated(program) < 95


@simulated_time
async def test_waiting_for_a_lane_is_charged_to_no_deadline() -> None:
    async def answer(request: Request) -> Reply:
        if len(engine.town.requests) == 1:
            engine.lanes.change()
            raise TransientBackendError("reset", goes_elsewhere=True)
        with uncharged():
            await asyncio.sleep(1e4)
        return await echo(request)

    engine = TestedEngine(answer)
    async with engine:
        await engine.registered("a")
        call = asyncio.create_task(engine.act("a"))
        await asyncio.sleep(1e4)
        engine.lanes.change("town@0")
        assert await call == "X"

    assert len(engine.town.requests) == 2


@simulated_time
async def test_shutdown_ends_every_request_and_task() -> None:
    async def answer(request: Request) -> Reply:
        await asyncio.sleep(1e6)
        raise AssertionError

    engine = TestedEngine(answer)
    await engine.registered(*"abcdef")
    calls = engine.acts("abcdef")
    await asyncio.sleep(1.0)
    await engine.shutdown()
    await engine.shutdown()
    for call in calls:
        with pytest.raises(EngineDeadError, match="was shut down"):
            await call
    with pytest.raises(EngineDeadError, match="was shut down"):
        await engine.act("a")
    assert asyncio.all_tasks() == {asyncio.current_task()}

    assert engine.fleet is None
    assert engine.town.is_closed


@simulated_time
async def test_a_caller_that_gives_up_gives_its_slot_back() -> None:
    async with TestedEngine() as engine:
        await engine.registered(*"abcdefgh")
        await engine.start()
        calls = engine.acts("abcdefgh")
        await asyncio.sleep(0.5)
        for at in (0, 3, 5, 7):
            calls[at].cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in done] == [at in (0, 3, 5, 7) for at in range(8)]
        assert engine.town.at_once == 0
        assert await engine.act("a", "again") == "AGAIN"


@simulated_time
async def test_what_cannot_be_is_refused_with_what_is_allowed() -> None:
    async with TestedEngine() as engine:
        with pytest.raises(ConfigError, match=r"register_agent\(\) first"):
            await engine.start()
        await engine.registered("a")
        with pytest.raises(ConfigError, match="'a' is registered"):
            await engine.registered("a")
        with pytest.raises(ConfigError, match="no agent 'b'"):
            await engine.act("b")
        with pytest.raises(ConfigError, match="no step 'sing'"):
            await engine.run("a", "x", step="sing", max_tokens=1)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="max_tokens is 0"):
            await engine.act("a", max_tokens=0)
        asked = InferenceRequest(agent_id="a", prompt="x", step="act", max_tokens=1)
        with pytest.raises(ConfigError, match="no agent 'zoe'"):
            await engine.batch_run([asked, asked | {"agent_id": "zoe"}])
        assert engine.backends == {}
        await engine.start()
        with pytest.raises(ConfigError, match="without 'other'"):
            await engine.register_agent(agent_id="c", model_ckpt="other")
        with pytest.raises(ConfigError, match=r"lane_hint 7 .* has 0, 1"):
            await engine.register_agent(agent_id="c", model_ckpt="models/town", lane_hint=7)
        await engine.register_agent(agent_id="c", model_ckpt="models/town", lane_hint=1)

    with pytest.raises(ConfigError, match="max_gpus=0"):
        InferenceEngine(max_gpus=0)
    with pytest.raises(ConfigError, match="max_gpus=4 and another"):
        InferenceEngine(max_gpus=4, config=FleetConfig(max_gpus=3))


def test_checkpoints_of_one_name_are_kept_apart() -> None:
    async def program() -> list[str]:
        async with TestedEngine() as engine:
            await engine.register_agent(agent_id="a", model_ckpt=Path("one/town"))
            await engine.register_agent(agent_id="b", model_ckpt="two/town")
            await engine.start()
            return sorted(engine.backends)

    assert simulated(program) == ["town", "town-2"]


@simulated_time
async def test_agents_of_a_lane_that_went_move_and_stay_where_they_moved() -> None:
    async with TestedEngine() as engine:
        await engine.registered(*"abcd")
        await engine.start()
        lanes = engine.lanes

        def homes() -> list[str | None]:
            return [engine.lane_of(agent) for agent in "abcd"]

        assert sorted(map(str, homes())) == ["town@0", "town@0", "town@1", "town@1"]
        lanes.change("town@1")
        assert homes() == ["town@1"] * 4
        lanes.change()
        assert homes() == [None] * 4
        lanes.change("town@0")
        assert homes() == ["town@0"] * 4
        lanes.change("town@0", "town@1")
        assert homes() == ["town@0"] * 4
        await engine.registered("e")
        assert engine.lane_of("e") == "town@1"


def test_a_prompt_in_the_markup_of_the_specification_becomes_chat_messages() -> None:
    table = [
        ("who?", [("user", "who?")]),
        ("<system>Be brief.</system>\n<user>who?</user>", [("system", "Be brief."), ("user", "who?")]),
        (
            "<system>Be <thinking>…</thinking>.</system><user>who?</user>\n<assistant>\n<thinking>I need",
            [("system", "Be <thinking>…</thinking>."), ("user", "who?"), ("assistant", "<thinking>I need")],
        ),
        ("<user>who?</user><assistant>", [("user", "who?")]),
        ("<user>never closed", [("user", "<user>never closed")]),
        ("see <system>a</system>", [("user", "see <system>a</system>")]),
        ("<user>a</user> and more", [("user", "<user>a</user> and more")]),
        ("", [("user", "")]),
    ]
    for prompt, expected in table:
        assert [(one.role, one.content) for one in chat_of(prompt)] == expected


@simulated_time
async def test_each_step_has_its_sampling() -> None:
    settings = {"think": Sampling(temperature=0.9, top_p=0.5), "act": Sampling(temperature=0.0)}
    async with TestedEngine(sampling=settings) as engine:
        await engine.registered("a")
        for step in ("think", "plan", "act"):
            await engine.run("a", "x", step=step, max_tokens=7)
        found = [one.sampling for one in engine.town.requests]

    assert [(one.temperature, one.top_p, one.max_tokens) for one in found] == [
        (0.9, 0.5, 7),
        (1.0, None, 7),
        (0.0, None, 7),
    ]
    assert len({one.seed for one in found}) == 3


def test_the_example_of_the_page_is_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    async def answer(request: Request) -> Reply:
        return Reply(text=f"{request.turn.agent}: {request.prompt.messages[0].content}")

    monkeypatch.setattr("mac_runner.fleet.InferenceEngine", partial(TestedEngine, answer))
    exec(example, {"__name__": "__main__"})

    assert capsys.readouterr().out == snapshot
