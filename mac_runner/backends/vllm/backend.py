"""One vLLM engine in this process, behind the contract of a backend.

vLLM's `AsyncLLM` runs the model in processes of its own and talks to them from the event loop. What would hold up the
loop is done on threads: importing, starting and shutting down on one that lives as long as the backend, because the
engine's processes end with it, and rendering and tokenising prompts on a few others, which tokenise side by side.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from mac_runner.backends.chat import CLOSED_THOUGHT, ends_in_thought, notice_of_forms
from mac_runner.backends.rendering import Rendered, Renderer
from mac_runner.backends.vllm.arguments import check_keys, engine_arguments
from mac_runner.backends.vllm.capacity import Capacity, capacity_of
from mac_runner.backends.vllm.housing import HOUSING, EngineLog
from mac_runner.backends.vllm.library import Library
from mac_runner.backends.vllm.prompting import is_free_to_think, renderer_for
from mac_runner.backends.vllm.protocols import Engine, Output, ReasoningParser
from mac_runner.backends.vllm.releases import find_release
from mac_runner.backends.vllm.replies import reply_of
from mac_runner.backends.vllm.sampling import sampling_settings
from mac_runner.backends.vllm.settings import VllmConfig
from mac_runner.backends.vllm.telling import refusals
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, EngineDeadError, boundary
from mac_runner.types import FinishReason, JsonValue, Prompt, Reply, Request

_KILL_INTERVAL_S: Final = 0.1
_TOKENISERS_MAX: Final = 4
"""Threads. An engine often frees many slots at once, and all of them wait for their next prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Everything there is once the engine runs.

    `defaults` are the model's own sampling settings; `parser` is what the engine finds the end of a thought with.
    `keeps_special` says that special tokens stay in a text, for they tell where a thought ends.
    """

    library: Library
    engine: Engine
    renderer: Renderer
    parser: ReasoningParser | None
    capacity: Capacity
    defaults: Mapping[str, JsonValue]
    keeps_special: bool

    def sampling_of(self, request: Request, *, traces: bool = False) -> object:
        """vLLM's sampling parameters for `request`."""
        settings = sampling_settings(request.sampling, request.prompt, defaults=self.defaults, traces=traces)
        return self.library.sampling_params({**settings, "skip_special_tokens": not self.keeps_special})

    def is_thinking(self, rendered: Rendered, prompt: Prompt) -> bool:
        """Whether the reply to `prompt` goes on with a thought that the template opened."""
        return ends_in_thought(rendered.text) and is_free_to_think(prompt, rendered.ids, self.parser)


class VllmBackend:
    """Serves model `name`. Building it checks its settings against the installed vLLM, and imports nothing of it."""

    def __init__(
        self, *, name: str, config: VllmConfig, traces: bool, clock: Clock, say: Callable[[str], None]
    ) -> None:
        try:
            release = find_release()
        except ConfigError as error:
            key = ("model_definitions", name, "backend")
            raise ConfigError(f"{'.'.join(key)}: {error}", key=key) from error
        check_keys(name, config, release.arguments)
        self._name = name
        self._config = config
        self._traces = traces
        self._clock = clock
        self._say = say
        self._version = release.version
        self._running: Running | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._tokenisers = ThreadPoolExecutor(max_workers=_TOKENISERS_MAX, thread_name_prefix=f"tokens-{name}")
        self._log: EngineLog | None = None
        self._is_broken = False

    @property
    def capacity(self) -> int:
        """What the configured bound and the engine allow."""
        return self._config.max_num_seqs_upper_bound if self._running is None else self._running.capacity.requests

    @property
    def token_budget(self) -> int | None:
        """The tokens of the engine's KV cache, unless requests are admitted at full length."""
        return None if self._running is None else self._running.capacity.token_budget

    @property
    def lookahead(self) -> int:
        """What the engine is handed to keep waiting."""
        return 0 if self._running is None else self._running.capacity.lookahead

    @property
    def running(self) -> Running:
        """The engine and what belongs to it. Raises EngineDeadError before the start and after the end."""
        if self._running is None:
            raise EngineDeadError("the engine is not running")
        return self._running

    async def start(self) -> None:
        """Import vLLM and load the model. Cancelled, it gives up a model that is still loading."""
        self._log = HOUSING.enter(self._name)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"vllm-{self._name}")
        starting = asyncio.get_running_loop().run_in_executor(self._thread, self._launch, self._log)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await self._abandon(starting)
            raise
        except EngineDeadError as error:
            self._is_broken = True
            raise EngineDeadError(f"{error}; {self._told()}") from error
        if self.running.renderer.shape.opens_thought and self.running.parser is None:
            remedy = "the model's reasoning_parser in vllm_config lets it think first"
            self._say(f"{notice_of_forms(self._name)}; {remedy}")

    async def generate(self, request: Request) -> Reply:
        """One reply. A prompt that leaves no room for a single token is not sent."""
        running = self.running
        loop = asyncio.get_running_loop()
        rendered = await loop.run_in_executor(self._tokenisers, running.renderer.render, request.prompt.messages)
        if len(rendered.ids) >= running.capacity.context_tokens:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        try:
            with running.library.errors.verdicts(self._told):
                sampling = running.sampling_of(request, traces=self._traces)
                output = await self._finished(running, rendered.ids, sampling, request.request_id)
        except EngineDeadError:
            self._is_broken = True
            raise
        is_thinking = running.is_thinking(rendered, request.prompt)
        return reply_of(output, rendered, is_thinking=is_thinking, traces=self._traces)

    async def close(self) -> None:
        """End the engine and its processes. Nothing of it stays, however that goes."""
        running, self._running = self._running, None
        try:
            if running is not None:
                await asyncio.get_running_loop().run_in_executor(self._thread, running.engine.shutdown)
        finally:
            del running
            gc.collect()  # The engine holds itself in cycles, and would shut down once more as the interpreter ends.
            if self._thread is not None:
                self._thread.shutdown(wait=False)
                self._tokenisers.shutdown(wait=False)
                self._thread = None
                HOUSING.leave(is_kept=self._is_broken)

    def _told(self) -> str:
        assert self._log is not None, "an engine that has started has a log"
        return self._log.told()

    def _launch(self, log: EngineLog) -> None:
        """Have the engine running, which takes as long as the model takes to load."""
        log.adopt()
        library = Library()
        arguments = engine_arguments(self._config, is_cpu=library.is_cpu)
        key = ("model_definitions", self._name, "vllm_config")
        with refusals(key, arguments, self._version):
            config = library.engine_config(arguments)
            parser = library.reasoning_parser(config, self._parser_settings)
            # A template that cannot work is told of before the model is loaded.
            renderer_for(library.tokenizer(config), self._config.chat_template_kwargs, section=key)
        with boundary(EngineDeadError, f"vLLM {self._version} did not start"):
            # No variable and no result may hold the engine: vLLM keeps errors it met on the way, and those the frames.
            self._running = self._equipped(library, library.engine(config, arguments), parser, key)

    def _equipped(
        self, library: Library, engine: Engine, parser: ReasoningParser | None, key: tuple[str, ...]
    ) -> Running:
        tokenizer = engine.get_tokenizer()
        return Running(
            library=library,
            engine=engine,
            renderer=renderer_for(tokenizer, self._config.chat_template_kwargs, section=key),
            parser=parser,
            capacity=capacity_of(self._config, engine.vllm_config),
            defaults=engine.vllm_config.model_config.get_diff_sampling_param(),
            keeps_special=CLOSED_THOUGHT in tokenizer.all_special_tokens,
        )

    @property
    def _parser_settings(self) -> dict[str, object]:
        """What a reasoning parser is told, here and in the engine: some go by what the template is told."""
        return {"chat_template_kwargs": dict(self._config.chat_template_kwargs)}

    async def _finished(self, running: Running, ids: list[int], sampling: object, request_id: str) -> Output:
        """The output of a request. Cancelling it takes the request out of the engine."""
        outputs = running.engine.generate(
            running.library.token_prompt(ids),
            sampling,
            request_id,
            reasoning_parser_kwargs=None if running.parser is None else self._parser_settings,
        )
        async with aclosing(outputs):
            last = [output async for output in outputs][-1]
        return last

    async def _abandon(self, starting: asyncio.Future[None]) -> None:
        """End an engine that is not wanted any more, wherever in its start it is."""
        while not starting.done():
            # Whoever starts several engines gives them all up together.
            for process in multiprocessing.active_children():
                process.kill()
            with suppress(asyncio.CancelledError):  # Cancelled again: the end is under way already.
                await self._clock.sleep(_KILL_INTERVAL_S)
        starting.exception()  # Nobody else asks for it.
