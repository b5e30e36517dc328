"""An inference engine in a process of its own, without a model: `python -m tests.sim.engine_stub --port 8000`.

It serves the OpenAI protocol like `OpenaiServer`: so many slots, a line behind them, a fixed time for each request, and
a text that depends on the request alone. In addition it counts tokens under `/metrics` as vLLM does, and with
`--cache-tokens` it remembers the prefixes of prompts, reports `cached_tokens`, and takes `--prefill-ms` for a thousand
tokens that it does not remember. Its first line of output is its port, printed when it listens.

SIGUSR1 wedges its engine: connections and pages are served, and no completion comes. A second SIGUSR1
lets it go on. SIGSTOP and SIGKILL are for the whole process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Final

from mac_runner.types import JsonObject
from tests.sim.behaviour import Behaviour, Received, Say, Send, echo
from tests.sim.openai_server import Connection, OpenaiServer, listening

BLOCK_CHARS: Final = 64
CHARS_PER_TOKEN: Final = 4
_BLOCK_TOKENS: Final = BLOCK_CHARS // CHARS_PER_TOKEN
_PAGE: Final = """\
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{{model_name="{model}"}} {prompt}
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{{model_name="{model}"}} {cached}
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{{model_name="{model}"}} {prompt}
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{model_name="{model}"}} {completion}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="{model}"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="{model}"}} {waiting}
"""


class PrefixCache:
    """Blocks of prompts, the least recently used forgotten first."""

    def __init__(self, tokens: int) -> None:
        self._blocks_max = tokens // _BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, text: str) -> int:
        """How many tokens at the beginning of `text` were known; now all of its whole blocks are."""
        known, is_known, chain = 0, True, 0
        for at in range(0, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
            chain = hash((chain, text[at : at + BLOCK_CHARS]))
            is_known = is_known and chain in self._blocks
            known += is_known
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return known * _BLOCK_TOKENS


def text_of(body: JsonObject) -> str:
    """The prompt of a request as one text."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return str(body.get("prompt", ""))
    return "\n".join(f"{one.get('role')}: {one.get('content')}" for one in messages if isinstance(one, dict))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The flags of the program."""

    port: int = 0
    """0: any free one."""
    slots: int = 8
    latency_ms: float = 20.0
    """From its slot to its reply."""
    model: str = "stub"
    tokens: int = 64
    """Of a reply, in its usage and in the counters."""
    cache_tokens: int = 0
    """How much of past prompts is remembered."""
    prefill_ms: float = 0.0
    """For 1,000 tokens that are not remembered."""
    start_s: float = 0.0
    """How long it takes until it listens."""
    orders: str = ""
    """A folder: no reply while `hold` is in it; the engine that takes the file `30` dies in place of its 30th reply."""


class EngineStub(OpenaiServer):
    """A server with token counters and, if it has room for tokens, a prefix cache."""

    def __init__(self, asked: Settings) -> None:
        super().__init__(
            slots=asked.slots,
            models=(asked.model,),
            script=self._answer,
            page=self._look,
            keeps=False,
            port=asked.port,
        )
        self._reply_s = asked.latency_ms / 1e3
        self._tokens = asked.tokens
        self._cache = PrefixCache(asked.cache_tokens)
        self._prefill_s = asked.prefill_ms / 1e6
        self._served: dict[int, _Served] = {}
        self._held: list[Callable[[], None]] = []
        self._wedged_at_s: float | None = None
        self._orders = Path(asked.orders) if asked.orders else None
        self._answered = 0
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0

    def wedge(self) -> None:
        """Give no completion any more, or go on where it stopped."""
        loop = asyncio.get_running_loop()
        if self._wedged_at_s is None:
            self._wedged_at_s = loop.time()
            _say("wedged")
            return
        self._wedged_at_s = None
        held, self._held = self._held, []
        for finish in held:
            finish()

    def _answer(self, received: Received) -> Behaviour:
        text = text_of(received.json)
        prompt = max(1, len(text) // CHARS_PER_TOKEN)
        cached = self._cache.take(text)
        if self._wedged_at_s is None:
            self.prompt_tokens += prompt
            self.cached_tokens += cached
        tokens = 1 if received.is_canary else self._tokens
        latency_s = self._reply_s * tokens / self._tokens + self._prefill_s * (prompt - cached)
        return replace(echo(received), latency_s=latency_s, usage=(prompt, cached, tokens))

    def _look(self, received: Received) -> Send | None:
        if not received.path.endswith("/metrics"):
            return None
        now_s = self._wedged_at_s or asyncio.get_running_loop().time()
        page = _PAGE.format(
            model=self.models[0],
            prompt=self.prompt_tokens,
            cached=self.cached_tokens,
            completion=self.completion_tokens + sum(one.tokens_at(now_s) for one in self._served.values()),
            running=self.account.in_use,
            waiting=len(self.waiting),
        )
        return Send(200, page.encode(), (("X-Format", "prometheus"),))

    def _serve(
        self, connection: Connection, behaviour: Behaviour, received: Received, loop: asyncio.AbstractEventLoop
    ) -> None:
        if isinstance(behaviour, Say) and behaviour.usage is not None:
            self._served[id(received)] = _Served(loop.time(), behaviour.latency_s or 0.0, behaviour.usage[2])
        super()._serve(connection, behaviour, received, loop)

    def _finish(self, connection: Connection, behaviour: Behaviour, received: Received) -> None:
        if self._wedged_at_s is not None:
            self._held.append(partial(self._finish, connection, behaviour, received))
            return
        if self._orders is not None and not received.is_canary:
            if (self._orders / "hold").exists():
                asyncio.get_running_loop().call_later(0.01, self._finish, connection, behaviour, received)
                return
            self._answered += 1
            self._die_if_ordered(self._orders / str(self._answered))
        served = self._served.pop(id(received), None)
        self.completion_tokens += served.tokens if served is not None else 0
        super()._finish(connection, behaviour, received)

    def _die_if_ordered(self, order: Path) -> None:
        """Die of the first of several engines that has answered so often."""
        with suppress(FileNotFoundError):
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Served:
    """A request in a slot: its tokens come evenly."""

    since_s: float
    takes_s: float
    tokens: int

    def tokens_at(self, now_s: float) -> int:
        share = (now_s - self.since_s) / self.takes_s if self.takes_s else 1.0
        return min(self.tokens, max(0, int(self.tokens * share)))


def command(**flags: object) -> list[str]:
    """The command line that runs one with these flags; `port` may be a placeholder such as `{port}`."""
    words = (f"--{name.replace('_', '-')}={value}" for name, value in flags.items())
    return [sys.executable, "-m", "tests.sim.engine_stub", *words]


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that listens."""

    process: subprocess.Popen[str]
    url: str
    """Its base URL."""

    def wait_until_wedged(self) -> None:
        """Block until it has taken SIGUSR1; its second line says so."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "wedged"


@contextmanager
def running(**flags: object) -> Iterator[Running]:
    """An engine in a process of its own, killed at the end."""
    with listening(command(**flags)) as (process, url):
        yield Running(process, url)


async def _run(server: EngineStub, start_s: float) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, server.wedge)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    try:
        await asyncio.wait_for(over.wait(), start_s)
    except TimeoutError:
        async with server:
            _say(str(server.port))
            await over.wait()
    # It may be asked to end twice. The loop would complain of a signal that comes while it closes.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in fields(Settings):
        parser.add_argument(f"--{flag.name.replace('_', '-')}", type=type(flag.default), default=flag.default)
    asked = Settings(**vars(parser.parse_args()))
    asyncio.run(_run(EngineStub(asked), asked.start_s))


if __name__ == "__main__":
    main()
