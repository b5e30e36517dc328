"""The engine of a lane: its command line, its process, and what is said to it over HTTP. It decides nothing.

Nothing here judges an engine's health: a page that is slow or fails costs a figure and nothing else. An engine is taken
for ended by the end of its process, and for stuck by the requests that it leaves without a reply.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os.path import commonprefix
from pathlib import Path
from typing import Final

from yarl import URL

from mac_runner.backends.fleet import filled, flag_of, plain_name, vllm_program
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.backends.http.answer import Answer, SendingError, encoded
from mac_runner.backends.http.client import HttpClient, beside_v1
from mac_runner.backends.http.stall import Figures, Tokens, figures_of
from mac_runner.backends.redaction import Redactor
from mac_runner.backends.vllm.process_logs import FOLLOWING, RAISED
from mac_runner.clock import Clock
from mac_runner.files import read_regular
from mac_runner.fleet import child
from mac_runner.fleet.lane import LaneSpec
from mac_runner.fleet.layout import LoopbackPorts
from mac_runner.secrecy import secrets_in
from mac_runner.types import JsonObject, JsonValue

HOST: Final = "127.0.0.1"
_DEVELOPMENT: Final = {"VLLM_SERVER_DEV_MODE": "1"}
"""Opens vLLM's paths for sleep and for new weights."""
ADMIN_KEY: Final = "MAC_RUNNER_LANE_ADMIN_KEY"
"""The environment variable that gives `mac-serve` the key of its `/admin` paths."""
_OF_THE_HUB: Final = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
"""With these an engine downloads its model."""
_API_KEY: Final = re.compile(r"API_?KEY$", re.IGNORECASE)
LOG_BYTES_MAX: Final = 16 << 20
"""The size of a lane's log; as much again is kept of what came before."""
GUARDIAN_GRACE_S: Final = 3.0
"""How long the guardian may take beyond the grace of its engine; then its whole group is killed."""
NOT_STARTED: Final = 127
"""The status of a command that does not exist, as a shell has it."""
_TAIL_BYTES: Final = 1 << 18
_PREFIX: Final = re.compile(r"^(?:\([\w-]+ pid=\d+\) )?(?:(?:ERROR|CRITICAL)[: ]+(?:[\d:., -]+)?(?:\[[\w./:]+\] ?)?)?")
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
LOOK_S: Final = 10.0
"""How long a look at an engine may take; readiness is looked for again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepWay:
    """How an engine gives its memory back, and takes it again: two POST requests to paths of its server."""

    sleep_path: str
    wake_path: str
    body: JsonObject | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How an engine is started."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    """What is set besides the environment of this process."""
    sleep: SleepWay | None = None
    """None for an engine that does not take turns."""


def launch_of(lane: LaneSpec, model: FleetModelConfig, *, admin_key: str) -> Launch:
    """How the engine of a lane is started. `admin_key` is for the `/admin` paths of `mac-serve`."""
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(lane.place.visible)}
    # The engine sees GPUs as `nvidia-smi` numbers them; on a place without GPUs, none.
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **visible} if lane.place.gpus else visible
    if model.weight_updates:
        environment |= _DEVELOPMENT
    if model.engine == "command":
        assert model.command is not None, "settings are checked when a file is loaded"
        fields = {"port": str(lane.port), "model": model.model, "gpus": ",".join(lane.place.visible)}
        return Launch(argv=filled(model.command, fields), environment=environment)
    flags: dict[str, JsonValue] = {
        "host": HOST,
        "port": lane.port,
        "served_model_name" if model.engine == "vllm" else "name": lane.checkpoint,
        "max_num_seqs": lane.slots,
        "tensor_parallel_size": model.tensor_parallel_size,
    }
    if lane.place.gpus:
        flags["gpu_memory_utilization"] = lane.memory_share
    if model.engine == "vllm":
        command = [vllm_program(), "serve"]
        if model.chat_template is not None:
            flags["chat_template"] = str(model.chat_template.path)
        if lane.takes_turns:
            flags["enable_sleep_mode"] = True
            environment |= _DEVELOPMENT
        if "enable_prefix_caching" not in map(plain_name, model.engine_args):
            flags["enable_prefix_caching"] = True
        # The default of `/sleep` is to abort what runs; the lane is drained before, and waiting costs nothing then.
        way = SleepWay(sleep_path="/sleep?level=1&mode=wait", wake_path="/wake_up")
    else:
        command = [sys.executable, "-m", "mac_runner.serve"]
        flags["admin_key_env"] = ADMIN_KEY
        environment |= {ADMIN_KEY: admin_key}
        headers = {"Authorization": f"Bearer {admin_key}"}
        way = SleepWay(sleep_path="/admin/sleep", wake_path="/admin/wake", body={}, headers=headers)
    argv = (*command, lane.checkpoint, *_flags(flags), *_flags(model.engine_args))
    return Launch(argv=argv, environment=environment, sleep=way if lane.takes_turns else None)


def withheld(environ: Iterable[str], keys: Collection[str]) -> frozenset[str]:
    """The variables that no engine gets: keys of other servers. `keys` are those that experiments name.

    With `VLLM_API_KEY`, vLLM would refuse the requests of the fleet.
    """
    return frozenset(name for name in environ if name in keys or _API_KEY.search(name)) - _OF_THE_HUB


def _flags(values: Mapping[str, JsonValue]) -> Iterator[str]:
    """Settings as command-line flags: switches by their names, mappings as JSON, each member of a list by itself."""
    for name, value in values.items():
        flag = flag_of(name)
        match value:
            case True:
                yield flag
            case False:
                yield f"--no-{flag.removeprefix('--')}"
            case list() | tuple() if not any(isinstance(member, list | tuple | dict) for member in value):
                yield flag
                yield from map(str, value)
            case dict() | list() | tuple():
                yield from (flag, json.dumps(value, ensure_ascii=False))
            case _:
                yield from (flag, str(value))


class LaneProcess:
    """One engine with its guardian (`child`)."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, log_from: int, redactor: Redactor) -> None:
        self._process = process
        self._redactor = redactor
        self._log, self._log_from = log, log_from
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._listen())
        self.pid: int | None = None
        """The engine's own; None before it has started."""
        self.was_killed = False
        """Whether a signal ended it that this object did not send."""
        self.status: int | None = None
        """Its exit status, negative for a signal; None before the end, and where its guardian was killed."""
        self._is_stopping = False

    @classmethod
    async def start(
        cls, argv: Sequence[str], environment: Mapping[str, str], log: Path, *, without: Collection[str] = ()
    ) -> LaneProcess:
        """Start an engine. Raises OSError where no process starts.

        It gets this process's variables but for those named `without`, and `environment` on top.
        """
        log_from = _size(log)
        own = {name: value for name, value in os.environ.items() if name not in without}
        redactor = Redactor(*secrets_in({**os.environ, **environment}, without))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", child.__file__, str(log), str(LOG_BYTES_MAX), *argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**own, **environment},
            start_new_session=True,
        )
        return cls(process, log, log_from, redactor)

    async def ended(self) -> str:
        """Wait until the engine has ended; how it ended. Its helpers may still be going."""
        return await asyncio.shield(self._ended)

    async def gone(self) -> None:
        await asyncio.shield(self._reader)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after `grace_s`; returns when no process of the lane is left."""
        if self._reader.done():
            return
        assert self._process.stdin is not None
        self._is_stopping = True
        with suppress(OSError, RuntimeError):
            self._process.stdin.write(f"stop {grace_s}\n".encode())
        await asyncio.wait({self._reader}, timeout=grace_s + GUARDIAN_GRACE_S)
        if not self._reader.done():
            self._kill_tree()
        await self.gone()

    def last_error(self) -> str | None:
        """The line of its log that says why it ended, withheld if it repeats a secret; None when it printed nothing."""
        try:
            size = _size(self._log)
            start = self._log_from if size >= self._log_from else 0
            data = read_regular(self._log, size)[max(start, size - _TAIL_BYTES) :]
        except OSError:
            return None
        error = last_error(data.decode("utf-8", "replace"))
        return None if error is None else self._redactor.quoted(error)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            word, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
            if word == "started":
                self.pid = int(rest)
            elif word == "ended" and not self._ended.done():
                self.was_killed = int(rest) in (-signal.SIGKILL, -signal.SIGTERM) and not self._is_stopping
                self.status = int(rest)
                self._ended.set_result(_status_words(self.status))
            elif word == "failed" and not self._ended.done():
                self.status = NOT_STARTED
                self._ended.set_result(f"it could not be started: {rest}")
        await self._process.wait()
        self._kill_group()
        if not self._ended.done():
            self.was_killed = not self._is_stopping
            self._ended.set_result("its guardian process was killed")

    def _kill_tree(self) -> None:
        """Kill a guardian that does not act, with all that it has."""
        strays = child.descendants(self._process.pid)
        self._kill_group()
        for pid in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_error(log: str) -> str | None:
    """The last error in `log` that is not a consequence of another one, else its last line; None when it is empty."""
    lines = [text for line in log.splitlines() if (text := _PREFIX.sub("", line.strip(), count=1).strip())]
    raised = [line for line in lines if RAISED.match(line)]
    causes = [line for line in raised if not FOLLOWING.search(line)]
    found = causes or raised or lines
    return found[-1] if found else None


def _status_words(status: int) -> str:
    if status >= 0:
        return f"it ended with status {status}"
    try:
        return f"it was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was killed by signal {-status}"


class EngineFailedError(Exception):
    """The engine could not do what it was asked to; the text says why."""


class EngineRefusedError(EngineFailedError):
    """The engine answered, and not with success; or it did not answer.

    `status` is that of its answer; None where it did not answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Rate:
    """Tokens per second between two looks."""

    _made: float = 0.0
    _at_s: float | None = None
    per_s: float | None = field(default=None, init=False)

    def look(self, tokens: Tokens, now_s: float) -> None:
        """Take the counters at `now_s`. Counters that went back belong to an engine that was started again."""
        if self._at_s is not None and now_s > self._at_s:
            self.per_s = (tokens.made - self._made) / (now_s - self._at_s) if tokens.made >= self._made else None
        self._made, self._at_s = tokens.made, now_s


class EngineClient:
    """Asks the engines of a fleet. Every method raises EngineRefusedError, and nothing else, where one fails."""

    def __init__(self, *secrets: str) -> None:
        """`secrets` are what the engines may know, and what errors do not show."""
        self._redactor = Redactor(*secrets)
        self._http = HttpClient({}, self._redactor)

    async def close(self) -> None:
        await self._http.close()

    async def get(self, url: str, *, timeout_s: float = LOOK_S) -> bytes:
        return await self._body(f"GET {url}", self._http.get(URL(url), deadline_s=timeout_s))

    async def post(
        self, url: str, body: JsonObject | None, headers: Mapping[str, str] = {}, *, timeout_s: float
    ) -> bytes:
        content = b"" if body is None else encoded(body)
        answer = self._http.post(URL(url), content, request_id="fleet", deadline_s=timeout_s, headers=headers)
        return await self._body(f"POST {url}", answer)

    async def models(self, base_url: str, *, timeout_s: float = LOOK_S) -> list[str]:
        """The names of the models that an engine serves; the base URL ends in `/v1`."""
        try:
            listed = json.loads(await self.get(f"{base_url}/models", timeout_s=timeout_s))
            return [str(entry["id"]) for entry in listed["data"]]
        except (ValueError, KeyError, TypeError) as fault:
            raise EngineRefusedError(f"GET {base_url}/models: the answer lists no models") from fault

    async def figures(self, base_url: str) -> Figures:
        return figures_of(await self.get(beside_v1(base_url, "/metrics")))

    async def _body(self, what: str, sending: Awaitable[Answer]) -> bytes:
        try:
            answer = await sending
        except SendingError as fault:
            raise EngineRefusedError(f"{what}: {fault}") from fault
        if answer.status // 100 == 2:
            return answer.body
        words = self._redactor.quoted(answer.body.decode("utf-8", "replace"))
        raise EngineRefusedError(f"{what}: status {answer.status}: {words}", answer.status)


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


@dataclass(slots=True, eq=False)
class LaneEngine:
    """One engine, started as often as its lane is."""

    spec: LaneSpec
    launch: Launch
    log: Path
    client: EngineClient
    clock: Clock
    without: Collection[str]
    """The variables of this process that the engine does not get."""
    figures: Figures = field(default_factory=Figures, init=False)
    """Of the latest look."""
    rate: Rate = field(default_factory=Rate, init=False)
    _process: LaneProcess | None = field(default=None, init=False)
    _model: str = field(default="", init=False)
    """The name that it serves its model under; empty before its first start."""
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @property
    def pid(self) -> int | None:
        """The engine's process; None while it has none."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process. Raises EngineFailedError."""
        if not LoopbackPorts().is_free(self.spec.port):
            # Who listens there would pass for this engine.
            raise EngineFailedError(f"port {self.spec.port} of 127.0.0.1 is in use by another process")
        self.figures = Figures()
        async with self._starting:
            try:
                self._process = await LaneProcess.start(
                    self.launch.argv, self.launch.environment, self.log, without=self.without
                )
            except OSError as fault:
                raise EngineFailedError(f"no process can be started: {fault}") from fault

    async def ended(self) -> tuple[str, bool]:
        """Wait for the end of the process, which may still leave helpers and memory behind.

        Returns how it ended, and whether another process killed it.
        """
        assert self._process is not None
        process = self._process
        how = await process.ended()
        # What was killed had no time to say why.
        error = None if process.was_killed else await asyncio.to_thread(process.last_error)
        return how if error is None else f"{how}: {error}", process.was_killed

    async def gone(self) -> None:
        if self._process is not None:
            await self._process.gone()

    async def ready(self) -> None:
        """Wait until the engine answers. The caller sets the limit, and watches the process."""
        for number in range(1 << 60):
            try:
                names = await self.client.models(self.spec.url, timeout_s=READY_LOOK_S)
            except EngineRefusedError:
                await self.clock.sleep(_PAUSES_S[min(number, len(_PAUSES_S) - 1)])
                continue
            self._model = self.spec.checkpoint if self.spec.checkpoint in names or not names else names[0]
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
            await self.client.post(f"{self.spec.url}/chat/completions", body, timeout_s=timeout_s)
        except EngineRefusedError as refusal:
            # If it answers: a template that knows no system message, or a prefix that is too long, is for real prompts
            # to complain about.
            if refusal.status not in _ABOUT_THE_REQUEST:
                raise

    async def sleep(self, timeout_s: float) -> None:
        """Give memory back. Raises EngineFailedError."""
        sleep = self.launch.sleep
        assert sleep is not None
        for number in range(_SLEEP_TRIES):
            try:
                await self.client.post(self._at(sleep.sleep_path), sleep.body, sleep.headers, timeout_s=timeout_s)
                return
            except EngineRefusedError as refusal:
                # A canary may be under way without the fleet's knowledge.
                if number == _SLEEP_TRIES - 1 or refusal.status is None:
                    raise
            await self.clock.sleep(_PAUSES_S[-1])

    async def wake(self, timeout_s: float) -> None:
        """Take the memory again. Raises EngineFailedError."""
        sleep = self.launch.sleep
        assert sleep is not None
        await self.client.post(self._at(sleep.wake_path), sleep.body, sleep.headers, timeout_s=timeout_s)

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(STOP_GRACE_S)

    async def close(self) -> None:
        """End all processes of the lane, also one that is just being started."""
        async with self._starting:
            await self.stop()

    def _at(self, path: str) -> str:
        return beside_v1(self.spec.url, path)

    async def look(self) -> None:
        """Read its counters; a page that does not come costs the figures."""
        try:
            self.figures = await self.client.figures(self.spec.url)
        except EngineRefusedError:
            return
        if self.figures.tokens is not None:
            self.rate.look(self.figures.tokens, self.clock.monotonic_s())
