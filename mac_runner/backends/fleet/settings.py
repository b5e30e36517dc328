"""`fleet_config`: a model that the fleet of this machine serves, and how its engines are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from mac_runner.backends.base import Unsupported
from mac_runner.backends.openai import settings as openai
from mac_runner.backends.openai.settings import OpenaiConfig
from mac_runner.section import IDENTITY, RUNTIME, File, Listed, Section, Text


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
    )


def unsupported(config: FleetModelConfig) -> Unsupported:
    """What its engines cannot do."""
    found = openai.unsupported(as_openai(config))
    remedy = "leave it out, or set `fleet_config.server: vllm` if the command serves with vLLM's additions"
    return replace(found, remedy=remedy)


def honours(config: FleetModelConfig) -> frozenset[str]:
    """What its engines honour of an agent's keys for thinking: `mac-serve` knows no effort."""
    return frozenset({"thinking"}) if config.engine == "nano" else openai.honours(as_openai(config))
