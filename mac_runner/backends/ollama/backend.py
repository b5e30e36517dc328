"""A model served by Ollama, through its official client.

At the start the server is asked for its version and the model, and loads it. So a missing server or model, a model that
cannot chat or think, and a context shorter than configured are errors before the first request.

Ollama's API does not say how many requests the server works on at once (its OLLAMA_NUM_PARALLEL). `max_in_flight` are
sent; those beyond what the server works on wait in its own queue, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mac_runner.backends.chat_template import conversation_of
from mac_runner.backends.ollama.connection import (
    KEY_VARIABLE,
    OLLAMA_ANSWER_S_MAX,
    VERSION_CHARS_MAX,
    Transport,
    client_of,
    version_of,
)
from mac_runner.backends.ollama.errors import DeniedError, UnknownModelError, is_cut_off, verdicts
from mac_runner.backends.ollama.settings import OllamaConfig, missing_in
from mac_runner.backends.ollama.translation import format_of, load_options, options_of, reply_of, think_of
from mac_runner.backends.redaction import Redactor, key_in, redacting
from mac_runner.backends.refusals import AnsweredError, ChatTemplate, worth_trying
from mac_runner.clock import Clock
from mac_runner.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    FormRefusedError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.types import Message, Prompt, Reply, Request, Sampling

if TYPE_CHECKING:
    from ollama import AsyncClient, ChatResponse, ProcessResponse, ProgressResponse

CANARY_S_MAX: Final = 10.0
OLLAMA_LOOK_INTERVAL_S: Final = 20.0
"""How often the server is looked at while it takes its time over a reply."""
OLLAMA_LOAD_S_MAX: Final = 600.0
OLLAMA_PULL_STALL_S_MAX: Final = 300.0
"""How long a pull may bring nothing."""
OLLAMA_PULL_SAY_INTERVAL_S: Final = 5.0

T = TypeVar("T")

_CANARY: Final = Prompt(messages=(Message(role="user", content="Hi"),))


class OllamaBackend:
    """One entry of `model_definitions` with the backend `ollama`.

    `settings` are the fields of Sampling that its agents set; with `is_pulling` a missing model is pulled.
    `has_thinkers` says that some agent asks the model to think, so that one that cannot is refused at the start.
    """

    token_budget: int | None = None
    lookahead: int = 0

    def __init__(
        self,
        *,
        name: str,
        config: OllamaConfig,
        settings: Collection[str],
        is_pulling: bool,
        clock: Clock,
        say: Callable[[str], None],
        has_thinkers: bool = False,
    ) -> None:
        self._key = ("model_definitions", name, "ollama_config")
        self._api_key = key_in(os.environ, KEY_VARIABLE)
        self._redactor = Redactor(self._api_key)
        self._config = config
        self._settings = settings
        self._has_thinkers = has_thinkers
        self._is_pulling = is_pulling
        self._clock = clock
        self._say = say
        self._context_tokens = config.num_ctx
        self._template = ChatTemplate()
        self._transport: Transport | None = None
        self._client: AsyncClient | None = None

    @property
    def capacity(self) -> int:
        """As configured: Ollama does not say how many requests it serves at once."""
        return self._config.max_in_flight

    async def generate(self, request: Request) -> Reply:
        """One reply. The caller sets the deadline of a request."""
        with redacting(self._redactor):
            if self._client is None:
                raise EngineDeadError("this backend was not started")
            try:
                response = await self._template.ask(request, partial(self._answer, self._client))
            except AnsweredError as error:
                return error.reply
            except FormRefusedError as error:
                if request.prompt.is_constrained:
                    raise
                raise RequestRefusedError(str(error)) from error
            except RequestRefusedError as error:
                raise RequestRefusedError(f"{error}{worth_trying('another num_ctx')}") from error
            except DeniedError as error:
                if await self._denies_all(self._client):
                    raise
                raise RequestRefusedError(str(error)) from error
            except TransientBackendError as error:
                if is_cut_off(error):
                    error.is_engine_death = not await self._is_there()
                raise
            return reply_of(response, request, context_tokens=self._context_tokens, redactor=self._redactor)

    async def _answer(self, client: AsyncClient, request: Request) -> ChatResponse:
        chat = self._chat(client, request.prompt, request.sampling)
        return await watched(chat, self._is_there, host=self._config.host)

    async def _chat(self, client: AsyncClient, prompt: Prompt, sampling: Sampling) -> ChatResponse:
        config = self._config
        # Built outside `verdicts`, which takes every error for the server's.
        messages, layout = conversation_of(prompt.messages), format_of(prompt)
        options = options_of(sampling, num_ctx=config.num_ctx)
        with verdicts(config.host, self._redactor):
            return await client.chat(
                config.model,
                messages,
                stream=False,
                think=think_of(sampling, default=config.think),
                format=layout,
                options=options,
                keep_alive=config.keep_alive,
            )

    async def _denies_all(self, client: AsyncClient) -> bool:
        """Whether the server also denies a single word, so that it was not just a filter that objected to a prompt.

        A denial comes at once: a word that gets no answer in time was not denied, but waits for the model.
        """
        try:
            async with asyncio.timeout(CANARY_S_MAX):
                await self._chat(client, _CANARY, Sampling(max_tokens=1))
        except DeniedError:
            return True
        except (TimeoutError, RequestRefusedError):
            return False
        return False

    async def _is_there(self) -> bool:
        """Whether the server answers at all."""
        if self._transport is None:
            return True  # We have closed, which says nothing about the server.
        try:
            async with asyncio.timeout(OLLAMA_ANSWER_S_MAX):
                await version_of(self._transport)
        except TimeoutError:
            return False
        except TransientBackendError as error:
            return not error.is_unreachable
        except BackendError:
            pass  # It answers, if with an error.
        return True

    async def start(self) -> None:
        """Find the server and the model, and load it with the context it will be used with.

        Raises ConfigError, or EngineDeadError when the server does not answer.
        """
        with redacting(self._redactor):
            await self.close()
            self._transport = Transport(
                self._config.host, key=self._api_key, redactor=self._redactor, clock=self._clock
            )
            self._client = client_of(self._transport)
            async with self._starting(OLLAMA_ANSWER_S_MAX):
                await self._check_version(self._transport)
            async with self._starting(OLLAMA_ANSWER_S_MAX):
                is_present = await self._has_model(self._client)
            if not is_present:
                async with self._starting(None):
                    await self._pull(self._client)
            async with self._starting(OLLAMA_LOAD_S_MAX):
                await self._load(self._client)

    async def close(self) -> None:
        """Close the connections. `keep_alive` says how long the model stays loaded."""
        transport, self._transport, self._client = self._transport, None, None
        if transport is not None:
            await transport.aclose()

    @asynccontextmanager
    async def _starting(self, limit_s: float | None) -> AsyncIterator[None]:
        """One step of the start: under a deadline, and with each error as it counts at the start."""
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            raise EngineDeadError(f"Ollama at {self._config.host} did not answer within {limit_s} s") from None
        except TransientBackendError as error:
            advice = "; start it (`ollama serve`), or say where it is with `host`" if error.is_unreachable else ""
            raise EngineDeadError(f"{error}{advice}") from error
        except (RequestRefusedError, UnknownModelError) as error:
            raise self._refusal(str(error), *(["model"] if isinstance(error, UnknownModelError) else [])) from error
        except DeniedError as error:
            raise self._refusal(f"{error}; set {KEY_VARIABLE} to a key that the server takes") from error

    async def _check_version(self, transport: Transport) -> None:
        version = await version_of(transport)
        missing = missing_in(version, settings=self._settings)
        if missing is not None:
            shown = self._redactor.quoted(version, VERSION_CHARS_MAX)
            raise self._refusal(f"Ollama {shown} at {self._config.host} will not do: {missing}")

    async def _has_model(self, client: AsyncClient) -> bool:
        model = self._config.model
        try:
            with verdicts(self._config.host, self._redactor):
                await client.show(model)
        except UnknownModelError:
            if self._is_pulling:
                return False
            raise self._refusal(
                f"Ollama at {self._config.host} has no model {model!r}; run `ollama pull {model}`, or start the "
                "run with --pull",
                "model",
            ) from None
        return True

    async def _pull(self, client: AsyncClient) -> None:
        with verdicts(self._config.host, self._redactor):
            progress = await client.pull(self._config.model, stream=True)
        await follow_pull(
            self._config.model,
            progress,
            host=self._config.host,
            redactor=self._redactor,
            clock=self._clock,
            say=self._say,
        )

    async def _load(self, client: AsyncClient) -> None:
        """A chat without messages loads the model; the list of loaded models says with which context."""
        config = self._config
        with verdicts(config.host, self._redactor):
            await client.chat(
                config.model,
                [],
                stream=False,
                think=self._has_thinkers or config.think,
                options=load_options(config.num_ctx),
                keep_alive=config.keep_alive,
            )
            loaded = await client.ps()
        context_tokens = _context_tokens(loaded, config.model)
        if config.num_ctx is None:
            self._context_tokens = context_tokens
            if context_tokens is not None:
                notice = f"Ollama gives {config.model!r} a context of {context_tokens} tokens; set num_ctx for another"
                self._say(f"{'.'.join(self._key)}: {notice}")
        elif context_tokens is not None and context_tokens < config.num_ctx:
            raise self._refusal(
                f"found {config.num_ctx}; Ollama loads {config.model!r} with a context of {context_tokens} tokens at "
                "most",
                "num_ctx",
            )

    def _refusal(self, text: str, *setting: str) -> ConfigError:
        """The error for a setting of the section, or for all of it."""
        key = (*self._key, *setting)
        return ConfigError(f"{'.'.join(key)}: {text}", key=key)


def _context_tokens(loaded: ProcessResponse, model: str) -> int | None:
    """The context that `model` is loaded with; None when the server does not say."""
    for entry in loaded.models:
        if model.casefold() in (name := _tagged(entry.model or "").casefold(), name.removesuffix(":latest")):
            return entry.context_length or None
    return None


def _tagged(model: str) -> str:
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"


async def watched(chat: Coroutine[Any, Any, T], is_there: Callable[[], Awaitable[bool]], *, host: str) -> T:
    """The result of `chat`. Raises TransientBackendError once the server answers no other question either.

    The time of a reply says nothing: Ollama queues requests, and a laptop is slow. So a server counts as hanging when
    it no longer answers anything.
    """
    task = asyncio.create_task(chat)
    task.add_done_callback(_retrieve)
    try:
        while not (await asyncio.wait([task], timeout=OLLAMA_LOOK_INTERVAL_S))[0]:
            if not await is_there() and not task.done():
                raise TransientBackendError(f"Ollama at {host} hangs: it answers no request", is_unreachable=True)
        return task.result()
    finally:
        if task.cancel():
            await asyncio.wait([task], timeout=OLLAMA_ANSWER_S_MAX)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take a fault that comes after the caller has gone: asyncio would report it as an error of the program."""
    if not task.cancelled():
        task.exception()


async def follow_pull(
    model: str,
    progress: AsyncIterator[ProgressResponse],
    *,
    host: str,
    redactor: Redactor,
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Follow a pull to its end, with a line every OLLAMA_PULL_SAY_INTERVAL_S.

    A pull may take hours, so only its silence is bounded. What has arrived stays with Ollama, and the next pull goes
    on from there. Raises EngineDeadError when it stalls or ends too early, else a BackendError.
    """
    last, said_at_s = "", float("-inf")
    while (step := await _next_step(model, progress, host, redactor)) is not None:
        line = f"pulling {model}: {_described(step, redactor)}"
        if line != last and clock.monotonic_s() - said_at_s >= OLLAMA_PULL_SAY_INTERVAL_S:
            last, said_at_s = line, clock.monotonic_s()
            say(line)
        if step.status == "success":
            say(f"pulling {model}: done")
            return
    raise EngineDeadError(f"the pull of {model} ended before it succeeded; run the same command again to go on with it")


async def _next_step(
    model: str, progress: AsyncIterator[ProgressResponse], host: str, redactor: Redactor
) -> ProgressResponse | None:
    try:
        async with asyncio.timeout(OLLAMA_PULL_STALL_S_MAX):
            with verdicts(host, redactor):
                return await anext(progress, None)
    except TimeoutError:
        raise EngineDeadError(
            f"the pull of {model} brought nothing for {OLLAMA_PULL_STALL_S_MAX:.0f} s; "
            "run the same command again to go on with it"
        ) from None


def _described(step: ProgressResponse, redactor: Redactor) -> str:
    status = redactor.quoted(step.status or "", 80)
    if not step.total:
        return status
    return f"{status}, {(step.completed or 0) / step.total:.0%} of {step.total / 1e6:,.0f} MB"
