"""One vLLM engine in this process, behind the contract of a backend.

vLLM's `AsyncLLMEngine` runs the model in processes of its own and talks to them from the event loop. Threads do what
would hold up the loop. One imports, starts and shuts down; it lives as long as the backend, because the engine's
processes end with it. A few others render and tokenise prompts side by side.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import metadata
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from mac_runner.backends.base import Backend, BackendRequest, structured_outputs
from mac_runner.backends.chat_template import (
    Rendered,
    Renderer,
    ends_in_thought,
    notice_of_forms,
    renderers_for,
    settings_by_thinking,
)
from mac_runner.backends.http.errors import names_form
from mac_runner.backends.redaction import clipped
from mac_runner.backends.updates import OneAtATime, check_against, find_weights, place
from mac_runner.backends.vllm.library import (
    Capacity,
    Engine,
    Library,
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
from mac_runner.backends.vllm.settings import VllmConfig
from mac_runner.config import allowed
from mac_runner.errors import (
    ConfigError,
    EngineDeadError,
    FormRefusedError,
    MissingPackageError,
    RequestRefusedError,
    StaleVersionError,
    boundary,
)
from mac_runner.extras import install_command
from mac_runner.spec import AgentDefinition
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
        settings = sampling_settings(request.sampling, defaults=self.defaults, traces=traces)
        settings["skip_special_tokens"] = not self.keeps_special
        return self.library.sampling_params(settings, structured_outputs(request.prompt))

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

    async def _finished(self, running: Running, ids: list[int], sampling: object, request: Request) -> Any:
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


# Arguments of the engine. Which there are is read from the source of the installed release. Nothing of vLLM is imported
# for it: an import takes seconds, and a misspelt key is to be refused at once.

OLDEST: Final = (0, 31)
"""The oldest release that has the names in `library`. docs/engines.md says which releases were run."""

_ARGUMENT_CLASSES: Final = frozenset({"EngineArgs", "AsyncEngineArgs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """An installed vLLM that can be used: its version, and every argument that its engine takes."""

    version: str
    arguments: frozenset[str]


def find_release() -> Release:
    """The installed release. Raises ConfigError when vLLM is missing or cannot be used."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(f"vLLM is not installed: {install_command('vllm')}, or choose another backend")
    # Builds for other hardware than NVIDIA's have distribution names of their own.
    names = metadata.packages_distributions().get("vllm", ())
    version = metadata.version(names[0]) if names else "of unknown version"
    if lack := too_old(version, OLDEST):  # Newer ones than were ever run are accepted.
        raise ConfigError(f"{lack}: {install_command('vllm')}")
    path = Path(spec.submodule_search_locations[0]) / "engine" / "arg_utils.py"
    arguments = argument_names(SourceFileLoader("arg_utils", str(path)).get_source("arg_utils") or "")
    if not arguments:
        raise ConfigError(f"vLLM {version} lists no engine arguments in {path}; install an older one")
    return Release(version=version, arguments=arguments)


def too_old(version: str, oldest: tuple[int, int]) -> str | None:
    """What to say of a release that is older than `oldest`; None where it is not, or its version has no number."""
    parts = version.split(".")[:2]
    if not all(part.isdigit() for part in parts) or tuple(map(int, parts)) >= oldest:
        return None
    return f"vLLM {version} is installed, and {'.'.join(map(str, oldest))} or newer is needed"


def argument_names(source: str) -> frozenset[str]:
    return frozenset(
        statement.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name in _ARGUMENT_CLASSES
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and not statement.target.id.startswith("_")
    )


OURS: Final = frozenset({"max_num_seqs_upper_bound", "admission", "chat_template_kwargs"})
"""The keys of `vllm_config` that are not vLLM's."""

LOGGING: Final = frozenset({"log_config_file", "log_level", "logging_config"})
"""The arguments for what vLLM logs, and where. All engines of a process share its loggers, so the environment sets both
for all of them.
"""

TEMPERATURE_MIN: Final = 0.01
TEMPERATURE_MAX: Final = 2
"""The bounds of vLLM's SamplingParams besides 0: they refuse more, and silently raise less to the minimum."""

RESERVED: Final = frozenset(
    {
        "conversation",
        "messages",
        "tokenize",
        "tokenizer_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
    }
)
"""The tokenizer's own parameters when it applies a template; no variable of a template can have these names."""


def check_keys(name: str, config: VllmConfig, known: Iterable[str]) -> None:
    """Raise ConfigError for a key of model `name` that vLLM does not know, or that its engine or template cannot take.

    `known` are the arguments of the installed release.
    """
    section = ("model_definitions", name, "vllm_config")
    for variable in RESERVED & config.chat_template_kwargs.keys():
        place = (*section, "chat_template_kwargs", variable)
        raise ConfigError.at(place, "the name means something else to every tokenizer")
    allowed = frozenset(known)
    for key in engine_arguments(config, is_cpu=False):
        if key in LOGGING:
            text = "all engines of a process log alike; leave it out, and set VLLM_LOGGING_LEVEL in the environment"
            raise ConfigError.at((*section, key), f"{text}, or VLLM_LOGGING_CONFIG_PATH to a file of your own")
        if key not in allowed:
            near = get_close_matches(key, sorted((allowed | OURS) - LOGGING), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError.at((*section, key), f"the installed vLLM knows no such engine argument{hint}")


def objections(agent: AgentDefinition) -> Iterator[tuple[str, str]]:
    """A temperature that vLLM would refuse or change, with the reason."""
    if agent.temperature != 0 and not TEMPERATURE_MIN <= agent.temperature <= TEMPERATURE_MAX:
        text = f"vLLM takes 0, or {TEMPERATURE_MIN} to {TEMPERATURE_MAX}; found {agent.temperature}"
        yield "temperature", text


def engine_arguments(config: VllmConfig, *, is_cpu: bool) -> dict[str, JsonValue]:
    """Every argument of the engine; vLLM decides what the section leaves open."""
    given: dict[str, JsonValue] = {
        key: value for key, value in config.model_dump(mode="json").items() if key not in OURS and value is not None
    }
    # Each copy gets its share of the requests.
    share = -(-config.max_num_seqs_upper_bound // config.data_parallel_size)
    # Statistics cost part of a core, and go to a log that the user does not see.
    defaults: dict[str, JsonValue] = {"max_num_seqs": share, "disable_log_stats": True}
    if is_cpu:
        # After a part of a prompt vLLM reverts one draw, which torch cannot do with a generator on the CPU: the engine
        # dies at the first seeded prompt that is computed in parts.
        defaults["enable_chunked_prefill"] = False
    return {**defaults, **given}


@contextmanager
def refusals(section: tuple[str, ...], settings: Mapping[str, JsonValue], release: str) -> Iterator[None]:
    """Turn any error that vLLM raises while it checks the `settings` of a section into a ConfigError.

    The error has the key of the setting at fault if vLLM names it. `release` is the version of vLLM.
    """
    try:
        with boundary(ConfigError, f"vLLM {release} refuses it"):
            yield
    except ConfigError as error:
        if error.__cause__ is None or error.key:
            raise
        setting, gist = gist_of(error.__cause__)
        key = section + _place_of("model" if setting is None and str(settings["model"]) in gist else setting, settings)
        if setting is not None and key[-1] != setting:
            gist = f"{setting}: {gist}"
        raise ConfigError.at(key, f"vLLM {release} refuses it: {gist}") from error.__cause__


def _place_of(setting: str | None, settings: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """The keys below the section of a setting that vLLM names; empty if it is not found there.

    vLLM uses the name in its own configuration. The section may have that part as a mapping, or another name for it.
    """
    if setting is None:
        return ()
    if setting in settings:
        return (setting,)
    parts = (part for part, given in settings.items() if isinstance(given, dict) and setting in given)
    return next(((part, setting) for part in parts), ())


def gist_of(fault: BaseException) -> tuple[str | None, str]:
    """The setting that an error names, if any, and the first line of its text.

    An error of pydantic has a list of errors instead, each with a place and a message; the first one counts.
    """
    listed: Callable[[], list[dict[str, object]]] | None = getattr(fault, "errors", None)
    text, setting = str(fault), None
    if listed is not None and (first := next(iter(listed()), None)) is not None:
        place = first.get("loc")
        setting = next((part for part in place if isinstance(part, str)), None) if isinstance(place, tuple) else None
        context = first.get("ctx")
        wanted = allowed(str(first.get("type")), context if isinstance(context, dict) else {})
        message = str(first.get("msg")).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        text = message if wanted is None else f"allowed: {wanted}"
    line = next((line for line in text.splitlines() if line.strip()), type(fault).__name__)
    return setting, clipped(line).rstrip(":")
