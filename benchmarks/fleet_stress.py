"""Open-loop load on a fleet whose engines are killed and stopped: `python -m benchmarks.fleet_stress`.

Requests come at random moments, 1,000 a minute on average, whatever the engines do: 40 agents ask `InferenceEngine`
over eight stub processes of two slots each. One process gets SIGKILL after a quarter of the time and another one
SIGSTOP after half of it. Prints how many requests were answered, how long they took by the engine's own time, how late
the event loop was, and what was left. The line is one JSON row.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.machine import row
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.errors import BackendError
from mac_runner.fleet import InferenceEngine
from mac_runner.fleet.lane import LaneState
from mac_runner.spec import FleetConfig, ProbeConfig
from mac_runner.types import JsonObject
from tests.sim.engine_stub import command

AGENTS: Final = 40
RULES: Final = "<system>You are a Town-of-Salem AI. " + "Rules are rules. " * 40 + "</system>"
TICK_S: Final = 0.01
UP_S_MAX: Final = 600.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked of the fleet."""

    seconds: float = 120.0
    per_minute: float = 1000.0
    lanes: int = 8
    slots: int = 2
    latency_ms: float = 600.0
    stall_s: float = 5.0
    kills: bool = True
    """Whether one process is killed and another one stopped."""
    seed: int = 1


@dataclass(kw_only=True)
class Outcome:
    """What became of it."""

    sent: int = 0
    answered: int = 0
    distinct: int = 0
    """Different replies: the stub answers each request with a text of its own."""
    errors: list[str] = field(default_factory=list)
    p50_over_base: float = 0.0
    p95_over_base: float = 0.0
    p99_over_base: float = 0.0
    loop_lag_p99_ms: float = 0.0
    rss_quarter_mib: float = 0.0
    rss_end_mib: float = 0.0
    events: dict[str, int] = field(default_factory=dict)
    shutdown_s: float = 0.0
    tasks_left: int = 0
    processes_left: list[int] = field(default_factory=list)


async def stress(load: Load) -> Outcome:
    """Ask, break, count."""
    outcome, events, pids = Outcome(), Counter[str](), set[int]()
    up = asyncio.Event()

    def note(name: str, fields: JsonObject) -> None:
        events[name] += 1
        if name == "EVENT_LANE_UP":
            up.set()

    engine = InferenceEngine(
        config=FleetConfig(gpus=load.lanes, probe=ProbeConfig(stall_s=load.stall_s)),
        serve=lambda checkpoint: FleetModelConfig(
            model=checkpoint,
            engine="command",
            command=tuple(
                command(port="{port}", slots=load.slots, latency_ms=load.latency_ms, model="{model}", cache_tokens=9999)
            ),
            max_num_seqs=load.slots,
        ),
        on_event=note,
    )
    lags: list[float] = []
    ticker = asyncio.create_task(_tick(lags))
    async with engine:
        for number in range(AGENTS):
            await engine.register_agent(agent_id=f"agent {number}", model_ckpt="stub")
        await engine.start()
        await _all_up(engine, up, load.lanes)
        pids |= _pids(engine)
        breaking = asyncio.create_task(_break(engine, load.seconds, pids)) if load.kills else None
        took_s = await _ask(engine, load, outcome)
        if breaking is not None:
            await breaking
        pids |= _pids(engine)
        outcome.rss_end_mib = _rss_mib()
        begun_s = time.monotonic()
    outcome.shutdown_s = round(time.monotonic() - begun_s, 2)
    ticker.cancel()
    await asyncio.gather(ticker, return_exceptions=True)
    outcome.tasks_left = len(asyncio.all_tasks()) - 1
    outcome.processes_left = sorted(pid for pid in pids if _is_running(pid))
    outcome.events = dict(sorted(events.items()))
    base_s = load.latency_ms / 1000
    outcome.p50_over_base, outcome.p95_over_base, outcome.p99_over_base = (
        round(_quantile(took_s, share) / base_s, 3) for share in (0.5, 0.95, 0.99)
    )
    outcome.loop_lag_p99_ms = round(1000 * _quantile(lags, 0.99), 1)
    return outcome


async def _ask(engine: InferenceEngine, load: Load, outcome: Outcome) -> list[float]:
    """Send requests at random moments; how long each took from its sending."""
    random, calls, took_s = Random(load.seed), list[asyncio.Task[None]](), list[float]()
    begun_s, replies = time.monotonic(), set[str]()
    due_s = begun_s

    async def one(number: int) -> None:
        asked_s, prompt = time.monotonic(), f"{RULES}<user>Request {number}.</user>"
        try:
            reply = await engine.run(f"agent {random.randrange(AGENTS)}", prompt, step="act", max_tokens=64)
        except BackendError as fault:
            outcome.errors.append(str(fault))
            return
        took_s.append(time.monotonic() - asked_s)
        outcome.answered += 1
        replies.add(reply)

    while (due_s := due_s + random.expovariate(load.per_minute / 60)) < begun_s + load.seconds:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        calls.append(asyncio.create_task(one(outcome.sent)))
        outcome.sent += 1
        if not outcome.rss_quarter_mib and due_s > begun_s + load.seconds / 4:
            outcome.rss_quarter_mib = _rss_mib()
    await asyncio.gather(*calls)
    outcome.distinct = len(replies)
    return took_s


async def _break(engine: InferenceEngine, seconds: float, pids: set[int]) -> None:
    await asyncio.sleep(seconds / 4)
    os.kill(await _pid(engine, 1), signal.SIGKILL)
    await asyncio.sleep(seconds / 4)
    pids |= _pids(engine)
    os.kill(await _pid(engine, 2), signal.SIGSTOP)


async def _all_up(engine: InferenceEngine, up: asyncio.Event, lanes: int) -> None:
    async with asyncio.timeout(UP_S_MAX):
        while sum(lane.state is LaneState.UP for lane in engine.status()) < lanes:
            await up.wait()
            up.clear()


def _pids(engine: InferenceEngine) -> set[int]:
    return {lane.pid for lane in engine.status() if lane.pid is not None}


async def _pid(engine: InferenceEngine, at: int) -> int:
    """The process of a lane; on a busy machine it may just be starting again."""
    async with asyncio.timeout(UP_S_MAX):
        while (pid := engine.status()[at].pid) is None:  # noqa: ASYNC110 - a lane tells nobody of its process
            await asyncio.sleep(TICK_S)
    return pid


async def _tick(lags: list[float]) -> None:
    while True:
        due_s = time.monotonic() + TICK_S
        await asyncio.sleep(TICK_S)
        lags.append(max(0.0, time.monotonic() - due_s))


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)


def main() -> None:
    """Print the outcome as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=Load.seconds)
    parser.add_argument("--per-minute", type=float, default=Load.per_minute)
    parser.add_argument("--latency-ms", type=float, default=Load.latency_ms)
    parser.add_argument("--stall-s", type=float, default=Load.stall_s)
    parser.add_argument("--no-kills", action="store_true")
    asked = parser.parse_args()
    load = Load(
        seconds=asked.seconds,
        per_minute=asked.per_minute,
        latency_ms=asked.latency_ms,
        stall_s=asked.stall_s,
        kills=not asked.no_kills,
    )
    print(row(**asdict(load), **asdict(asyncio.run(stress(load)))))


if __name__ == "__main__":
    main()
