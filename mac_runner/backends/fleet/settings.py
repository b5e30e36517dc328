"""The settings of a model behind engines of this machine, and what a fleet offers its backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from mac_runner.backends.http.settings import OpenaiConfig
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
        timeout_s=config.timeout_s,
    )


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


class ModelLanes(ABC):
    """The engines of one entry of `model_definitions`. All calls are made in the loop of the fleet."""

    def __init__(self, *, is_swapped: bool, stall_s: float) -> None:
        self.up: tuple[LaneAddress, ...] = ()
        """The engines that take requests now, in an order that stays."""
        self.all: tuple[LaneAddress, ...] = ()
        """All engines that are not retired, whatever their state."""
        self.lost: str | None = None
        """Why no engine of this model will serve again; None while one may."""
        self.is_swapped = is_swapped
        """Whether this model shares its places with others, so that requests wait for their turn."""
        self.stall_s = stall_s
        """How long an engine with requests in flight may give no answer before it is looked at."""
        self._tells: list[Callable[[], None]] = []

    def on_change(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever `up`, `all` or `lost` changes."""
        self._tells.append(tell)

    def adopt(self, up: Container[str], among: Iterable[LaneAddress], lost: str | None) -> None:
        """From now on the engines are `among` these, and those named are `up`."""
        before = self.up, self.all, self.lost
        self.all, self.lost = tuple(among), lost
        self.up = tuple(lane for lane in self.all if lane.name in up)
        if before != (self.up, self.all, self.lost):
            for tell in tuple(self._tells):
                tell()

    @abstractmethod
    async def start(self) -> None:
        """Start the engines, if that has not begun; returns when one is up. Raises EngineDeadError or ConfigError."""

    @abstractmethod
    def turn(self) -> AbstractAsyncContextManager[str | None]:
        """A place for one request where models are swapped: entered when the model is resident, left after the reply.

        The request must go to the lane that is named. Where nothing is swapped it is entered at once, without a lane:
        the request may go to any that is up.
        """

    @abstractmethod
    def see(self, system: str) -> None:
        """Take the system message of a prompt: what the first ones have in common warms up engines that start.

        Cheap; it may be called for each request.
        """

    @abstractmethod
    def report_stuck(self, lane: str, why: str) -> None:
        """Say that an engine gives no reply, not even to a canary: the fleet ends it and starts it again."""
