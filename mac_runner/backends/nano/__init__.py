"""The backend `nano`: the engine of mac_runner itself, in this process, on a model's directory.

Nothing of the engine is imported before `start`: it brings torch, which takes seconds and much memory. All that touches
it is in `engine.py`. One thread does what would hold up the event loop: the import, and rendering and tokenising
prompts. The engine takes its steps on a thread of its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from mac_runner.backends.base import Backend, BackendRequest, lookahead_for
from mac_runner.backends.nano.settings import NanoConfig
from mac_runner.backends.updates import OneAtATime
from mac_runner.errors import EngineDeadError, MissingPackageError
from mac_runner.extras import install_command
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec
from mac_runner.spec import Serving
from mac_runner.types import Reply, Request
from mac_runner.weights import WeightUpdate

if TYPE_CHECKING:
    from mac_runner.backends.nano.engine import LoadedEngine

__all__ = ["SPEC", "NanoConfig"]

NEEDED: Final = ("torch", "tokenizers", "safetensors", "jinja2", "numpy", "numba", "llvmlite", "llguidance")
"""What the extra `[nano]` installs, without the packages of its server and of token traces."""


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
        settings = self._asked.settings
        return settings.max_num_seqs_upper_bound * settings.data_parallel_size

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


def _serving(config: NanoConfig) -> Serving:
    return Serving(
        model=config.model,
        lanes=config.data_parallel_size,
        slots=config.max_num_seqs_upper_bound,
        gpus=config.tensor_parallel_size,
        step_tokens=config.max_num_batched_tokens,
        context_tokens=config.max_model_len,
        admits_by_tokens=True,
        alone={"data_parallel_size": 1},
    )


SPEC = BackendSpec(
    settings=NanoConfig,
    build=_build,
    describe=lambda settings: f"nano, {settings.model} in this process",
    serving=_serving,
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"thinking"}),
    packages=(*NEEDED, "pyarrow"),
    holds_memory=True,
)
