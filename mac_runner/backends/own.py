"""Backends and scripted players that users write, named like any code of an experiment file.

A class becomes a BackendSpec, and its objects keep the contract of a backend.

What the class lacks comes from `OwnBackend`. Plain functions run on threads of their own, as many as `capacity`.
What `generate` raises besides errors of ours fails its conversation alone, and the error names the line. A result that
is not a reply does the same. A file that is not there ends the run: no other conversation would find it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from random import Random
from types import TracebackType
from typing import Any, ClassVar, Final

from pydantic import BaseModel

from mac_runner.backends.base import SAMPLING_SETTINGS, Backend, BackendRequest, Unsupported
from mac_runner.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    MacRunnerError,
    MissingPackageError,
    RequestRefusedError,
    WeightUpdateError,
    boundary,
)
from mac_runner.plugins import Plugin, place_of, plain_function
from mac_runner.problems import suggestion
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec
from mac_runner.section import NoSettings, flaw_of_model
from mac_runner.spec import Serving
from mac_runner.threads import DaemonExecutor
from mac_runner.types import (
    EFFORT_KEYS,
    Decoding,
    FinishReason,
    PolicySpan,
    Reply,
    Request,
    TokenCount,
    TokenTrace,
)
from mac_runner.weights import WeightUpdate

ASYNC_CAPACITY: Final = 8
THREAD_CAPACITY: Final = 1
_SHAPE: Final = "a backend is a class with `generate(self, request)`, or a BackendSpec"
_PLAYER_SHAPE: Final = "a player is a function `player(view, random)` that returns its reply as text"


class OwnBackend:
    """One engine, for one entry of `model_definitions`.

    An experiment names the class: `backend: ./parrot.py:Parrot`. The class need not inherit from this one; what it
    lacks is taken from here. `__init__` runs whenever an experiment is checked, so it only keeps its settings; a model
    is loaded in `start`.
    """

    Settings: ClassVar[type[BaseModel] | None] = None
    """The section `settings` of the model definition; without a model, a definition may have no settings."""
    honours: ClassVar[Collection[str]] = ()
    """The fields of `Sampling` that `generate` obeys. An agent that sets another one is refused."""
    constrains: ClassVar[Collection[Decoding]] = ()
    """What it can hold replies to, of `schema` and `json_object`: prompts then come with `schema` or `choices`."""
    records_tokens: ClassVar[bool] = False
    """Whether replies have a `trace`, which `record_tokens: true` asks for."""
    holds_memory: ClassVar[bool] = False
    """Whether its models take this machine's memory; a grid then runs such engines one after the other."""
    packages: ClassVar[Collection[str]] = ()
    """Distributions that it needs. Where one is not installed, an experiment is refused before it starts."""
    capacity: int | None = None
    """How many requests it serves at once; None: 8, or 1 where `generate` is a plain function. Known after `start`."""
    token_budget: int | None = None
    """How many tokens its KV cache holds, to admit requests by; None: admit by `capacity` alone."""
    lookahead: int = 0
    """How many requests beyond `capacity` may wait inside it."""

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    def start(self) -> Awaitable[None] | None:
        """Make the engine ready. Raises ConfigError for a wrong setting, EngineDeadError when it is not there."""
        return None

    def generate(self, request: Request) -> Reply | str | Awaitable[Reply | str]:
        """One reply: `async def`, or a plain function, which runs in a thread.

        Raises TransientBackendError for what is worth another try, RequestRefusedError for a request that will never be
        answered, EngineDeadError when no request will be.
        """
        raise NotImplementedError

    def update_weights(self, update: WeightUpdate) -> Awaitable[None] | None:
        """Install the weights of a trainer, where the class has this; its replies then have a `policy`.

        Once it returns, every later reply is of `update.version`. Raises WeightUpdateError, or one of its kinds, and
        then goes on with the weights it had. What else it raises counts as WeightUpdateError.
        """
        raise NotImplementedError

    def close(self) -> Awaitable[None] | None:
        """Release everything; safe to call twice and after a failed start."""
        return None


class _CodeError(MacRunnerError):
    """A user's code raised a plain exception."""


class _blamed(boundary):  # noqa: N801 - it reads as a verb
    """Turn a plain exception of a user's code into what `blame` makes of it; None leaves it as it is."""

    __slots__ = ("_blame",)

    def __init__(self, blame: Callable[[BaseException], MacRunnerError | None]) -> None:
        super().__init__(_CodeError, "code")
        self._blame = blame

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, fault, trace)
        except _CodeError:
            assert fault is not None, "what was raised"
            if (error := self._blame(fault)) is not None:
                raise error from fault


@dataclass(frozen=True, slots=True)
class OwnPlayer:
    """A player by its name and the digest of its code, which make two of them the same program."""

    name: str
    sha256: str
    function: Callable[[object, Random], object] = field(compare=False, repr=False)

    def __call__(self, view: object, random: Random) -> str:
        """Its reply. Raises RequestRefusedError with the line that failed: the conversation fails, the run goes on."""
        with _blamed(self._failed):
            reply = self.function(view, random)
            if not isinstance(reply, str):
                raise TypeError(f"it returned {type(reply).__name__}; {_PLAYER_SHAPE}")
            return reply

    def _failed(self, cause: BaseException) -> RequestRefusedError:
        return RequestRefusedError(f"the scripted player {self.name!r} failed: {place_of(cause, has_folder=False)}")


def own_player(plugin: Plugin) -> OwnPlayer:
    """The player of an object that an experiment names. Raises ConfigError for an object that is none."""
    return OwnPlayer(plugin.name, plugin.code.sha256, plain_function(plugin, 2, _PLAYER_SHAPE))


def own_spec(plugin: Plugin) -> BackendSpec[Any]:
    """The spec of a backend by its object. Raises ConfigError: what is wrong with it, where, and what to do."""
    value = plugin.value
    if isinstance(value, BackendSpec):
        return replace(value, build=partial(_built_by, plugin, value))
    refused = partial(_refused, plugin)
    if not isinstance(value, type):
        raise refused(f"it is {type(value).__name__}; {_SHAPE}")
    generate = getattr(value, "generate", None)
    if not callable(generate) or generate is OwnBackend.generate:
        raise refused(f"the class has no `generate`; {_SHAPE}")
    if inspect.isasyncgenfunction(generate) or inspect.isgeneratorfunction(generate):
        raise refused("`generate` yields; it returns one whole reply, with `return`")
    settings = _of(value, "Settings")
    if settings is not None and not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise refused("`Settings` is not a pydantic model; write `class Settings(pydantic.BaseModel)` inside it")
    if settings is not None and (flaw := flaw_of_model(settings)):
        raise refused(f"its settings cannot be read from an experiment file: {flaw}")
    packages = _of(value, "packages")
    if isinstance(packages, str) or not all(isinstance(package, str) for package in packages):
        raise refused(f"`packages` is {packages!r}; it is a tuple of names, such as ('torch',)")
    honours = _names(refused, value, "honours", SAMPLING_SETTINGS)
    constrains = _names(refused, value, "constrains", CONSTRAINS_ALL)
    return BackendSpec(
        settings=NoSettings if settings is None else settings,
        build=partial(_build, plugin, value, honours),
        describe=lambda _settings: plugin.name,
        packages=tuple(packages),
        holds_memory=bool(_of(value, "holds_memory")),
        constrains=lambda _settings: constrains,
        honours=lambda _settings: honours & set(EFFORT_KEYS),
        serving=_serving,
    )


def _serving(settings: BaseModel) -> Serving:
    """How a model is served, by settings that bear the names of those of built-in backends."""

    def number(*names: str) -> int | None:
        found = (getattr(settings, name, None) for name in names)
        return next((value for value in found if isinstance(value, int) and value > 0), None)

    model, urls = getattr(settings, "model", None), getattr(settings, "base_urls", ())
    lanes = len(urls) or number("lanes", "data_parallel_size")
    slots, whole = number("max_num_seqs"), number("max_in_flight", "max_num_seqs_upper_bound")
    if slots is None and whole is not None:
        slots = max(1, whole // (lanes or 1))
    alone: dict[str, object] = {}
    if urls:
        alone = {"base_urls": urls[:1], "max_in_flight": slots} if number("max_in_flight") else {"base_urls": urls[:1]}
    elif number("data_parallel_size"):
        alone = {"data_parallel_size": 1}
    return Serving(
        model=None if model is None else str(model),
        lanes=lanes,
        slots=slots,
        gpus=number("tensor_parallel_size") or 1,
        step_tokens=number("max_num_batched_tokens"),
        context_tokens=number("max_model_len"),
        alone=alone,
        url=str(urls[0]) if urls else None,
    )


def _refused(plugin: Plugin, reason: str) -> ConfigError:
    return ConfigError(f"{plugin.name!r} ({plugin.code.path}) cannot be used as a backend: {reason}")


def _of(value: type, name: str) -> Any:
    return getattr(value, name, getattr(OwnBackend, name))


def _names(refused: Callable[[str], ConfigError], value: type, name: str, known: Collection[str]) -> frozenset[Any]:
    found = _of(value, name)
    if isinstance(found, str) or not isinstance(found, Collection):
        raise refused(f"`{name}` is {found!r}; it is a set of names, such as {{{sorted(known)[0]!r}}}")
    for one in found:
        if one not in known:
            raise refused(f"`{name}` holds {one!r}{suggestion(str(one), sorted(known))}")
    return frozenset(found)


def _build(plugin: Plugin, value: type, honours: frozenset[str], request: BackendRequest[Any]) -> Backend:
    obeys = "leave it out, or, where the backend obeys it, add it to the `honours` of its class"
    request.refuse(Unsupported(settings=SAMPLING_SETTINGS - honours, remedy=obeys))
    for package in _of(value, "packages"):
        try:
            version(package)
        except PackageNotFoundError:
            text = f"{request.backend!r} needs the package {package!r}, which is not installed; install it"
            raise MissingPackageError.at(("model_definitions", request.name, "backend"), text) from None
    traces = "leave it out, or give its replies a `trace` and the class `records_tokens = True`"
    request.refuse(Unsupported(tokens=not _of(value, "records_tokens"), remedy=traces))
    arguments = () if _of(value, "Settings") is None else (request.settings,)

    def failed(cause: BaseException) -> ConfigError:
        takes = ", which takes the settings where the class has `Settings`, and else nothing"
        return _not_made(plugin, request, cause, f"mend its __init__{takes if isinstance(cause, TypeError) else ''}")

    with _blamed(failed):
        own = value(*arguments)
    return _Adapted(plugin, own, needs_trace=request.record_tokens)


def _built_by(plugin: Plugin, spec: BackendSpec[Any], request: BackendRequest[Any]) -> Backend:
    """What a spec of a user's own builds; what its code raises names the line."""

    def failed(cause: BaseException) -> ConfigError | None:
        if isinstance(cause, ModuleNotFoundError):
            return None  # Who asked for the backend says what to install.
        return _not_made(plugin, request, cause, "mend the `build` of its spec")

    with _blamed(failed):
        return spec.build(request)


def _not_made(plugin: Plugin, request: BackendRequest[Any], cause: BaseException, mend: str) -> ConfigError:
    text = f"{plugin.name!r} cannot be made: {place_of(cause)}; {mend}"
    return ConfigError.at(("model_definitions", request.name, "backend"), text)


class _Adapted(Backend):
    """An object of a user's class behind the contract of a backend."""

    def __init__(self, plugin: Plugin, own: Any, *, needs_trace: bool = False) -> None:
        self._plugin = plugin
        self._own = own
        self._needs_trace = needs_trace
        self._is_async = inspect.iscoroutinefunction(own.generate)
        self._executor: DaemonExecutor | None = None

    @property
    def capacity(self) -> int:
        """What the object says, else 8, or 1 where `generate` is a plain function."""
        default = ASYNC_CAPACITY if self._is_async else THREAD_CAPACITY
        return self._count("capacity", default, at_least=1)

    @property
    def token_budget(self) -> int | None:
        return self._count("token_budget", 0, at_least=0) or None

    @property
    def lookahead(self) -> int:
        return self._count("lookahead", 0, at_least=0)

    async def start(self) -> None:
        """Start the object. What it raises besides errors of ours is a setting or code to mend."""
        await self._called("start")
        _ = self.capacity, self.token_budget, self.lookahead

    async def generate(self, request: Request) -> Reply:
        """The object's reply; a text counts as one. Raises a BackendError for a failure of its code."""
        with _blamed(self._not_generated):
            if self._is_async:
                return self._checked(await self._own.generate(request))
            if self._executor is None:
                threads = self.capacity + self.lookahead
                self._executor = DaemonExecutor(threads, f"mac-runner-{type(self._own).__name__}")
            call = partial(self._own.generate, request)
            return self._checked(await asyncio.get_running_loop().run_in_executor(self._executor, call))

    def _not_generated(self, cause: BaseException) -> BackendError | None:
        if isinstance(cause, ConnectionError | TimeoutError):
            return None  # The scheduler knows what they mean.
        text = f"its backend {self._plugin.name!r} failed: {place_of(cause, has_folder=False)}"
        if isinstance(cause, FileNotFoundError):
            return EngineDeadError(f"{text}; put the file back and run the same command again")
        return RequestRefusedError(text)

    @property
    def update_obstacle(self) -> str | None:
        """That the class has no `update_weights`."""
        method = getattr(type(self._own), "update_weights", None)
        return "give its class an `update_weights`" if method in (None, OwnBackend.update_weights) else None

    async def update_weights(self, update: WeightUpdate) -> None:
        await self._called("update_weights", update, kind=WeightUpdateError)

    async def close(self) -> None:
        """Close the object, then its threads, which end with the calls under way."""
        try:
            await self._called("close")
        finally:
            if self._executor is not None:
                self._executor.shutdown(wait=False, cancel_futures=True)
                self._executor = None

    async def _called(self, name: str, *arguments: object, kind: type[MacRunnerError] = EngineDeadError) -> None:
        """Call a method if the object has it; a plain function runs in a thread. Raises `kind` where it fails."""
        method = getattr(self._own, name, None)
        if method is None:
            return
        with _blamed(lambda cause: kind(f"its backend {self._plugin.name!r} failed in `{name}`: {place_of(cause)}")):
            if inspect.iscoroutinefunction(method):
                await method(*arguments)
                return
            executor = DaemonExecutor(1, f"mac-runner-{type(self._own).__name__}")
            try:
                await asyncio.get_running_loop().run_in_executor(executor, method, *arguments)
            finally:
                executor.shutdown(wait=False)

    def _count(self, name: str, default: int, *, at_least: int) -> int:
        with boundary(EngineDeadError, f"`{name}` of its backend {self._plugin.name!r} failed"):
            value = getattr(self._own, name, None)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise EngineDeadError(
                f"`{name}` of its backend {self._plugin.name!r} is {value!r}; allowed: a whole number from {at_least}"
            )
        return value

    def _checked(self, found: object) -> Reply:
        """What `generate` returned as a reply. Raises TypeError saying what is wrong with it."""
        reply = Reply(text=found) if isinstance(found, str) else found
        if not isinstance(reply, Reply):
            hint = ""
            if inspect.iscoroutine(found):
                found.close()
                hint = "; write `async def generate`, or return its result"
            raise TypeError(f"`generate` returned {type(found).__name__}; it returns a Reply or a text{hint}")
        for name, kind in _REPLY.items():
            if not isinstance(getattr(reply, name), kind):
                raise TypeError(f"`generate` returned a Reply whose {name} is {getattr(reply, name)!r:.80}")
        counts: tuple[Any, ...] = (reply.tokens.prompt, reply.tokens.cached, reply.tokens.completion)
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise TypeError(f"`generate` returned a Reply whose tokens are {counts}; they are whole numbers from 0")
        if reply.finish_reason is FinishReason.OVERFLOW and reply.text:
            raise TypeError("`generate` returned an OVERFLOW with a text; a prompt that does not fit has no reply")
        if self._needs_trace and reply.trace is None and reply.finish_reason is not FinishReason.OVERFLOW:
            raise TypeError("`generate` returned a Reply without a `trace`, which `record_tokens: true` asks for")
        if reply.trace is not None and len(reply.trace.completion) != len(reply.trace.likelihoods):
            raise TypeError("`generate` returned a Reply whose trace has not one log-probability for each token")
        if reply.trace is not None and not all(map(isfinite, reply.trace.logprobs)):
            raise TypeError("`generate` returned a Reply whose trace has a log-probability that is not a finite number")
        return reply


_REPLY: Final[dict[str, Any]] = {
    "text": str,
    "thinking": str | None,
    "finish_reason": FinishReason,
    "tokens": TokenCount,
    "trace": TokenTrace | None,
    "policy": PolicySpan | None,
}
