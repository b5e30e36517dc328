"""One vLLM engine in this process, behind the contract of a backend.

vLLM's `AsyncLLM` runs the model in processes of its own and talks to them from the event loop. Threads do what would
hold up the loop. One imports, starts and shuts down; it lives as long as the backend, because the engine's processes
end with it. A few others render and tokenise prompts side by side.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.chat_template import (
    Rendered,
    Renderer,
    ends_in_thought,
    notice_of_forms,
    renderers_for,
    settings_by_thinking,
)
from mac_runner.backends.http.errors import names_form
from mac_runner.backends.updates import OneAtATime, check_against, find_weights, place
from mac_runner.backends.vllm import VllmConfig
from mac_runner.backends.vllm.arguments import check_keys, engine_arguments, find_release, refusals, too_old
from mac_runner.backends.vllm.library import (
    Capacity,
    Engine,
    Library,
    Output,
    ReasoningParser,
    Tokenizer,
    capacity_of,
    is_free_to_think,
    kill,
    renderer_for,
    reply_of,
    sampling_settings,
    tags_of,
)
from mac_runner.backends.vllm.process_logs import PROCESS_LOGS, EngineLog
from mac_runner.errors import (
    ConfigError,
    EngineDeadError,
    FormRefusedError,
    RequestRefusedError,
    StaleVersionError,
    boundary,
)
from mac_runner.types import FinishReason, JsonValue, Reply, Request
from mac_runner.weights import WeightUpdate, stale

_KILL_INTERVAL_S: Final = 0.1
_END_S: Final = 5.0
"""How long the processes of an engine may take to give back what the system does not take from them."""
_GIVEN_UP_S: Final = 3.0
"""How long killed ones may take to end; one that waits for a driver may never."""
UPDATES_SINCE: Final = (0, 32)
"""The first release with versions of weights that was tried."""
_TOKENISERS_MAX: Final = 4
"""Threads. An engine often frees many slots at once, which all wait for their next prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running engine and what belongs to it."""

    library: Library
    engine: Engine
    renderers: Mapping[bool | None, Renderer]
    """One for each value that agents set `thinking` to, and one for none."""
    parsers: Mapping[bool | None, ReasoningParser | None]
    """How the engine finds the end of a thought, by the same values."""
    capacity: Capacity
    defaults: Mapping[str, JsonValue]
    """The model's own sampling settings."""
    tags: tuple[str, str]
    """What the model's thoughts begin and end with."""
    keeps_special: bool
    """Whether special tokens stay in a text, because they mark where a thought ends."""

    def sampling_of(self, request: Request, *, traces: bool = False) -> object:
        settings = sampling_settings(request.sampling, request.prompt, defaults=self.defaults, traces=traces)
        return self.library.sampling_params({**settings, "skip_special_tokens": not self.keeps_special})

    def is_thinking(self, rendered: Rendered, request: Request) -> bool:
        """Whether the reply to `request` continues a thought that the template opened."""
        parser = self.parsers[request.sampling.thinking]
        return ends_in_thought(rendered.text, self.tags[0]) and is_free_to_think(request.prompt, rendered.ids, parser)


class VllmBackend(Backend):
    """Serves one model. Building it checks its settings against the installed vLLM without importing it."""

    def __init__(self, request: BackendRequest[VllmConfig]) -> None:
        name, config = request.name, request.settings
        try:
            release = find_release()
        except ConfigError as error:
            raise type(error).at(("model_definitions", name, "backend"), str(error)) from error
        check_keys(name, config, release.arguments)
        self._asked = request
        self._name = name
        self._config = config
        self._thinking = request.thinking
        by_thinking = settings_by_thinking(config.chat_template_kwargs, self._thinking)
        self._parser_settings = {value: {"chat_template_kwargs": each} for value, each in by_thinking.items()}
        """The settings of a reasoning parser, here and in the engine: some depend on the template's settings."""
        self._clock = request.clock
        self._version = release.version
        self._running: Running | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._tokenisers = ThreadPoolExecutor(max_workers=_TOKENISERS_MAX, thread_name_prefix=f"tokens-{name}")
        self._log: EngineLog | None = None
        self._is_broken = False
        self._updates = OneAtATime()
        self._weights_version = 0

    @property
    def capacity(self) -> int:
        """The configured bound, or less if the engine allows less."""
        return self._config.max_num_seqs_upper_bound if self._running is None else self._running.capacity.requests

    @property
    def token_budget(self) -> int | None:
        """The tokens of the engine's KV cache, unless requests are admitted at full length."""
        return None if self._running is None else self._running.capacity.token_budget

    @property
    def lookahead(self) -> int:
        return 0 if self._running is None else self._running.capacity.lookahead

    @property
    def running(self) -> Running:
        """The engine and what belongs to it. Raises EngineDeadError before the start and after the end."""
        if self._running is None:
            raise EngineDeadError("the engine is not running")
        return self._running

    async def start(self) -> None:
        """Import vLLM and load the model. Cancelled, it gives up a model that is still loading."""
        self._log = PROCESS_LOGS.acquire(self._name)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"vllm-{self._name}")
        starting = asyncio.get_running_loop().run_in_executor(self._thread, self._launch, self._log)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await self._abandon(starting, self._log)
            raise
        except EngineDeadError as error:
            self._is_broken = True
            raise EngineDeadError(f"{error}; {self._hint()}") from error
        opens_thought = any(renderer.shape.opens_thought for renderer in self.running.renderers.values())
        if opens_thought and self.running.parsers[None] is None and self._asked.decoding != "none":
            remedy = "the model's reasoning_parser in vllm_config lets it think first"
            self._asked.say(f"{notice_of_forms(self._name)}; {remedy}")

    async def generate(self, request: Request) -> Reply:
        """One reply. A prompt that leaves no room for a single token is not sent."""
        running = self.running
        loop = asyncio.get_running_loop()
        renderer = running.renderers[request.sampling.thinking]
        rendered = await loop.run_in_executor(self._tokenisers, renderer.render, request.prompt.messages)
        if len(rendered.ids) >= running.capacity.context_tokens:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        try:
            with running.library.errors.verdicts(self._hint):
                sampling = running.sampling_of(request, traces=self._asked.record_tokens)
                output = await self._finished(running, rendered.ids, sampling, request)
        except EngineDeadError:
            self._is_broken = True
            raise
        except RequestRefusedError as error:
            if request.prompt.is_constrained and names_form(error.words):
                raise FormRefusedError(error.words) from error
            raise
        is_thinking = running.is_thinking(rendered, request)
        return reply_of(output, rendered, is_thinking=is_thinking, traces=self._asked.record_tokens, tags=running.tags)

    @property
    def update_obstacle(self) -> str | None:
        """What prevents updates with the installed release."""
        return too_old(self._version, UPDATES_SINCE)

    async def update_weights(self, update: WeightUpdate) -> None:
        """Have vLLM load weights. It takes no step meanwhile; replies under way go on with the new ones."""
        await self._updates.run(self._update(update))

    async def _update(self, update: WeightUpdate) -> None:
        engine = self.running.engine
        if update.version <= self._weights_version:
            raise StaleVersionError(stale(update.version, self._weights_version))
        placed = await asyncio.to_thread(place, update.weights, None, as_directory=True)
        try:
            model = await asyncio.to_thread(find_weights, self._config.model)
            # vLLM only warns of tensors that are missing, and would compute with what it has read.
            await asyncio.to_thread(check_against, placed.path, model)
            await engine.pause_generation(mode="keep")
            try:
                with boundary(EngineDeadError, "vLLM failed while it loaded weights, and may have only a part of them"):
                    await engine.collective_rpc("reload_weights", kwargs={"weights_path": str(placed.path)})
                    await engine.reset_prefix_cache(reset_running_requests=True)
                    await engine.update_weight_version(str(update.version))
                self._weights_version = update.version
            finally:
                await engine.resume_generation()
        finally:
            placed.remove()

    async def close(self) -> None:
        """End the engine and its processes. Nothing of it stays, even after an error."""
        running, self._running = self._running, None
        try:
            if running is not None:
                await self._end(running.engine)
        finally:
            del running
            gc.collect()  # The engine holds itself in cycles, and would shut down once more as the interpreter ends.
            if self._thread is not None:
                self._thread.shutdown(wait=False)
                self._tokenisers.shutdown(wait=False)
                self._thread = None
                PROCESS_LOGS.release(is_kept=self._is_broken)

    async def _end(self, engine: Engine) -> None:
        """End an engine. vLLM lets one process after another take its time, and does not wait for those it kills."""
        assert self._log is not None
        ending = asyncio.get_running_loop().run_in_executor(self._thread, engine.shutdown)
        overdue_s = self._clock.monotonic_s() + _END_S
        while not ending.done() or self._is_left(self._log, overdue_s + _GIVEN_UP_S):
            if self._clock.monotonic_s() > overdue_s:
                kill(engine)
            await self._clock.sleep(_KILL_INTERVAL_S)
        await ending

    def _is_left(self, log: EngineLog, given_up_s: float) -> bool:
        """Whether to wait for a process of an engine that is ending."""
        return self._clock.monotonic_s() < given_up_s and log.is_in_use()

    def _hint(self) -> str:
        assert self._log is not None, "an engine that has started has a log"
        return self._log.hint()

    def _launch(self, log: EngineLog) -> None:
        log.adopt()
        library = Library()
        arguments = engine_arguments(self._config, is_cpu=library.is_cpu)
        key = ("model_definitions", self._name, "vllm_config")
        with refusals(key, arguments, self._version):
            config = library.engine_config(arguments)
            parsers = {value: library.reasoning_parser(config, each) for value, each in self._parser_settings.items()}
            # A template that cannot work is refused before the model is loaded.
            self._renderers(library.tokenizer(config), key)
        with boundary(EngineDeadError, f"vLLM {self._version} did not start"):
            # No variable and no result may hold the engine: vLLM keeps caught errors, and those keep the frames.
            self._running = self._equipped(library, library.engine(config, arguments), parsers, key)

    def _equipped(
        self,
        library: Library,
        engine: Engine,
        parsers: Mapping[bool | None, ReasoningParser | None],
        key: tuple[str, ...],
    ) -> Running:
        tokenizer, tags = engine.get_tokenizer(), tags_of(parsers[None])
        return Running(
            library=library,
            engine=engine,
            renderers=self._renderers(tokenizer, key),
            parsers=parsers,
            capacity=capacity_of(self._config, engine.vllm_config),
            defaults=engine.vllm_config.model_config.get_diff_sampling_param(),
            tags=tags,
            keeps_special=tags[1] in tokenizer.all_special_tokens,
        )

    def _renderers(self, tokenizer: Tokenizer, key: tuple[str, ...]) -> Mapping[bool | None, Renderer]:
        renderer = partial(renderer_for, tokenizer, section=key)
        return renderers_for(renderer, self._config.chat_template_kwargs, self._thinking, section=key)

    async def _finished(self, running: Running, ids: list[int], sampling: object, request: Request) -> Output:
        """The output of a request. Cancelling it removes the request from the engine."""
        thinking = request.sampling.thinking
        outputs = running.engine.generate(
            running.library.token_prompt(ids),
            sampling,
            request.request_id,
            reasoning_parser_kwargs=None if running.parsers[thinking] is None else self._parser_settings[thinking],
        )
        async with aclosing(outputs):
            last = [output async for output in outputs][-1]
        return last

    async def _abandon(self, starting: asyncio.Future[None], log: EngineLog) -> None:
        """End an engine whose start was cancelled, at any point of its start."""
        given_up_s = self._clock.monotonic_s() + _END_S
        while not starting.done() or self._is_left(log, given_up_s):
            # Engines that start together are cancelled together.
            for process in multiprocessing.active_children():
                process.kill()
            with suppress(asyncio.CancelledError):  # Cancelled again: the engine is ending already.
                await self._clock.sleep(_KILL_INTERVAL_S)
        starting.exception()  # Otherwise asyncio would report it as never retrieved.
