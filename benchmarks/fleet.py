"""What several servers cost and gain: a dead one, one that hangs, saturation, prefixes; ours, and routers in front.

python -m benchmarks.fleet                            # about two minutes
python -m benchmarks.fleet --router vllm-router=PATH --router sglang-router=PATH

The servers are processes that serve eight requests at once for 400 ms each and remember prefixes
(`tests.sim.engine_stub`). Conversations grow with each turn and begin with the same rules; two and a half of them are
open for each slot. What a request waits before it is sent is not in its latency: the scheduler's line and the data
plane's are for that. A router is the one server of the same client. PATH is its program; routers are not a dependency.

| figure | |
|---|---|
| p95 / base | 95th percentile of sending to reply, over 400 ms |
| line | the mean wait for a slot of a server, by its own account; it leaves out a busy machine's delays |
| hits | the share of prompt tokens that the servers had cached, by their own counters |
| noticed | from the signal until the server is set aside |
| errors | faults that the client saw after kill -9; each was sent again |
| lost | requests without a reply in the end |
| back | from when the server that was killed listens again until it has its first request |
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from unittest import mock

from benchmarks.machine import row
from mac_runner.backends.dialects.openai import OpenaiDialect
from mac_runner.backends.http.backend import HttpBackend
from mac_runner.backends.http.endpoints import Endpoint, Endpoints
from mac_runner.backends.openai import OpenaiConfig
from mac_runner.clock import SystemClock
from mac_runner.errors import TransientBackendError
from mac_runner.types import JsonObject, Message, Prompt, Request, Sampling, Turn
from tests.sim.engine_stub import Running, running

LATENCY_MS: Final = 400.0
RULES: Final = "These are the rules of the game. " * 180
TURN_CHARS: Final = 1200
ATTEMPTS_MAX: Final = 20


@dataclass(kw_only=True)
class Load:
    """Conversations that are played, and what came of their requests."""

    backend: HttpBackend
    turns: int
    took_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    errors: int = 0
    lost: int = 0
    begun_s: float = 0.0
    ended_s: float = 0.0

    async def play(self, conversations: int) -> None:
        """Play them all, with as many requests departed as the backend takes."""
        departing = asyncio.Semaphore(self.backend.capacity + self.backend.lookahead)
        self.begun_s = time.monotonic()
        await asyncio.gather(*(self._conversation(f"c-{number:04d}", departing) for number in range(conversations)))
        self.ended_s = time.monotonic()

    async def _conversation(self, name: str, departing: asyncio.Semaphore) -> None:
        for place in range(self.turns):
            async with departing:
                await self._ask(request_of(name, place))

    async def _ask(self, request: Request) -> None:
        since_s = time.monotonic()
        for _ in range(ATTEMPTS_MAX):
            sent_s = time.monotonic()
            try:
                reply = await self.backend.generate(request)
            except TransientBackendError as fault:
                self.errors += 1
                if not fault.goes_elsewhere:
                    await asyncio.sleep(0.5)
                continue
            now_s = time.monotonic()
            self.took_s.append(now_s - sent_s - reply.timing.queue_s)
            self.waited_s.append(now_s - since_s - reply.timing.queue_s)
            return
        self.lost += 1

    @property
    def p95(self) -> float:
        """Over the bare latency."""
        return sorted(self.took_s)[int(0.95 * len(self.took_s))] / (LATENCY_MS / 1e3)

    @property
    def per_s(self) -> float:
        """Replies a second."""
        return len(self.took_s) / (self.ended_s - self.begun_s)


def request_of(conversation: str, place: int) -> Request:
    """The rules, and what was said so far."""
    said = "".join(f"{conversation} {number} ".ljust(TURN_CHARS, "w") for number in range(place + 1))
    prompt = Prompt(messages=(Message(role="system", content=RULES), Message(role="user", content=said)))
    turn = Turn(round=place, agent="a", model="m", place=0)
    return Request(conversation=conversation, turn=turn, prompt=prompt, sampling=Sampling(seed=1))


def backend_for(urls: Sequence[str], *, in_flight: int, stall_s: float, say: Callable[[str], None]) -> HttpBackend:
    """A backend that is not started."""
    config = OpenaiConfig(model="stub", base_urls=tuple(urls), max_in_flight=in_flight, stall_s=stall_s)
    return HttpBackend("m", OpenaiDialect(config, has_tokens=False), key=None, clock=SystemClock(), say=say)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """How much is measured."""

    servers: int
    slots: int
    turns: int
    stall_s: float

    @property
    def conversations(self) -> int:
        """Those that are open."""
        return self.servers * self.slots * 5 // 2

    @contextmanager
    def engines(self) -> Iterator[list[Running]]:
        """The servers, with nothing cached."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(running(slots=self.slots, latency_ms=LATENCY_MS, cache_tokens=4_000_000))
                for _ in range(self.servers)
            ]

    def play(
        self, urls: Sequence[str], during: Callable[[Load, list[str]], Coroutine[None, None, None]] | None = None
    ) -> tuple[Load, list[str]]:
        """One load over `urls`, and the lines that were said."""
        said: list[str] = []

        async def main() -> Load:
            backend = backend_for(
                urls,
                in_flight=self.servers * self.slots,
                stall_s=self.stall_s,
                say=lambda line: said.append(f"{time.monotonic()} {line}"),
            )
            await backend.start()
            load = Load(backend=backend, turns=self.turns)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(load.play(self.conversations))
                    if during is not None:
                        group.create_task(during(load, said))
            finally:
                await backend.close()
            return load

        return asyncio.run(main()), said


def hits(engines: Sequence[Running]) -> float:
    """The share of prompt tokens that were cached."""
    found = {"hits": 0.0, "queries": 0.0}
    for engine in engines:
        page = urllib.request.urlopen(engine.url.removesuffix("/v1") + "/metrics", timeout=10).read().decode()
        for name in found:
            found[name] += float(re.findall(rf"^vllm:prefix_cache_{name}_total\S* (\S+)$", page, re.MULTILINE)[0])
    return found["hits"] / found["queries"]


def account_of(engine: Running) -> dict[str, float]:
    """What it says of its requests."""
    with urllib.request.urlopen(f"{engine.url}/account", timeout=10) as answer:
        return {name: float(value) for name, value in json.load(answer).items()}


def requests_at(engine: Running) -> int:
    """How many completions it has finished."""
    return int(account_of(engine)["requests"])


def line_ms(engines: Sequence[Running]) -> float:
    """How long a request waited for a slot of its server, by the servers' own account."""
    found = [account_of(engine) for engine in engines]
    return 1e3 * sum(one["waited_s"] for one in found) / sum(one["requests"] for one in found)


def figures_of(load: Load, engines: Sequence[Running]) -> JsonObject:
    """Those of a saturated play."""
    return {"p95/base": load.p95, "line ms": line_ms(engines), "req/s": load.per_s, "hits": hits(engines)}


_turn = iter(range(1 << 62))


def _round_robin(self: Endpoints, _conversation: str, _request_id: str = "", _now_s: float = 0.0) -> Endpoint | None:
    return self.all[next(_turn) % len(self.all)]


def _homes(self: Endpoints, conversation: str, _request_id: str = "", _now_s: float = 0.0) -> Endpoint | None:
    home = self.home_of(conversation)
    return home if home is not None and home.is_open else self._least(self._open)


POLICIES: Final = {"ours": None, "homes alone": _homes, "round robin": _round_robin}


def saturated(bench: Bench, policy: str) -> JsonObject:
    """p95, throughput and hits of a way to choose servers."""
    with bench.engines() as engines, ExitStack() as stack:
        peek = POLICIES[policy]
        if peek is not None:
            stack.enter_context(mock.patch.object(Endpoints, "peek", peek))
            stack.enter_context(mock.patch.object(Endpoint, "has_free_slot", new=True))
            stack.enter_context(mock.patch.object(Endpoints, "lookahead", 0))
        load, _ = bench.play([engine.url for engine in engines])
        return figures_of(load, engines)


def killed(bench: Bench, *, is_reported: bool) -> JsonObject:
    """kill -9 in mid-run, and the same server again on its port three seconds later, reported up as a fleet does."""
    figures: JsonObject = {}
    with bench.engines() as engines, ExitStack() as stack:

        async def during(load: Load, said: list[str]) -> None:
            await asyncio.sleep(1.5)
            figures["noticed ms"] = 1e3 * await noticed_s(engines[0], signal.SIGKILL, said)
            await asyncio.sleep(3.0)
            report = partial(load.backend.report_up, engines[0].url) if is_reported else None
            figures["back s"] = await readmission_s(stack, bench, engines[0], report)

        load, _ = replace(bench, turns=2 * bench.turns).play([engine.url for engine in engines], during)
    return figures | {"errors": load.errors, "lost": load.lost, "longest s": max(load.waited_s)}


def hung(bench: Bench) -> JsonObject:
    """SIGSTOP in mid-run."""
    figures: JsonObject = {}
    turns = int((bench.stall_s + 20) / (LATENCY_MS / 1e3) / 2.5) + 1
    with bench.engines() as engines:

        async def during(_load: Load, said: list[str]) -> None:
            await asyncio.sleep(1.5)
            figures["noticed s"] = await noticed_s(engines[0], signal.SIGSTOP, said)

        load, _ = replace(bench, turns=turns).play([engine.url for engine in engines], during)
    return figures | {"errors": load.errors, "lost": load.lost, "longest s": max(load.waited_s)}


async def noticed_s(engine: Running, number: signal.Signals, said: list[str]) -> float:
    """How long it takes until the server is set aside."""
    engine.process.send_signal(number)
    since_s = time.monotonic()
    while True:
        for line in said:
            if "is set aside" in line and engine.url in line:
                return float(line.split()[0]) - since_s
        await asyncio.sleep(0.002)


async def readmission_s(
    stack: ExitStack, bench: Bench, engine: Running, report: Callable[[], None] | None = None
) -> float:
    """How long a server that listens again on its port waits for its first request."""
    port = int(engine.url.split(":")[2].removesuffix("/v1"))
    again = await asyncio.to_thread(stack.enter_context, running(slots=bench.slots, latency_ms=20.0, port=port))
    since_s = time.monotonic()
    if report is not None:
        report()
    while not await asyncio.to_thread(requests_at, again):
        await asyncio.sleep(0.005)
        if time.monotonic() - since_s > 30:
            return float("inf")
    return time.monotonic() - since_s


@contextmanager
def router(name: str, program: str, engines: Sequence[Running]) -> Iterator[str]:
    """A router in front of the servers; its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    urls = [engine.url.removesuffix("/v1") for engine in engines]
    command = [*program.split(), "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2).read()
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode}") from None
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def routed(bench: Bench, name: str, program: str) -> JsonObject:
    """The same through a router: saturation, and then a kill -9 with the server back after three seconds."""
    with bench.engines() as engines, router(name, program, engines) as url:
        load, _ = bench.play([url])
        figures = figures_of(load, engines)
    with bench.engines() as engines, router(name, program, engines) as url, ExitStack() as stack:

        async def during(_load: Load, _said: list[str]) -> None:
            await asyncio.sleep(1.5)
            engines[0].process.kill()
            await asyncio.sleep(3.0)
            figures["back s"] = await readmission_s(stack, bench, engines[0])

        load, _ = replace(bench, turns=2 * bench.turns).play([url], during)
    return figures | {"errors": load.errors, "lost": load.lost, "longest s": max(load.waited_s)}


def show(name: str, figures: JsonObject) -> JsonObject:
    """Print a line of the table."""
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in figures.items()}
    sys.stdout.write(f"{name:24} " + "  ".join(f"{key} {value}" for key, value in rounded.items()) + "\n")
    sys.stdout.flush()
    return {name: rounded}


def main() -> None:
    """Measure, and print a line for each scene."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--stall-s", type=float, default=30.0)
    parser.add_argument("--router", action="append", default=[], metavar="NAME=PROGRAM")
    parser.add_argument("--skip-ours", action="store_true")
    asked = parser.parse_args()
    bench = Bench(servers=asked.servers, slots=asked.slots, turns=asked.turns, stall_s=asked.stall_s)
    figures: JsonObject = {}
    if not asked.skip_ours:
        for policy in POLICIES:
            figures |= show(policy, saturated(bench, policy))
        figures |= show("ours, kill -9", killed(bench, is_reported=False))
        figures |= show("ours, kill -9, reported", killed(bench, is_reported=True))
        figures |= show("ours, SIGSTOP", hung(bench))
    for one in asked.router:
        name, _, program = one.partition("=")
        figures |= show(name, routed(bench, name, program))
    sys.stdout.write(row(**figures) + "\n")


if __name__ == "__main__":
    main()
