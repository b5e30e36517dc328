"""The backend `fleet`: a model behind engines that mac_runner starts and watches on this machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Final, Literal, Protocol

from pydantic import Field, JsonValue

from mac_runner.backends import openai
from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.backends.openai import OpenaiConfig
from mac_runner.problems import Problem, suggestion
from mac_runner.registry import BackendSpec
from mac_runner.secrecy import says_secret
from mac_runner.section import IDENTITY, RUNTIME, File, Listed, Section, Text

__all__ = ["SPEC", "FleetModelConfig"]


class FleetModelConfig(Section):
    """A model that engines on this machine's GPUs serve; `fleet` says which GPUs, and how they are shared."""

    model: Annotated[Text, IDENTITY]
    """The model's name or path, as the engine takes it."""
    engine: Annotated[Literal["vllm", "nano", "command"], IDENTITY] = "vllm"
    """What serves it: `vllm serve`, `mac-serve`, or the command below."""
    command: Annotated[Listed[Text] | None, RUNTIME] = None
    """The command line of the engine `command`, one entry for each argument. `{port}` is replaced by the port that it
    must listen on, `{model}` by the model, `{gpus}` by the GPUs that it may use, separated by commas."""
    server: Annotated[Literal["openai", "vllm"] | None, IDENTITY] = None
    """What the engine `command` understands: the protocol as OpenAI has it, which is the default, or with vLLM's
    additions."""
    lanes: Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=1024)], RUNTIME] = "auto"
    """How many engines serve it; `auto`: one on each GPU, or group of GPUs, that has room for it."""
    tensor_parallel_size: Annotated[int, RUNTIME, Field(ge=1, le=64)] = 1
    """Over how many GPUs each engine is split."""
    max_num_seqs: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 64
    """How many requests each engine serves at once."""
    engine_args: Annotated[Mapping[Text, JsonValue], IDENTITY] = {}
    """Further settings of the engine under the names of its own flags, such as `kv_cache_dtype: fp8`."""
    chat_template: File | None = None
    """The chat template that vLLM's engines render prompts with; null: that of the model."""
    chat_template_kwargs: Annotated[Mapping[str, bool | int | float | str | None], IDENTITY] = {}
    """Switches of the model's chat template, such as `enable_thinking: false`."""
    weight_updates: Annotated[bool, RUNTIME] = False
    """Whether vLLM's engines take new weights while they play. It opens their development paths, which every user of
    this machine can use; nano takes new weights without it."""
    timeout_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 300.0
    """How long one sending of a request may take."""

    @property
    def dialect(self) -> Literal["openai", "vllm"]:
        """What its engines understand. `mac-serve` knows vLLM's additions."""
        return (self.server or "openai") if self.engine == "command" else "vllm"

    @property
    def chat_template_sha256(self) -> str:
        """Which template they have; empty for that of the model."""
        return "" if self.chat_template is None else self.chat_template.sha256


def as_openai(config: FleetModelConfig) -> OpenaiConfig:
    """How requests to its engines are written; their addresses are the fleet's."""
    return OpenaiConfig(
        model=config.model,
        base_urls=("http://127.0.0.1",),
        server=config.dialect,
        chat_template_kwargs=config.chat_template_kwargs,
        max_in_flight=config.max_num_seqs,
        timeout_s=config.timeout_s,
    )


def unsupported(config: FleetModelConfig) -> Unsupported:
    found = openai.unsupported(as_openai(config))
    remedy = "leave it out, or set `fleet_config.server: vllm` if the command serves with vLLM's additions"
    return replace(found, remedy=remedy)


def honours(config: FleetModelConfig) -> frozenset[str]:
    """What its engines honour of an agent's keys for thinking: `mac-serve` knows no effort."""
    return frozenset({"thinking"}) if config.engine == "nano" else openai.honours(as_openai(config))


NANO_ARGS: Final = frozenset(
    {
        *("admission", "cache_type", "divergence_check_every", "device", "dtype", "kv_cache_gib", "max_model_len"),
        *("max_num_batched_tokens", "max_waiting", "num_threads", "seed"),
    }
)
"""The flags of `mac-serve` that `engine_args` may set."""
_SET_BY_THE_FLEET: Final = frozenset(
    {
        *("host", "port", "uds", "model", "name", "served_model_name", "max_num_seqs", "gpu_memory_utilization"),
        *("kv_cache_memory_bytes", "tensor_parallel_size", "enable_sleep_mode", "api_key", "api_key_env"),
        *("admin_key_env", "open", "ssl_keyfile", "ssl_certfile", "root_path", "config", "chat_template"),
    }
)
"""Flags that decide where an engine listens, who may ask it, and how much of a GPU it takes; or for which we have a key
of our own."""
_MORE_GPUS: Final = (
    "pipeline_parallel",
    "data_parallel",
    "nnodes",
    "node_rank",
    "headless",
    "api_server_count",
    "sync_every",
)
"""How the flags begin that spread an engine over more than its own GPUs."""
_NO_PLACE_FOR_IT: Final = (
    "gives the engine a secret, and an experiment file is recorded and shown; leave it out, and set a variable that "
    "the engine reads, such as HF_TOKEN, where mac-run starts"
)
_FLAG: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\+?")
_FIELD: Final = re.compile(r"\{([A-Za-z_]+)\}")
FIELDS: Final = ("gpus", "model", "port")
"""What `{...}` may name in a command template."""


def check(settings: FleetModelConfig) -> Iterator[Problem]:
    """The rules that these settings break, each with its place below `fleet_config`."""
    if settings.engine == "command":
        yield from _command(settings)
    elif settings.command is not None:
        text = f"belongs to the engine 'command', and this entry has the engine {settings.engine!r}"
        yield Problem(("command",), f"{text}; leave it out, or set `engine: command`")
    if settings.engine != "command":
        yield from _arguments(settings)
    if settings.server is not None and settings.engine != "command":
        yield Problem(("server",), f"is for the engine 'command'; {settings.engine!r} serves with vLLM's additions")
    if settings.weight_updates and (settings.engine == "nano" or settings.dialect != "vllm"):
        text = "is for vLLM's engines; leave it out" if settings.engine == "nano" else "needs `server: vllm`"
        yield Problem(("weight_updates",), text)
    if settings.chat_template is not None and settings.engine != "vllm":
        instead = "leave it out: mac-serve takes that of the model"
        if settings.engine == "command":
            instead = "write it into `command`"
        yield Problem(("chat_template",), f"is for vLLM's engines; {instead}")
    if settings.chat_template_kwargs and settings.dialect != "vllm":
        text = "only servers with vLLM's additions take these; set `server: vllm` if the command starts one"
        yield Problem(("chat_template_kwargs",), text)


def filled(template: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """A command template with `{port}`, `{model}` and `{gpus}` replaced; other braces stay, such as those of JSON."""
    return tuple(_FIELD.sub(lambda found: values.get(found[1], found[0]), argument) for argument in template)


def flag_of(name: str) -> str:
    head, dot, below = name.partition(".")
    return f"--{head.replace('_', '-')}{dot}{below}"


def _command(settings: FleetModelConfig) -> Iterator[Problem]:
    if not settings.command:
        text = "is missing; the engine 'command' needs its command line, one entry for each argument, with {port}"
        yield Problem(("command",), text)
        return
    fields = {(index, name) for index, argument in enumerate(settings.command) for name in _FIELD.findall(argument)}
    for index, name in sorted(fields):
        if name not in FIELDS:
            yield Problem(("command", index), f"there is no field {{{name}}}{suggestion(name, FIELDS)}")
    for index, (word, following) in enumerate(pairwise((*settings.command, ""))):
        name, has_value, value = word.partition("=")
        is_flag = word.startswith("-")
        if (is_flag or (has_value and name.isupper())) and says_secret(name) and (value or following):
            yield Problem(("command", index), _NO_PLACE_FOR_IT)
    if all(name != "port" for _, name in fields):
        text = "has no {port}; the engine must listen on the port that the fleet gives it, such as `--port {port}`"
        yield Problem(("command",), text)
    if settings.engine_args:
        yield Problem(("engine_args",), "changes nothing for the engine 'command'; write its flags into `command`")


def _arguments(settings: FleetModelConfig) -> Iterator[Problem]:
    names = Counter(_plain(name) for name in settings.engine_args)
    for name, value in settings.engine_args.items():
        if flaw := _flaw(name, settings):
            yield Problem(("engine_args", name), flaw)
        elif names[_plain(name)] > 1:
            yield Problem(("engine_args", name), "is written twice, with '-' and with '_'; leave one of them out")
        elif isinstance(value, str) and says_secret(name):
            yield Problem(("engine_args", name), _NO_PLACE_FOR_IT)
        elif value is None:
            yield Problem(("engine_args", name), "has no value; leave it out, and the engine takes its default")


def _flaw(name: str, settings: FleetModelConfig) -> str:
    """Why a key of `engine_args` cannot be a flag of the engine; empty where it can."""
    plain = _plain(name)
    if not _FLAG.fullmatch(name):
        return "is no name of a flag; write it without the dashes in front, such as kv_cache_dtype"
    if plain.startswith(_MORE_GPUS):
        return "spreads an engine over more GPUs than its own; use fleet_config.tensor_parallel_size and lanes"
    if settings.engine == "nano" and plain not in NANO_ARGS | _SET_BY_THE_FLEET:
        return f"mac-serve has no such flag{suggestion(plain, NANO_ARGS)}"
    if plain in _SET_BY_THE_FLEET:
        return f"is set by the fleet; leave it out{_instead(plain)}"
    if longer := sorted(flag for flag in _SET_BY_THE_FLEET if flag.startswith(plain)):
        return f"is read as short for {longer[0]}, which is set by the fleet; leave it out"
    return ""


def _instead(plain: str) -> str:
    """Which key of ours decides it."""
    if plain in FleetModelConfig.model_fields:
        return f", and write fleet_config.{plain}"
    return ", and write fleet.first_port" if plain == "port" else ""


def _plain(name: str) -> str:
    """A flag's name as Python would write it, without what it sets inside a mapping."""
    return name.partition(".")[0].replace("-", "_").removesuffix("+")


# What the backend asks of a fleet. The room `fleet` has one; a test may have another.


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneAddress:
    """One engine of a model as requests see it."""

    name: str
    """Such as `townsfolk@0`: unique in the fleet, and the same after a restart."""
    url: str
    """Its base URL, which ends in `/v1`."""
    gpus: tuple[str, ...]
    """The indices of its GPUs, or the UUID of its slice; empty on a machine without GPUs."""
    slots: int
    """How many requests it serves at once."""
    admin_key: str | None = field(default=None, repr=False)
    """The key of its `/admin` paths, where the fleet of this run has started it."""

    @property
    def gpu(self) -> str | None:
        """Its GPUs as events name them; None on a machine without GPUs."""
        return ",".join(self.gpus) or None


class ModelLanes(Protocol):
    """The engines of one entry of `model_definitions`. All calls are made in the loop of the fleet."""

    @property
    def up(self) -> tuple[LaneAddress, ...]:
        """The engines that take requests now, in an order that stays."""

    @property
    def all(self) -> tuple[LaneAddress, ...]:
        """All engines that are not retired, whatever their state."""

    @property
    def lost(self) -> str | None:
        """Why no engine of this model will serve again; None while one may."""

    @property
    def is_swapped(self) -> bool:
        """Whether this model shares its places with others, so that requests wait for their turn."""

    @property
    def stall_s(self) -> float:
        """How long an engine with requests in flight may give no answer before it is looked at."""

    def on_change(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever `up` or `lost` changes."""

    async def start(self) -> None:
        """Start the engines, if that has not begun; returns when one is up. Raises EngineDeadError or ConfigError."""

    def turn(self, agent: str) -> AbstractAsyncContextManager[str | None]:
        """A place for one request where models are swapped: entered when the model is resident, left after the reply.

        `agent` names who asks. The request must go to the lane that is named. Where nothing is swapped it is entered at
        once, without a lane: the request may go to any that is up.
        """

    def see(self, system: str) -> None:
        """Take the system message of a prompt: what the first ones have in common warms up engines that start.

        Cheap; it may be called for each request.
        """

    def report_stuck(self, lane: str, why: str) -> None:
        """Say that an engine gives no reply, not even to a canary: the fleet ends it and starts it again."""

    def report_broken(self, lane: str, why: str) -> None:
        """Say that a connection to an engine broke. The fleet looks whether its process has ended."""


class Fleet(Protocol):
    """The engines of this machine."""

    def model(self, name: str) -> ModelLanes:
        """Those of one entry of `model_definitions`."""


def _build(request: BackendRequest[FleetModelConfig]) -> Backend:
    from mac_runner.backends.fleet.backend import FleetBackend

    request.refuse(unsupported(request.settings))
    return FleetBackend(request)


SPEC = BackendSpec(
    settings=FleetModelConfig,
    build=_build,
    describe=lambda settings: f"fleet, {settings.model} on {settings.engine}",
    check=check,
    constrains=lambda settings: openai.constrains(as_openai(settings)),
    honours=honours,
    packages=("aiohttp",),
    connections=lambda settings: settings.max_num_seqs,
)
