"""`InferenceEngine`: agents that ask engines of this machine, one prompt and one reply at a time.

A run of conversations has the scheduler. Here each request waits for a slot in the order in which it came, and is sent
until it is answered: what follows a fault is decided by `scheduler/engine_policy.py`, as in a run.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, TypedDict, TypeVar, get_args

from pydantic import ValidationError

from mac_runner.backends.base import Backend, Waiting
from mac_runner.backends.factory import backend_on_fleet
from mac_runner.backends.fleet.settings import FleetModelConfig, ModelLanes
from mac_runner.clock import Clock, SystemClock, iso
from mac_runner.errors import BackendError, ConfigError, EngineDeadError, TransientBackendError
from mac_runner.fleet.lane import Fleet, LaneSpec, LaneStatus, OnEvent
from mac_runner.fleet.layout import FleetPlan, local_plan
from mac_runner.fleet.supervisor import LocalFleet
from mac_runner.scheduler.attempt import generate, where
from mac_runner.scheduler.engine_policy import EngineState, Fail, GiveUpEngine, RequestState, Retry, next_step
from mac_runner.spec import FleetConfig, RetryConfig
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.types import JsonObject, Message, Prompt, Reply, Request, Sampling, Turn, stable_hash

T = TypeVar("T")
Step: TypeAlias = Literal["think", "plan", "act"]
"""What a prompt is for."""
InferenceError: TypeAlias = BackendError
"""What `batch_run` returns in place of a reply that did not come."""

_BLOCK: Final = re.compile(r"\s*<(system|user|assistant)>(.*?)(</\1>|\Z)\s*", re.DOTALL)
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


class InferenceRequest(TypedDict):
    """One call of `run`, for `batch_run`."""

    agent_id: str
    prompt: str
    step: Step
    max_tokens: int


class LaidOutFleet(Fleet, Protocol):
    """A fleet that knows its plan."""

    @property
    def plan(self) -> FleetPlan: ...


def on_vllm(checkpoint: str) -> FleetModelConfig:
    """How a checkpoint is served by default: by vLLM, on each GPU that has room for it."""
    return FleetModelConfig(model=checkpoint)


def chat_of(prompt: str) -> tuple[Message, ...]:
    """A prompt as chat messages: its blocks `<system>`, `<user>` and `<assistant>`, or one user message.

    Only the last block may be left open, and only an assistant's. What is inside blocks is left as it is.
    """
    messages, at = list[Message](), 0
    while at < len(prompt):
        block = _BLOCK.match(prompt, at)
        if block is None or (not block[3] and block[1] != "assistant"):
            return (Message(role="user", content=prompt),)
        role: Any = block[1]  # One of the three of the pattern.
        if text := block[2].strip():
            messages.append(Message(role=role, content=text))
        at = block.end()
    return tuple(messages) or (Message(role="user", content=prompt),)


@dataclass(slots=True, eq=False)
class _Place:
    number: int
    agents: int = 0
    turn: int = 0
    """When an agent was last settled here: what was used longest ago is next."""


@dataclass(slots=True, eq=False)
class _Lane:
    name: str
    model: str
    place: _Place
    has_served: bool = False
    is_down: bool = False
    """Whether it served and went: one that is still starting may have agents."""
    agents: dict[str, None] = field(default_factory=dict)
    turn: int = 0

    def order(self) -> tuple[int, ...]:
        """The lane with the least goes first: those on places without agents, then those with the fewest."""
        if not self.place.agents:
            return 0, self.place.turn, self.place.number
        return 1, len(self.agents), self.turn, self.place.number


class RoundRobinAllocator:
    """Which lane an agent's requests go to: distinct places first, then shared lanes, each in round-robin order. Pure.

    A lane that goes down strands its agents; they are settled on the lanes of their model that are up, and stay there
    when it returns. New agents then go to the lane that returned, since it has the fewest.
    """

    def __init__(self, lanes: Iterable[LaneSpec]) -> None:
        places: dict[int, _Place] = {}
        self._lanes: dict[str, list[_Lane]] = {}
        """By model."""
        for lane in lanes:
            place = places.setdefault(lane.place.number, _Place(lane.place.number))
            self._lanes.setdefault(lane.model, []).append(_Lane(lane.name, lane.model, place))
        self._places = sorted(places)
        self._homes: dict[str, _Lane | None] = {}
        """The lane of each agent; None while no lane of its model is up."""
        self._waiting: dict[str, list[str]] = {model: [] for model in self._lanes}
        """The agents without a lane, by model."""
        self._turn = 0

    def lane_of(self, agent: str) -> str | None:
        """Where an agent's requests go; None while no lane of its model is up."""
        lane = self._homes[agent]
        return None if lane is None else lane.name

    def allocate(self, agent: str, model: str, lane_hint: int | None = None) -> str:
        """Settle a new agent; `lane_hint` is the number of a place. Raises ConfigError where that cannot be."""
        lanes, where = self._lanes[model], f"register_agent: agent {agent!r}"
        if lane_hint is not None:
            lanes = [lane for lane in lanes if lane.place.number == lane_hint]
            if lane_hint not in self._places:
                numbers = ", ".join(map(str, self._places))
                raise ConfigError(f"{where}: lane_hint {lane_hint} is not a place of this fleet, which has {numbers}")
            if not lanes:
                raise ConfigError(f"{where}: place {lane_hint} of lane_hint has no lane of {model}")
        lane = self._settle(agent, lanes)
        if lane is None:
            names = ", ".join(lane.name for lane in lanes)
            raise ConfigError(f"{where}: no lane of {model} is up ({names}): try again once one is")
        return lane.name

    def follow(self, model: str, up: Collection[str]) -> None:
        """These lanes of a model are up, and no others: agents of those that went, or that waited, are settled."""
        lanes = self._lanes[model]
        for lane in lanes:
            is_up = lane.name in up
            lane.has_served = lane.has_served or is_up
            lane.is_down = lane.has_served and not is_up
            if lane.is_down:
                self._strand(lane)
        waiting = self._waiting[model]
        self._waiting[model] = [agent for agent in waiting if self._settle(agent, lanes) is None]

    def _strand(self, lane: _Lane) -> None:
        for agent in lane.agents:
            self._homes[agent] = None
        self._waiting[lane.model] += lane.agents
        lane.place.agents -= len(lane.agents)
        lane.agents.clear()

    def _settle(self, agent: str, lanes: Iterable[_Lane]) -> _Lane | None:
        """Give an agent the next of these lanes that are not down; None where none is."""
        lane = min((lane for lane in lanes if not lane.is_down), key=_Lane.order, default=None)
        if lane is not None:
            self._turn += 1
            lane.turn = lane.place.turn = self._turn
            lane.place.agents += 1
            lane.agents[agent] = None
            self._homes[agent] = lane
        return lane


@dataclass(slots=True)
class _Agent:
    checkpoint: str
    model: str
    """The checkpoint's name in the fleet."""
    lane_hint: int | None
    asked: int = 0
    """How many prompts it has sent."""


class Gate:
    """Lets in as many as `limit` says, in the order in which they came. `renew` after the limit has changed."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self.inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, *, is_again: bool = False) -> None:
        """Wait for a slot; one that comes again waits before all others."""
        if self.inside < self._limit() and (is_again or not self._waiting):
            self.inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if is_again else self._waiting.append)(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                self.leave()  # It was let in, and was cancelled before it went on.
            raise

    def leave(self) -> None:
        self.inside -= 1
        self.renew()

    def renew(self) -> None:
        """Let in those that there is room for now."""
        while self._waiting and self.inside < self._limit():
            if not (turn := self._waiting.popleft()).cancelled():
                self.inside += 1
                turn.set_result(None)


@dataclass(slots=True)
class _Call:
    """One request over all its sendings."""

    request: Request
    fields: JsonObject
    """Those of each event about it."""
    state: RequestState
    ready_at_s: float
    """Since when it has waited for a slot."""
    begun_s: float = 0.0
    """The moment of the first sending."""
    deaths: int = 0
    """How often an engine died on it."""


class Dispatcher:
    """Sends the requests of one model. Its backend must have been started."""

    def __init__(self, backend: Backend, *, retry: RetryConfig, clock: Clock, on_event: OnEvent) -> None:
        self.backend = backend
        self._retry = retry
        self._clock = clock
        self._on_event = on_event
        self._engine = EngineState.of(backend.capacity, backend.lookahead)
        self._gate = Gate(lambda: backend.capacity + backend.lookahead)
        backend.on_resize(self._resized)

    def _resized(self) -> None:
        self._engine.resized(self.backend.capacity, self.backend.lookahead, self._clock.monotonic_s())
        self._gate.renew()

    async def answer(self, request: Request, fields: JsonObject) -> Reply:
        """The reply, after as many sendings as it takes. Raises a BackendError.

        `fields` are those of each event about the request. Waiting for a slot is not charged to its deadline.
        """
        asked_s = self._clock.monotonic_s()
        call = _Call(request, fields, RequestState(request.request_id, asked_s), asked_s)
        while True:
            await self._gate.enter(is_again=call.state.sending > 0)
            try:
                self._departs(call)
                reply = await self._sent(call)
                self._answered(call, reply)
                return reply
            except BackendError as fault:
                again = self._after(call, fault)
            finally:
                self._gate.leave()
            call.request = replace(request, is_suspect=again.is_suspect and self.backend.isolates)
            await self._clock.sleep(again.delay_s)
            call.ready_at_s = self._clock.monotonic_s()

    def _departs(self, call: _Call) -> None:
        state, now_s = call.state, self._clock.monotonic_s()
        waited_s = now_s - call.ready_at_s
        if not state.sending:
            call.begun_s, state.answers_before = now_s, self._engine.answers
            at = self.backend.destination(call.request)
            self._on_event("EVENT_INFER_START", call.fields | where(at) | {"queue_s": round(waited_s, 6)})
        state.charged_from_s += waited_s
        state.sending, state.sent_at_s = state.sending + 1, now_s

    async def _sent(self, call: _Call) -> Reply:
        state, waiting = call.state, Waiting()
        deadline_s = state.charged_from_s + self._retry.request_deadline_s - state.sent_at_s
        try:
            return await generate(self.backend, call.request, deadline_s=deadline_s, clock=self._clock, waiting=waiting)
        finally:
            state.charged_from_s += waiting.uncharged_s

    def _answered(self, call: _Call, reply: Reply) -> None:
        self._engine.answered()
        answered: JsonObject = {
            "tokens_out": reply.tokens.completion,
            "tokens_in": reply.tokens.prompt,
            "tokens_cached": reply.tokens.cached,
            "latency_ms": round(1000 * (self._clock.monotonic_s() - call.begun_s), 3),
            "sendings": call.state.sending,
        }
        self._on_event("EVENT_INFER_DONE", call.fields | where(reply.timing) | answered)

    def _after(self, call: _Call, fault: BackendError) -> Retry:
        """The next sending. Raises `fault` where there is none, EngineDeadError where the engine is given up."""
        request, state = call.request, call.state
        call.deaths += isinstance(fault, TransientBackendError) and fault.is_engine_death
        step = next_step(
            request.turn,
            state,
            fault,
            self._engine,
            name=request.turn.model,
            conversation=request.conversation,
            retry=self._retry,
            now_s=self._clock.monotonic_s(),
            deaths=call.deaths,
            server=None if fault.destination is None else fault.destination.server,
        )
        delay_s = step.delay_s if isinstance(step, Retry) else None
        said: JsonObject = {"sending": state.sending, "error": state.faults[-1], "delay_s": delay_s}
        name = "EVENT_GIVE_UP" if delay_s is None else "EVENT_RETRY"
        self._on_event(name, call.fields | where(fault.destination) | said)
        if isinstance(step, GiveUpEngine):
            raise EngineDeadError(
                f"{step.reason}; when it is back, ask again (`engine_patience_s` of `retry` says how long a request "
                "waits for it)"
            ) from fault
        if isinstance(step, Fail):
            raise fault
        return step


class _Running:
    """The fleet, its backends, and which lane each agent has."""

    def __init__(self, fleet: LaidOutFleet, dispatchers: Mapping[str, Dispatcher]) -> None:
        self._dispatchers = dispatchers
        self.fleet = fleet
        self.allocator = RoundRobinAllocator(fleet.plan.lanes)
        for model in dispatchers:
            lanes = fleet.model(model)
            if not lanes.is_swapped:  # Where models take turns, lanes that sleep keep their agents.
                follow = partial(self._follow, model, lanes)
                follow()
                lanes.on_change(follow)

    async def answer(self, agent_id: str, agent: _Agent, request: Request, fields: JsonObject) -> Reply:
        """The reply to an agent's request. Raises a BackendError."""
        dispatcher = self._dispatchers[agent.model]
        if (lane := self.allocator.lane_of(agent_id)) is not None:
            dispatcher.backend.settle(agent_id, lane)
        return await dispatcher.answer(request, fields)

    def _follow(self, model: str, lanes: ModelLanes) -> None:
        self.allocator.follow(model, {lane.name for lane in lanes.up})


class InferenceEngine:
    """Serves the prompts of many agents on the GPUs of this machine.

    Agents of one checkpoint share its lanes. The fleet starts with the first `run`, and ends with `shutdown`.
    """

    def __init__(
        self,
        *,
        max_agents_per_gpu: int = 2,
        max_gpus: int = 8,
        enable_mig: bool = False,
        config: FleetConfig | None = None,
        serve: Callable[[str], FleetModelConfig] = on_vllm,
        sampling: Mapping[Step, Sampling] | None = None,
        retry: RetryConfig | None = None,
        seed: int = 0,
        on_event: OnEvent | None = None,
        events_file: str | Path | None = None,
        say: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is started.

        `config` is a whole section `fleet` in place of the first three. `serve` says how a checkpoint is served.
        `sampling` has the settings for each step; `max_tokens` of a call takes the place of theirs. `on_event` gets the
        name and the fields of each event, `events_file` a JSON line, and `say` lines for people.
        """
        given = {"max_agents_per_gpu": max_agents_per_gpu, "max_gpus": max_gpus, "enable_mig": enable_mig}
        self._config = _config(given, config)
        self._serve = serve
        self._sampling = {step: (sampling or {}).get(step, Sampling()) for step in get_args(Step)}
        self._retry = retry or RetryConfig()
        self._seed = seed
        self._on_event = on_event
        self._events_path = None if events_file is None else Path(events_file)
        self._events_file: OpenFile | None = None
        self._disk = Disk()
        self._say = say or (lambda _line: None)
        self._clock = clock or SystemClock()
        self._agents: dict[str, _Agent] = {}
        self._models: dict[str, FleetModelConfig] = {}
        self._names: dict[str, str] = {}
        """The names of checkpoints in the fleet."""
        self._running: _Running | None = None
        self._holder: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def register_agent(self, *, agent_id: str, model_ckpt: str | Path, lane_hint: int | None = None) -> None:
        """Pin an agent to a lane of its checkpoint, on the place with the number `lane_hint` where that is given.

        All checkpoints must be known before the first `run`, which starts their engines. Raises ConfigError.
        """
        self._refuse_if_closed()
        checkpoint = str(model_ckpt)
        if agent_id in self._agents:
            raise ConfigError(f"register_agent: agent {agent_id!r} is registered already; choose another agent_id")
        if self._holder is not None and checkpoint not in self._names:
            raise ConfigError(
                f"register_agent: the engines have started without {checkpoint!r}; register an agent of each "
                "checkpoint before the first run()"
            )
        if checkpoint not in self._names:
            name = self._new_name(checkpoint)
            self._models[name] = self._serve(checkpoint)
            self._names[checkpoint] = name
        agent = _Agent(checkpoint, self._names[checkpoint], lane_hint)
        if self._running is not None:
            self._running.allocator.allocate(agent_id, agent.model, agent.lane_hint)
        self._agents[agent_id] = agent

    async def start(self) -> None:
        """Start the engines of all checkpoints; over when each can be asked. The first `run` does it by itself.

        Raises ConfigError for what does not fit, EngineDeadError where an engine does not start.
        """
        self._refuse_if_closed()
        if not self._agents:
            raise ConfigError("InferenceEngine: no agent is registered; call register_agent() first")
        if self._running is not None and self._holder is not None and not self._holder.done():
            return
        if self._holder is None:
            self._ready = asyncio.Event()
            self._holder = asyncio.create_task(self._hold(self._ready), name="inference engine")
        waiter = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({self._holder, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if self._holder.done():
            holder, self._holder = self._holder, None
            holder.result()
            self._refuse_if_closed()

    async def run(self, agent_id: str, prompt: str, *, step: Step, max_tokens: int) -> str:
        """The reply to one prompt. Raises a BackendError where none comes, ConfigError for an unknown agent or step.

        A prompt in blocks of `<system>`, `<user>` and `<assistant>` is sent as these messages, any other text as one
        message of the user.
        """
        self._check(agent_id, step, max_tokens)
        reply = await self._task(self._answered(agent_id, prompt, step, max_tokens))
        return reply.text

    def lane_of(self, agent_id: str) -> str | None:
        """The lane of an agent, such as `town@0`; None before the start and while no lane of its checkpoint is up."""
        return None if self._running is None else self._running.allocator.lane_of(agent_id)

    def status(self) -> tuple[LaneStatus, ...]:
        return () if self._running is None else self._running.fleet.status()

    async def batch_run(self, requests: Sequence[InferenceRequest]) -> list[str | InferenceError]:
        """The replies to many prompts, in their order; an error in the place of a reply that does not come.

        Raises ConfigError, before anything is sent, for an unknown agent or step.
        """
        for request in requests:
            self._check(request["agent_id"], request["step"], request["max_tokens"])
        return await _all(self._outcome(request) for request in requests)

    async def shutdown(self) -> None:
        """End all requests and engines; safe to call twice."""
        self._is_closed = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stop.set()
        if (holder := self._holder) is not None:
            if self._running is None:
                holder.cancel()  # It has not started, and may take minutes.
            await asyncio.wait({holder})
            self._holder = self._running = None
            if not holder.cancelled():
                holder.result()
        if self._events_file is not None:
            self._disk.close(self._events_file)
            self._events_file = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_fault: object) -> None:
        await self.shutdown()

    # Requests

    async def _outcome(self, request: InferenceRequest) -> str | InferenceError:
        try:
            return await self.run(
                request["agent_id"], request["prompt"], step=request["step"], max_tokens=request["max_tokens"]
            )
        except BackendError as fault:
            return fault

    async def _answered(self, agent_id: str, prompt: str, step: Step, max_tokens: int) -> Reply:
        await self.start()
        running, agent = self._running, self._agents[agent_id]
        self._refuse_if_closed()
        assert running is not None
        agent.asked += 1
        seed = stable_hash(self._seed, agent_id, agent.asked)
        request = Request(
            conversation=agent_id,
            turn=Turn(round=agent.asked, agent=agent_id, model=agent.model, place=0),
            prompt=Prompt(messages=chat_of(prompt)),
            sampling=replace(self._sampling[step], max_tokens=max_tokens, seed=seed),
        )
        fields: JsonObject = {
            "agent": agent_id,
            "model": agent.checkpoint,
            "step": step,
            "number": agent.asked,
            "prompt_len": len(prompt),
        }
        return await running.answer(agent_id, agent, request, fields)

    async def _task(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call, in a task of its own that `shutdown` can end."""
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and not current.cancelling():
                self._refuse_if_closed()
            raise

    def _check(self, agent_id: str, step: Step, max_tokens: int) -> None:
        self._refuse_if_closed()
        if agent_id not in self._agents:
            known = ", ".join(list(self._agents)[:40]) or "none"
            raise ConfigError(f"run: there is no agent {agent_id!r}; call register_agent() first; registered: {known}")
        if step not in self._sampling:
            raise ConfigError(f"run: there is no step {step!r}; allowed: {', '.join(self._sampling)}")
        if max_tokens < 1:
            raise ConfigError(f"run: max_tokens is {max_tokens}; allowed: at least 1")

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise EngineDeadError("the inference engine was shut down; make another one")

    # The fleet

    async def _hold(self, ready: asyncio.Event) -> None:
        """Open the fleet, and close it when `shutdown` says so: in one task, as groups of tasks need it."""
        async with self.fleet_of(self._models) as fleet, AsyncExitStack() as stack:
            backends = {name: self.backend_of(name, fleet) for name in self._models}
            for backend in backends.values():
                stack.push_async_callback(backend.close)
            await _all(backend.start() for backend in backends.values())
            dispatchers = {
                name: Dispatcher(backend, retry=self._retry, clock=self._clock, on_event=self._event)
                for name, backend in backends.items()
            }
            running = _Running(fleet, dispatchers)
            for agent_id, agent in self._agents.items():
                running.allocator.allocate(agent_id, agent.model, agent.lane_hint)
            self._running = running
            ready.set()
            await self._stop.wait()

    @asynccontextmanager
    async def fleet_of(self, models: Mapping[str, FleetModelConfig]) -> AsyncIterator[LaidOutFleet]:
        """The fleet of these models, by name, inside the block. Raises ConfigError for what does not fit."""
        plan = await asyncio.to_thread(local_plan, self._config, dict(models))
        for note in plan.notes:
            self._say(note)
        async with LocalFleet(plan, clock=self._clock, say=self._say, on_event=self._event) as fleet:
            yield fleet

    def backend_of(self, name: str, fleet: Fleet) -> Backend:
        """The backend of a model, not started."""
        return backend_on_fleet(name, self._models[name], fleet.model(name), clock=self._clock, say=self._say)

    def _new_name(self, checkpoint: str) -> str:
        """A short name for a checkpoint, for lanes and logs: the last part of its path."""
        name = _NO_NAME.sub("-", Path(checkpoint).name).strip("-.")[:60] or "model"
        others = sum(known == name or known.startswith(f"{name}-") for known in self._models)
        return f"{name}-{others + 1}" if others else name

    def _event(self, name: str, fields: JsonObject) -> None:
        now = iso(self._clock.utc_now())
        if self._on_event is not None:
            self._on_event(name, {"time": now, **fields})
        if self._events_path is not None:
            if self._events_file is None:
                self._events_file = self._disk.open_append(self._events_path)
            line = json.dumps({"time": now, "event": name, **fields}, ensure_ascii=False)
            self._disk.append(self._events_file, f"{line}\n".encode("utf-8", "surrogatepass"))


def _config(given: Mapping[str, int | bool], config: FleetConfig | None) -> FleetConfig:
    """The section `fleet`. Raises ConfigError for impossible values, and for values beside a whole section."""
    defaults = FleetConfig()
    if config is not None:
        for name, value in given.items():
            if value not in (getattr(defaults, name), getattr(config, name)):
                raise ConfigError(f"InferenceEngine: {name}={value} and another value in config; write it in config")
        return config
    try:
        return FleetConfig.model_validate(dict(given))
    except ValidationError as failure:
        first = failure.errors(include_url=False)[0]
        where = first["loc"][0]
        raise ConfigError(f"InferenceEngine: {where}={first['input']!r}: {first['msg']}") from None


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all calls, which run side by side; the first error ends the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
