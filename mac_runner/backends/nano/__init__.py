"""The backend `nano`: the engine of mac_runner itself, in this process, on a model's directory.

Nothing of the engine is imported before `start`: it brings torch, which takes seconds and much memory. All that touches
it is in `engine.py`. One thread does what would hold up the event loop: the import, and rendering and tokenising
prompts. The engine takes its steps on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, JsonValue

from mac_runner.backends.base import Backend, BackendRequest, lookahead_for
from mac_runner.backends.updates import OneAtATime
from mac_runner.errors import EngineDeadError, MissingPackageError
from mac_runner.extras import install_command
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec
from mac_runner.section import IDENTITY, RUNTIME, Section, Text
from mac_runner.types import Reply, Request
from mac_runner.weights import WeightUpdate

if TYPE_CHECKING:
    from mac_runner.backends.nano.engine import LoadedEngine

__all__ = ["SPEC", "NanoConfig"]

NEEDED: Final = ("torch", "tokenizers", "safetensors", "jinja2", "numpy", "numba", "llvmlite", "llguidance")
"""What the extra `[nano]` installs, without the packages of its server and of token traces."""


class NanoConfig(Section):
    """The engine of mac_runner itself, in this process and beside it, on a CPU or on GPUs."""

    model: Annotated[Text, IDENTITY]
    """A directory of the Hugging Face kind, or a name on the hub, which is downloaded."""
    max_num_seqs_upper_bound: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 64
    """No more requests at once than this, however many the KV cache would hold."""
    max_model_len: Annotated[int | None, IDENTITY, Field(ge=1)] = None
    """The longest context in tokens; null leaves it to the model."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], IDENTITY] = "auto"
    """The number format of the weights."""
    device: Annotated[Literal["auto", "cpu", "cuda"], IDENTITY] = "auto"
    """What computes; auto takes a GPU where there is one."""
    num_threads: Annotated[int | None, IDENTITY, Field(ge=1, le=64)] = None
    """Threads of each process on a CPU, whose number decides the last bits of a result; null shares out all cores."""
    tensor_parallel_size: Annotated[int, RUNTIME, Field(ge=1, le=64)] = 1
    """How many processes share each step's work, on GPUs one of its own for each. It must divide the model's heads."""
    kv_cache_gib: Annotated[float, RUNTIME, Field(gt=0, le=4096)] = 1.0
    """The memory for the KV cache on a CPU."""
    gpu_memory_utilization: Annotated[float, RUNTIME, Field(gt=0, le=1)] = 0.9
    """The share of the GPU's memory the engine may take."""
    max_num_batched_tokens: Annotated[int, RUNTIME, Field(ge=16, le=1_000_000)] = 512
    """How many tokens one step computes at most; raised to what the requests at once need."""
    chat_template_kwargs: Annotated[Mapping[str, JsonValue], IDENTITY] = {}
    """What the model's chat template is given besides the messages, such as enable_thinking."""


def missing_packages() -> list[str]:
    """Those that are not installed here. Loads none of them, which would take seconds."""
    return [package for package in NEEDED if find_spec(package) is None]


def check_installed(name: str) -> None:
    """Raise MissingPackageError for model `name` if there is one."""
    if missing := missing_packages():
        text = f"'nano' needs {', '.join(missing)}, not installed here; `{install_command('nano')}` installs it"
        raise MissingPackageError.at(("model_definitions", name, "backend"), text)


class NanoBackend(Backend):
    """Serves the model of one entry of `model_definitions`."""

    update_obstacle: str | None = None

    def __init__(self, request: BackendRequest[NanoConfig]) -> None:
        self._asked = request
        self._thread: ThreadPoolExecutor | None = None
        self._engine: LoadedEngine | None = None
        self._updates = OneAtATime()

    @property
    def capacity(self) -> int:
        """As configured: the engine has a seat for each; `token_budget` says what the KV cache holds."""
        return self._asked.settings.max_num_seqs_upper_bound

    @property
    def token_budget(self) -> int | None:
        return None if self._engine is None else self._engine.cache_tokens

    @property
    def lookahead(self) -> int:
        """What waits inside the engine, so that the step in which one request ends can begin the next."""
        return 0 if self._engine is None else lookahead_for(self.capacity)

    async def start(self) -> None:
        """Load the engine, and the model into it."""
        await self.close()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"tokens-{self._asked.name}")
        engine_class = await asyncio.get_running_loop().run_in_executor(self._thread, _load)
        self._engine = await engine_class.open(self._asked, self._thread)

    async def generate(self, request: Request) -> Reply:
        if self._engine is None:
            raise EngineDeadError("the engine is not running")
        return await self._engine.generate(request, traces=self._asked.record_tokens)

    async def update_weights(self, update: WeightUpdate) -> str | None:
        """Compute with these weights from the next step on; replies under way go on with them."""
        if self._engine is None:
            raise EngineDeadError("the engine is not running")
        return await self._updates.run(self._engine.update_weights(update))

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        thread, self._thread = self._thread, None
        if engine is not None:
            await engine.close()
        if thread is not None:
            thread.shutdown(wait=False)


def _load() -> type[LoadedEngine]:
    from mac_runner.backends.nano.engine import LoadedEngine

    return LoadedEngine


def _build(request: BackendRequest[NanoConfig]) -> Backend:
    check_installed(request.name)
    return NanoBackend(request)


SPEC = BackendSpec(
    settings=NanoConfig,
    build=_build,
    describe=lambda settings: f"nano, {settings.model} in this process",
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"thinking"}),
    packages=(*NEEDED, "pyarrow"),
    holds_memory=True,
)
