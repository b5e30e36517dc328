"""The engine of one lane: its process and what is said to it over HTTP. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock
from mac_runner.fleet.launch import Launch
from mac_runner.fleet.model import LaneSpec
from mac_runner.fleet.ports import LoopbackPorts
from mac_runner.fleet.probe import EngineClient, EngineRefusedError, Rate, Tokens
from mac_runner.fleet.process import LaneProcess
from mac_runner.types import JsonObject, JsonValue

STOP_GRACE_S: Final = 5.0
"""From SIGTERM to SIGKILL."""
READY_LOOK_S: Final = 5.0
"""How long one look at an engine that starts may take."""
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Between two looks at an engine that starts; the last one again and again."""
_SLEEP_TRIES: Final = 5
SAMPLES_MAX: Final = 16
"""How many first prompts the common prefix is found from."""
_ABOUT_THE_REQUEST: Final = frozenset({400, 404, 413, 422})


class EngineFailedError(Exception):
    """The engine could not do what it was asked to; the text says why."""


@dataclass(frozen=True, slots=True)
class End:
    """How an engine ended."""

    why: str
    was_killed: bool
    """Whether another process killed it."""


class CommonPrefix:
    """What the system messages of a model's prompts begin with, found from the first of them."""

    def __init__(self) -> None:
        self.text: str | None = None
        """None before the first message."""
        self._samples = 0

    def see(self, system: str) -> None:
        """Take a system message; later ones than the first SAMPLES_MAX change nothing."""
        if self._samples >= SAMPLES_MAX:
            return
        self._samples += 1
        self.text = system if self.text is None else commonprefix((self.text, system))  # noqa: RUF071 - of texts


class LaneEngine:
    """One engine, started as often as its lane is."""

    def __init__(
        self,
        spec: LaneSpec,
        launch: Launch,
        log: Path,
        client: EngineClient,
        clock: Clock,
        *,
        without: Collection[str] = (),
    ) -> None:
        """The engine gets the variables of this process but for those named `without`."""
        self.spec = spec
        self._without = without
        self.log = log
        self.tokens: Tokens | None = None
        """The latest counters; None for an engine that has none, or that was not looked at."""
        self.in_flight: int | None = None
        """What it says about requests that it works on; None where it says nothing."""
        self._rate = Rate()
        self._launch = launch
        self._client = client
        self._clock = clock
        self._process: LaneProcess | None = None
        self._model = spec.checkpoint
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The engine's process; None while it has none."""
        return None if self._process is None else self._process.pid

    @property
    def tokens_per_s(self) -> float | None:
        """Between the latest two looks."""
        return self._rate.per_s

    async def start(self) -> None:
        """Start the process. Raises EngineFailedError."""
        if not LoopbackPorts().is_free(self.spec.port):
            # Who listens there would pass for this engine.
            raise EngineFailedError(f"port {self.spec.port} of 127.0.0.1 is in use by another process")
        self.tokens = self.in_flight = None
        async with self._starting:
            try:
                self._process = await LaneProcess.start(
                    self._launch.argv, self._launch.environment, self.log, without=self._without
                )
            except OSError as fault:
                raise EngineFailedError(f"no process can be started: {fault}") from fault

    async def ended(self) -> End:
        """Wait for the end of the process, which may still leave helpers and memory behind."""
        assert self._process is not None
        process = self._process
        how = await process.ended()
        # What was killed had no time to say why.
        error = None if process.was_killed else await asyncio.to_thread(process.last_error)
        return End(how if error is None else f"{how}: {error}", process.was_killed)

    async def gone(self) -> None:
        """Wait until no process of the lane is left."""
        if self._process is not None:
            await self._process.gone()

    async def ready(self) -> None:
        """Wait until the engine answers. The caller sets the limit, and watches the process."""
        for number in range(1 << 60):
            try:
                await self._client.get(self._at(self._launch.ready_path), timeout_s=READY_LOOK_S)
                names = await self._client.models(self.spec.url, timeout_s=READY_LOOK_S)
            except EngineRefusedError:
                await self._clock.sleep(_PAUSES_S[min(number, len(_PAUSES_S) - 1)])
                continue
            if names and self._model not in names:
                self._model = names[0]
            return

    async def warm(self, prefix: str, timeout_s: float) -> None:
        """Have it read the common prefix and write one token, so that its cache holds what all prompts begin with.

        Raises EngineFailedError.
        """
        messages: list[JsonValue] = [{"role": "user", "content": "Hello."}]
        if prefix:
            messages.insert(0, {"role": "system", "content": prefix})
        body: JsonObject = {"model": self._model, "messages": messages, "max_tokens": 1, "temperature": 0.0}
        try:
            await self._client.post(f"{self.spec.url}/chat/completions", body, timeout_s=timeout_s)
        except EngineRefusedError as refusal:
            # If it answers: a template that knows no system message, or a prefix that is too long, is for real prompts
            # to complain about.
            if refusal.status not in _ABOUT_THE_REQUEST:
                raise EngineFailedError(f"it gave no first token: {refusal}") from refusal

    async def sleep(self, timeout_s: float) -> None:
        """Give memory back. Raises EngineFailedError."""
        sleep = self._launch.sleep
        assert sleep is not None
        for number in range(_SLEEP_TRIES):
            try:
                await self._client.post(self._at(sleep.sleep_path), sleep.body, sleep.headers, timeout_s=timeout_s)
                return
            except EngineRefusedError as refusal:
                # A canary may be under way without the fleet's knowledge.
                if number == _SLEEP_TRIES - 1 or refusal.status is None:
                    raise EngineFailedError(f"it does not fall asleep: {refusal}") from refusal
            await self._clock.sleep(_PAUSES_S[-1])

    async def wake(self, timeout_s: float) -> None:
        """Take the memory again. Raises EngineFailedError."""
        sleep = self._launch.sleep
        assert sleep is not None
        try:
            await self._client.post(self._at(sleep.wake_path), sleep.body, sleep.headers, timeout_s=timeout_s)
        except EngineRefusedError as refusal:
            raise EngineFailedError(f"it does not wake up: {refusal}") from refusal

    async def stop(self) -> None:
        """End all processes of the lane."""
        if self._process is not None:
            await self._process.stop(STOP_GRACE_S)

    async def close(self) -> None:
        """End all processes of the lane, also one that is just being started."""
        async with self._starting:
            await self.stop()

    def _at(self, path: str) -> str:
        return self.spec.url.removesuffix("/v1") + path

    async def look(self) -> None:
        """Read its counters; a page that does not come costs the figures."""
        try:
            page = await self._client.figures(self.spec.url)
        except EngineRefusedError:
            return
        self.tokens, self.in_flight = page.tokens, page.in_flight
        if page.tokens is not None:
            self._rate.look(page.tokens, self._clock.monotonic_s())
