"""The backend `fleet`: a model behind engines that mac_runner starts and watches on this machine."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from mac_runner.backends import openai
from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.backends.fleet.settings import FleetModelConfig, as_openai
from mac_runner.problems import Problem, suggestion
from mac_runner.registry import BackendSpec
from mac_runner.secrecy import says_secret
from mac_runner.spec import Serving

__all__ = ["SPEC", "FleetModelConfig"]


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


def vllm_program() -> str:
    """`vllm` beside this Python, or where the PATH has it."""
    beside = shutil.which("vllm", path=str(Path(sys.executable).parent))
    return beside or shutil.which("vllm") or "vllm"


def flag_of(name: str) -> str:
    head, dot, below = name.partition(".")
    return f"--{head.replace('_', '-')}{dot}{below}"


def plain_name(name: str) -> str:
    """A flag's name as Python would write it, without what it sets inside a mapping."""
    return name.partition(".")[0].replace("-", "_").removesuffix("+")


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
    names = Counter(plain_name(name) for name in settings.engine_args)
    for name, value in settings.engine_args.items():
        if flaw := _flaw(name, settings):
            yield Problem(("engine_args", name), flaw)
        elif names[plain_name(name)] > 1:
            yield Problem(("engine_args", name), "is written twice, with '-' and with '_'; leave one of them out")
        elif isinstance(value, str) and says_secret(name):
            yield Problem(("engine_args", name), _NO_PLACE_FOR_IT)
        elif value is None:
            yield Problem(("engine_args", name), "has no value; leave it out, and the engine takes its default")


def _flaw(name: str, settings: FleetModelConfig) -> str:
    """Why a key of `engine_args` cannot be a flag of the engine; empty where it can."""
    plain = plain_name(name)
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


def _build(request: BackendRequest[FleetModelConfig]) -> Backend:
    from mac_runner.backends.fleet.backend import FleetBackend

    request.refuse(unsupported(request.settings))
    return FleetBackend(request)


def _serving(config: FleetModelConfig) -> Serving:
    return Serving(
        model=config.model,
        lanes=None if config.lanes == "auto" else config.lanes,
        slots=config.max_num_seqs,
        gpus=config.tensor_parallel_size,
    )


SPEC = BackendSpec(
    settings=FleetModelConfig,
    build=_build,
    describe=lambda settings: f"fleet, {settings.model} on {settings.engine}",
    serving=_serving,
    check=check,
    constrains=lambda settings: openai.constrains(as_openai(settings)),
    honours=honours,
    packages=("aiohttp",),
    connections=lambda settings: settings.max_num_seqs,
)
