"""Calibrates the engines of an experiment, one after the other, each with nothing beside it.

A model on several servers is measured on the first of them: a calibration is of one lane. Each sweep keeps another
number of requests in flight, and a step model is fitted to all of them.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner import __version__
from mac_runner.backends.base import Backend
from mac_runner.backends.factory import backend_on_fleet
from mac_runner.backends.http.client import beside_v1
from mac_runner.clock import Clock
from mac_runner.config import Written
from mac_runner.errors import ConfigError
from mac_runner.fleet.engine_process import EngineClient, EngineRefusedError
from mac_runner.fleet.gpus import Place, discover
from mac_runner.fleet.lane import no_events
from mac_runner.fleet.layout import FleetPlan, local_plan
from mac_runner.fleet.supervisor import LocalFleet
from mac_runner.latency import Calibration, Calibrations
from mac_runner.planning.fit import SAMPLES_MIN, Stay, fit
from mac_runner.runs.engines import Engine, plan_engines
from mac_runner.runs.fleet import plan_fleet
from mac_runner.runs.setup import ExperimentSet, located
from mac_runner.spec import MODELS
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
    steps, error = fit("calibration", stays)
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
    begun_s, number, stays = clock.monotonic_s(), count(), list[Stay]()
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
    """How many requests the last sweep keeps in flight; None: as many as the engine serves, at most SLOTS_MAX."""
    gpu: str | None = None
    """The name of the GPU, where it is not to be looked up."""


def server_experiment(base_url: str, model: str) -> Written:
    """The smallest experiment with a model behind a server."""
    settings: JsonObject = {"model": model, "base_urls": [base_url], "max_in_flight": SLOTS_MAX}
    value: JsonObject = {
        "name": "calibration",
        "environment": "echo",
        "conversations": 1,
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
    fleet = plan_fleet(chosen.setups, engines, local_plan)
    for engine in measurable:
        async with _started(engine, fleet, clock, say) as (backend, of):
            if sweeps.gpu is not None:
                of = of._replace(gpu=sweeps.gpu)
            elif of.gpu == UNKNOWN:
                say(
                    f"{engine.name}: the server does not say its GPU; name it with --gpu, and other GPUs are kept apart"
                )
            say(f"{engine.name}: sending requests to {of.engine}")
            slots = min(sweeps.in_flight or SLOTS_MAX, backend.capacity)
            found = await calibrate(backend, clock, of, slots=slots, seconds=sweeps.seconds)
        yield found


@asynccontextmanager
async def _started(
    engine: Engine, planned: FleetPlan | None, clock: Clock, say: Callable[[str], None]
) -> AsyncIterator[tuple[Backend, EngineName]]:
    """One server of a model, up and serving nothing."""
    name, serving = engine.name, engine.definition.serving
    definition = engine.definition.with_settings(
        engine.definition.backend_settings.model_copy(update=dict(serving.alone))
    )
    gpu, kind, url = UNKNOWN, definition.backend, serving.url
    async with AsyncExitStack() as stack:
        if planned is not None and engine.is_on_fleet:
            model = planned.models[name]
            lane = next(lane for lane in planned.lanes if lane.model == name)
            alone = replace(planned, models={name: model}, places=(lane.place,), lanes=(lane,), notes=())
            say(f"{name}: starting {lane.name} on {lane.place.label}")
            fleet = await stack.enter_async_context(LocalFleet(alone, clock=clock, say=say, on_event=no_events))
            backend = backend_on_fleet(name, model, fleet.model(name), clock=clock, say=say)
            gpu, kind, url = _gpu_of(lane.place), str(model.engine), lane.url
        else:
            backend = replace(engine, definition=definition).build(clock, say, can_pull=False)
            if definition.spec.holds_memory:
                gpu = _counted([gpu.name for gpu in discover() or ()][:1] * serving.gpus)
        stack.push_async_callback(backend.close)
        with located(engine.loaded, (MODELS, engine.model)):
            await backend.start()
        version = await _version(kind, url, definition.spec.packages if definition.spec.holds_memory else ())
        yield backend, EngineName(serving.model or name, gpu, version, serving.gpus)


def written(known: Calibrations) -> bytes:
    """The content of a calibration file."""
    return (json.dumps(known.model_dump(mode="json"), indent=1) + "\n").encode()


def _gpu_of(place: Place) -> str:
    """The name of what a lane runs on, such as `2 x NVIDIA H100`."""
    names = _counted([gpu.name for gpu in place.gpus])
    return names if place.slice is None else f"{names} {place.slice.profile}"


def _counted(names: list[str]) -> str:
    if not names:
        return "none"
    return names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"


async def _version(engine: str, url: str | None, packages: Sequence[str]) -> str:
    """The engine and its version: as its server says it at `/version`, or its package."""
    if engine == "nano":
        return f"nano {__version__}"
    if url is not None:
        client = EngineClient()
        try:
            page = json.loads(await client.get(beside_v1(url, "/version")))
        except (EngineRefusedError, ValueError):
            return engine
        finally:
            await client.close()
        version = page.get("version") if isinstance(page, dict) else None
        return f"{engine} {version}" if isinstance(version, str) else engine
    for package in packages:
        if package.startswith(engine):
            with suppress(metadata.PackageNotFoundError):
                return f"{engine} {metadata.version(package)}"
    return engine
