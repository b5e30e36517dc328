"""Calibrates the engines of an experiment, one after the other, each with nothing beside it.

A model on several servers is measured on the first of them: a calibration is of one lane. Each sweep keeps another
number of requests in flight, and a step model is fitted to all of them.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner import __version__
from mac_runner.backends.base import Backend
from mac_runner.backends.factory import backend_on_fleet
from mac_runner.clock import Clock
from mac_runner.config import ModelDefinition, Written
from mac_runner.errors import ConfigError
from mac_runner.fleet.engine_process import EngineClient, EngineRefusedError
from mac_runner.fleet.gpus import Place, discover
from mac_runner.fleet.lane import no_events
from mac_runner.fleet.layout import FleetPlan
from mac_runner.fleet.supervisor import LocalFleet
from mac_runner.latency import Calibration, Calibrations
from mac_runner.planning.fit import SAMPLES_MIN, Stay, fit
from mac_runner.runs.engines import Engine, checkpoint_of, plan_engines, tensor_parallel_of
from mac_runner.runs.fleet import fleet_plan
from mac_runner.runs.setup import ExperimentSet, located
from mac_runner.types import FinishReason, JsonObject, Message, Prompt, Request, Sampling, Turn, stable_hash

SLOTS_MAX: Final = 256
"""The most requests that the last sweep keeps in flight where nobody asks for more."""
UNKNOWN: Final = "unknown"
"""The GPU of a server that does not say it."""
IN_FLIGHT: Final = (1, 4, 16)
"""How many requests are in flight, sweep by sweep; the last sweep has as many as the engine is to serve at once."""
SWEEP_S: Final = 5.0
"""How long each sweep sends requests; longer where too few of them were answered."""
_PROMPT_WORDS: Final = ((16, 64, 32), (1536, 768, 256))
"""Short prompts in the first half of a sweep and long ones in the second half: only so do the tokens of context that
are read differ from sweep to sweep in another way than the tokens that are decoded."""
_REPLY_TOKENS: Final = (16, 64, 32, 96)
_WORDS: Final = ("amber", "birch", "cedar", "delta", "ember", "frost", "grove", "heron")


class EngineName(NamedTuple):
    """What a calibration is of."""

    model: str
    gpu: str
    engine: str
    tensor_parallel_size: int = 1


async def calibrate(
    backend: Backend, clock: Clock, of: EngineName, *, slots: int, seconds: float = SWEEP_S
) -> Calibration:
    """Sweep a started engine that serves nothing else, and fit the step model. Raises BackendError and ConfigError."""
    levels = tuple(dict.fromkeys(min(level, slots) for level in (*IN_FLIGHT, slots)))
    share = math.ceil(SAMPLES_MIN / len(levels))
    stays = [stay for level in levels for stay in await sweep(backend, clock, level, seconds, share)]
    steps, error = fit(stays)
    return Calibration(
        **of._asdict(),
        cache_tokens=backend.token_budget,
        steps=steps,
        in_flight=levels,
        requests=len(stays),
        error=round(error, 4),
    )


async def sweep(backend: Backend, clock: Clock, in_flight: int, seconds: float, replies: int) -> list[Stay]:
    """Keep so many requests in flight for `seconds`, and until there are so many replies; what became of each."""
    begun_s, number, stays = clock.monotonic_s(), iter(range(1 << 30)), list[Stay]()
    words_max = max(*_PROMPT_WORDS[0], *_PROMPT_WORDS[1])

    async def client() -> None:
        nonlocal words_max
        while (sent_s := clock.monotonic_s()) < begun_s + seconds or len(stays) < replies:
            index = next(number)
            lengths = _PROMPT_WORDS[sent_s >= begun_s + seconds / 2]
            words = min(words_max, lengths[index % len(lengths)])
            request = _request(in_flight, index, words)
            reply = await backend.generate(request)
            if reply.finish_reason is FinishReason.OVERFLOW:
                if words <= 1:
                    raise ConfigError("calibration: the engine takes no prompt of one word; raise its context length")
                words_max = min(words_max, words // 2)
                continue
            if not reply.tokens.is_counted or not reply.tokens.completion:
                raise ConfigError("calibration: the engine does not count tokens; use one whose replies have `usage`")
            stays.append(
                Stay(
                    beside=in_flight,
                    sent_s=sent_s,
                    answered_s=clock.monotonic_s(),
                    prompt_tokens=reply.tokens.prompt,
                    read_tokens=reply.tokens.prompt - reply.tokens.cached,
                    completion_tokens=reply.tokens.completion,
                )
            )

    clients = [asyncio.ensure_future(client()) for _ in range(in_flight)]
    try:
        await asyncio.gather(*clients)
    finally:
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return stays


def _request(in_flight: int, index: int, words: int) -> Request:
    """A prompt that shares no beginning with any other, so that no part of it is in the cache."""
    number = stable_hash("calibration", in_flight, index)
    text = " ".join([str(number), *(_WORDS[(number >> (at % 60)) & 7] for at in range(words))])
    return Request(
        conversation=f"calibration {in_flight} {index}",
        turn=Turn(round=0, agent="calibration", model="", place=0),
        prompt=Prompt(messages=(Message(role="user", content=f"{text}\nContinue this list of words."),)),
        sampling=Sampling(max_tokens=_REPLY_TOKENS[index % len(_REPLY_TOKENS)], seed=number % (1 << 31)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """How engines are measured."""

    seconds: float = SWEEP_S
    """How long each sweep sends requests; longer where too few of them were answered."""
    in_flight: int | None = None
    """How many requests the last sweep keeps in flight; None: as many as the engine serves at once."""
    gpu: str | None = None
    """The name of the GPU, where it is not to be looked up."""

    def slots(self, capacity: int) -> int:
        """How many requests the last sweep keeps in flight on an engine that serves `capacity` at once."""
        return min(capacity, SLOTS_MAX) if self.in_flight is None else min(self.in_flight, capacity)


class _Ready(NamedTuple):
    """An engine that is up, and serves nothing."""

    name: str
    backend: Backend
    of: EngineName
    capacity: int


def server_experiment(base_url: str, model: str) -> Written:
    """The smallest experiment with a model behind a server."""
    settings: JsonObject = {"model": model, "base_urls": [base_url], "max_in_flight": SLOTS_MAX}
    value: JsonObject = {
        "experiment_metadata": {"experiment_name": "calibration"},
        "conversation_config": {"environment": "echo", "conversations": 1},
        "echo": {"rounds": 1},
        "model_definitions": {"server": {"backend": "openai", "openai_config": settings}},
        "agent_definitions": [{"agent_id": "one", "role": "participant", "model": "server"}],
    }
    return Written(value=value, base=Path(), name="--base-url")


async def calibrated(
    chosen: ExperimentSet, sweeps: Sweeps, *, clock: Clock, say: Callable[[str], None]
) -> AsyncGenerator[Calibration, None]:
    """The calibration of each engine of an experiment set, as it is measured. Raises BackendError and ConfigError."""
    engines = [*plan_engines(chosen.setups, chosen.setups, clock, say).engines.values()]
    measurable = [engine for engine in engines if engine.policy is None]
    if not measurable:
        raise ConfigError(
            f"{chosen.name}, profile {chosen.profile}: all models are scripted players, which take no time that could "
            "be measured; choose another --profile"
        )
    for engine in engines:
        if engine.policy is not None:
            say(f"{engine.name}: a scripted player, left out")
    plan = fleet_plan(chosen.setups, clock, say, is_dry=False)
    for engine in measurable:
        on_fleet = plan is not None and engine.is_on_fleet
        ready = _on_fleet(engine.name, plan, clock, say) if on_fleet and plan else _alone(engine, clock, say)
        async with ready as up:
            of = up.of if sweeps.gpu is None else up.of._replace(gpu=sweeps.gpu)
            if of.gpu == UNKNOWN:
                say(f"{up.name}: the server does not say its GPU; name it with --gpu, and other GPUs are kept apart")
            say(f"{up.name}: sending requests to {of.engine}")
            found = await calibrate(up.backend, clock, of, slots=sweeps.slots(up.capacity), seconds=sweeps.seconds)
        yield found


@asynccontextmanager
async def _on_fleet(name: str, plan: FleetPlan, clock: Clock, say: Callable[[str], None]) -> AsyncIterator[_Ready]:
    """One lane of a model of a fleet."""
    model = plan.models[name]
    lane = next(lane for lane in plan.lanes if lane.model == name)
    alone = replace(plan, models={name: model}, places=(lane.place,), lanes=(lane,), notes=())
    say(f"{name}: starting {lane.name} on {lane.place.label}")
    async with LocalFleet(alone, clock=clock, say=say, on_event=no_events) as fleet:
        backend = backend_on_fleet(name, model, fleet.model(name), clock=clock, say=say)
        try:
            await backend.start()
            is_nano = model.engine == "nano"
            engine = f"nano {__version__}" if is_nano else await _served_version(model.engine, lane.url)
            of = EngineName(model.model, _gpu(lane.place), engine, model.tensor_parallel_size)
            yield _Ready(name, backend, of, lane.slots)
        finally:
            await backend.close()


@asynccontextmanager
async def _alone(engine: Engine, clock: Clock, say: Callable[[str], None]) -> AsyncIterator[_Ready]:
    """One server of a model that is on no fleet."""
    definition = one_server(engine.definition)
    backend = replace(engine, definition=definition).build(clock, say, can_pull=False)
    try:
        with located(engine.loaded, ("model_definitions", engine.model)):
            await backend.start()
        settings = definition.backend_settings
        urls, parallel = getattr(settings, "base_urls", ()), tensor_parallel_of(definition)
        version = await _served_version(definition.backend, urls[0]) if urls else _version(definition)
        of = EngineName(checkpoint_of(engine.name, definition), _local_gpu(definition, parallel), version, parallel)
        yield _Ready(engine.name, backend, of, backend.capacity)
    finally:
        await backend.close()


def one_server(definition: ModelDefinition) -> ModelDefinition:
    """The same model on one of its servers."""
    settings, update = definition.backend_settings, dict[str, object]()
    if urls := getattr(settings, "base_urls", ()):
        update = {"base_urls": urls[:1], "max_in_flight": max(1, settings.max_in_flight // len(urls))}
    elif getattr(settings, "data_parallel_size", 1) > 1:
        update = {"data_parallel_size": 1}
    return definition.with_settings(settings.model_copy(update=update)) if update else definition


def written(known: Calibrations) -> bytes:
    """The content of a calibration file."""
    return (json.dumps(known.model_dump(mode="json"), indent=1) + "\n").encode()


def _gpu(place: Place) -> str:
    """The name of what the engine runs on, such as `2 x NVIDIA H100`; `none` without a GPU."""
    if not place.gpus:
        return "none"
    names = place.gpus[0].name if len(place.gpus) == 1 else f"{len(place.gpus)} x {place.gpus[0].name}"
    return names if place.slice is None else f"{names} {place.slice.profile}"


def _local_gpu(definition: ModelDefinition, count: int) -> str:
    """The name of what an engine in this process runs on."""
    if not definition.spec.holds_memory:
        return UNKNOWN
    gpus = discover()
    if not gpus:
        return "none"
    return gpus[0].name if count == 1 else f"{count} x {gpus[0].name}"


def _version(definition: ModelDefinition) -> str:
    """The engine in this process and its version, as its package says it."""
    if (backend := definition.backend) == "nano":
        return f"nano {__version__}"
    for package in definition.spec.packages if definition.spec.holds_memory else ():
        if package.startswith(backend):
            with suppress(metadata.PackageNotFoundError):
                return f"{backend} {metadata.version(package)}"
    return backend


async def _served_version(engine: str, url: str) -> str:
    """The engine and its version, as `/version` says it."""
    client = EngineClient()
    try:
        page = json.loads(await client.get(url.rstrip("/").removesuffix("/v1") + "/version"))
    except (EngineRefusedError, ValueError):
        return engine
    finally:
        await client.close()
    version = page.get("version") if isinstance(page, dict) else None
    return f"{engine} {version}" if isinstance(version, str) else engine
