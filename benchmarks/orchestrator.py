"""How much of an engine's time does a run lose? The complete path against a server that only counts.

Run `python benchmarks/orchestrator.py --conversations 500 --slots 64 --latency-ms 50`. A stub server with a fixed
latency and so many slots runs in a process of its own and keeps account of their use. This process plays discussions of
three agents over three rounds against it, as `mac-run` does: experiment file, run directory with journal and
transcripts, scheduler, backend. For comparison a bare aiohttp client sends as many requests, all known beforehand, and
keeps none of the replies, and the backend alone is run with many in flight. The last line is one JSON row.

Like any inference server, the stub queues what it cannot serve yet, and both clients keep a few requests more
in flight than it has slots: a slot that becomes free then waits for no round trip.

Targets: slot_utilisation at least 0.95, wall_over_bound at most 1.05, backend_cpu_ms_per_request at most 0.5. The
server measures the first two: the wall time goes from its first request to its last reply; the bound is the longer of
the critical path and the work divided by the slots, both at the nominal latency. Opening and closing the run directory
is in `command_s` and in the CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
if str(ROOT) not in sys.path:  # Run as a script, only the directory of the script is on it.
    sys.path.insert(0, str(ROOT))

import aiohttp  # noqa: E402
import yaml  # noqa: E402

from benchmarks.machine import row  # noqa: E402
from mac_runner.backends.dialects.openai import OpenaiDialect  # noqa: E402
from mac_runner.backends.http.backend import HttpBackend  # noqa: E402
from mac_runner.backends.openai import OpenaiConfig  # noqa: E402
from mac_runner.cli.play import Run  # noqa: E402
from mac_runner.clock import SystemClock  # noqa: E402
from mac_runner.types import JsonObject, Message, Prompt, Request, Sampling, Turn  # noqa: E402

AGENTS: Final = 3
ROUNDS: Final = 3
IN_FLIGHT: Final = 256
SLOTS_PER_WAITING: Final = 4
"""One more request is in flight for so many slots of the server."""
PROMPT: Final = (Message(role="system", content="y" * 400), Message(role="user", content="x" * 1200))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one client measured, and the server's account."""

    wall_s: float
    cpu_s: float
    account: Mapping[str, float]

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds of the client per request."""
        return 1000 * self.cpu_s / self.account["requests"]


@contextmanager
def server(slots: int, latency_ms: float) -> Iterator[str]:
    """The base URL of a stub server in a process of its own."""
    command = [sys.executable, "-m", "tests.sim.openai_server", "--slots", str(slots), "--latency-ms", str(latency_ms)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


def measured(url: str, work: Callable[[], object]) -> Measured:
    """Do `work` against the server at `url`, and measure both sides."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    work()
    wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    with urllib.request.urlopen(f"{url}/account") as page:
        return Measured(wall_s=wall_s, cpu_s=cpu_s, account=json.load(page))


def complete_path(conversations: int, slots: int, latency_ms: float) -> Measured:
    """The experiment, from its file to its run directory."""
    with server(slots, latency_ms) as url, tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "orchestrator.yaml"
        file.write_text(yaml.safe_dump(experiment(url, conversations, slots)))
        found = measured(url, Run(file=file, out=Path(directory) / "run", quiet=True).work)
        assert found.account["requests"] == conversations * AGENTS * ROUNDS
        return found


def experiment(url: str, conversations: int, slots: int) -> JsonObject:
    """The experiment file."""
    agents: list[JsonObject] = [
        {"agent_id": f"agent_{n}", "role": "participant", "model": "stub"} for n in range(AGENTS)
    ]
    return {
        "experiment_metadata": {"experiment_name": "orchestrator"},
        "conversation_config": {"environment": "discussion", "conversations": conversations},
        "discussion": {"topics": ["Bridge or ferry?"], "max_rounds": ROUNDS},
        "agent_definitions": [*agents],
        "model_definitions": {
            "stub": {
                "backend": "openai",
                "openai_config": {"model": "stub", "base_urls": [url], "max_in_flight": in_flight(slots)},
            }
        },
    }


def in_flight(slots: int) -> int:
    """How many requests keep a server of so many slots busy."""
    return slots + slots // SLOTS_PER_WAITING


def bare_client(requests: int, slots: int, latency_ms: float) -> Measured:
    """The yardstick: requests that are all known beforehand, their replies parsed and dropped."""
    body = {"model": "stub", "messages": [{"role": m.role, "content": m.content} for m in PROMPT], "seed": 1}

    async def program(url: str) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def ask(number: int) -> None:
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    await response.json()

            await in_parallel(requests, in_flight(slots), ask)

    with server(slots, latency_ms) as url:
        return measured(url, lambda: asyncio.run(program(url)))


def backend_alone(requests: int, latency_ms: float) -> Measured:
    """The backend without scheduler and store, with IN_FLIGHT requests in flight."""

    async def program(url: str) -> None:
        config = OpenaiConfig(model="stub", base_urls=(url,), max_in_flight=IN_FLIGHT)
        backend = HttpBackend("stub", OpenaiDialect(config, has_tokens=False), key=None, clock=SystemClock(), say=print)
        await backend.start()

        async def ask(number: int) -> None:
            await backend.generate(request(number))

        await in_parallel(requests, IN_FLIGHT, ask)
        await backend.close()

    with server(IN_FLIGHT, latency_ms) as url:
        return measured(url, lambda: asyncio.run(program(url)))


def request(number: int) -> Request:
    """Any request."""
    turn = Turn(round=number, agent="a", model="stub", place=0)
    return Request(
        conversation=f"c-{number % 500}", turn=turn, prompt=Prompt(messages=PROMPT), sampling=Sampling(seed=number)
    )


async def in_parallel(requests: int, workers: int, ask: Callable[[int], Awaitable[None]]) -> None:
    """Ask `requests` times, with `workers` concurrent workers."""
    numbers = iter(range(requests))

    async def work() -> None:
        for number in numbers:
            await ask(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


def table(runs: Mapping[str, Measured], bounds_s: Mapping[str, float]) -> str:
    """The runs side by side."""
    head = ("", "requests", "wall s", "bound s", "wall/bound", "utilisation", "engine ms", "client CPU ms")
    lines = [head]
    for name, found in runs.items():
        account = found.account
        lines.append(
            (
                name,
                f"{account['requests']:.0f}",
                f"{account['span_s']:.2f}",
                f"{bounds_s[name]:.2f}",
                f"{account['span_s'] / bounds_s[name]:.3f}",
                f"{account['slot_utilisation']:.3f}",
                f"{1000 * account['busy_slot_s'] / account['requests']:.2f}",
                f"{found.cpu_ms:.3f}",
            )
        )
    return "\n".join(
        "".join(f"{cell:<16}" if not n else f"{cell:>14}" for n, cell in enumerate(line)) for line in lines
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    asked = parser.parse_args()
    requests, latency_s = asked.conversations * AGENTS * ROUNDS, asked.latency_ms / 1000
    runs = {
        "complete path": complete_path(asked.conversations, asked.slots, asked.latency_ms),
        "bare aiohttp": bare_client(requests, asked.slots, asked.latency_ms),
        "backend alone": backend_alone(requests, asked.latency_ms),
    }
    bounds_s = {
        "complete path": latency_s * max(ROUNDS, requests / asked.slots),
        "bare aiohttp": latency_s * requests / asked.slots,
        "backend alone": latency_s * requests / IN_FLIGHT,
    }
    whole, bare, backend = runs.values()
    print(table(runs, bounds_s))
    print(
        row(
            benchmark="orchestrator",
            conversations=asked.conversations,
            slots=asked.slots,
            in_flight=in_flight(asked.slots),
            latency_ms=asked.latency_ms,
            slot_utilisation=round(whole.account["slot_utilisation"], 4),
            wall_over_bound=round(whole.account["span_s"] / bounds_s["complete path"], 4),
            client_cpu_ms_per_request=round(whole.cpu_ms, 3),
            bare_slot_utilisation=round(bare.account["slot_utilisation"], 4),
            bare_wall_over_bound=round(bare.account["span_s"] / bounds_s["bare aiohttp"], 4),
            bare_cpu_ms_per_request=round(bare.cpu_ms, 3),
            backend_in_flight=IN_FLIGHT,
            backend_cpu_ms_per_request=round(backend.cpu_ms, 3),
            command_s=round(whole.wall_s, 3),
        )
    )


if __name__ == "__main__":
    main()
