"""A model served by Ollama: present before the run begins, asked one whole request at a time.

At its start the server is asked for its version and for the model, and told to load it; so what can be known to be
wrong is said before the first request: no server, no model, one that cannot chat or think, a context shorter than the
one asked for.

How many requests a server works on at once (its OLLAMA_NUM_PARALLEL) its API does not tell. `max_in_flight` are sent;
those beyond what the server serves at once wait in the server's own queue, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

from ollama import AsyncClient, ChatResponse, ProcessResponse

from mac_runner.backends.keys import key_in
from mac_runner.backends.ollama.pulling import follow_pull
from mac_runner.backends.ollama.settings import OllamaConfig
from mac_runner.backends.ollama.verdicts import DeniedError, PromptTooLongError, UnknownModelError, is_cut_off, verdicts
from mac_runner.backends.ollama.versions import missing_in
from mac_runner.backends.ollama.watching import watched
from mac_runner.backends.ollama.wire import KEY_VARIABLE, VERSION_CHARS_MAX, Wire, client_of, version_of
from mac_runner.backends.ollama.wording import format_of, load_options, messages_of, options_of, reply_of
from mac_runner.backends.redaction import Redactor, redacting
from mac_runner.clock import Clock
from mac_runner.errors import BackendError, ConfigError, EngineDeadError, RequestRefusedError, TransientBackendError
from mac_runner.limits import CANARY_S_MAX, OLLAMA_ANSWER_S_MAX, OLLAMA_LOAD_S_MAX
from mac_runner.types import FinishReason, Message, Prompt, Reply, Request, Sampling

_CANARY: Final = Prompt(messages=(Message(role="user", content="Hi"),))


class OllamaBackend:
    """One entry of `model_definitions` with the backend `ollama`.

    `settings` are the settings of Sampling that its agents use; with `is_pulling` a missing model is pulled.
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
    ) -> None:
        self._key = ("model_definitions", name, "ollama_config")
        self._api_key = key_in(os.environ, KEY_VARIABLE)
        self._redactor = Redactor(self._api_key)
        self._config = config
        self._settings = settings
        self._is_pulling = is_pulling
        self._clock = clock
        self._say = say
        self._context_tokens = config.num_ctx
        self._wire: Wire | None = None
        self._client: AsyncClient | None = None

    @property
    def capacity(self) -> int:
        """As configured: Ollama does not tell how many requests it serves at once."""
        return self._config.max_in_flight

    async def start(self) -> None:
        """Find the server and the model, and have it loaded, with the context it will be used with."""
        with redacting(self._redactor):
            await self._start()

    async def generate(self, request: Request) -> Reply:
        """One reply. How long a request may take is for the caller to say."""
        with redacting(self._redactor):
            return await self._generate(request)

    async def close(self) -> None:
        """Close the connections. How long the model stays loaded is for `keep_alive` to say."""
        wire, self._wire, self._client = self._wire, None, None
        if wire is not None:
            await wire.aclose()

    async def _start(self) -> None:
        await self.close()
        self._wire = Wire(self._config.host, key=self._api_key, redactor=self._redactor, clock=self._clock)
        self._client = client_of(self._wire)
        async with self._starting(OLLAMA_ANSWER_S_MAX):
            await self._check_version(self._wire)
        async with self._starting(OLLAMA_ANSWER_S_MAX):
            is_present = await self._has_model(self._client)
        if not is_present:
            async with self._starting(None):
                await self._pull(self._client)
        async with self._starting(OLLAMA_LOAD_S_MAX):
            await self._load(self._client)

    async def _generate(self, request: Request) -> Reply:
        if self._client is None:
            raise EngineDeadError("this backend was not started")
        try:
            asking = self._chat(self._client, request.prompt, request.sampling)
            response = await watched(asking, self._is_there, host=self._config.host)
        except PromptTooLongError:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        except DeniedError as error:
            if await self._denies_everybody(self._client):
                raise
            raise RequestRefusedError(str(error)) from error
        except TransientBackendError as error:
            if is_cut_off(error):
                error.is_engine_death = not await self._is_there()
            raise
        return reply_of(response, request, context_tokens=self._context_tokens, redactor=self._redactor)

    async def _chat(self, client: AsyncClient, prompt: Prompt, sampling: Sampling) -> ChatResponse:
        config = self._config
        # The client builds the request from these; what it trips over is told by `verdicts` as the server's doing.
        messages, layout, options = messages_of(prompt), format_of(prompt), options_of(sampling, num_ctx=config.num_ctx)
        with verdicts(config.host, self._redactor):
            return await client.chat(
                config.model,
                messages,
                stream=False,
                think=config.think,
                format=layout,
                options=options,
                keep_alive=config.keep_alive,
            )

    async def _denies_everybody(self, client: AsyncClient) -> bool:
        """Whether the server denies a single word, too, so that it was not just a filter that objected to a prompt.

        A denial comes at once: a word that gets no answer in time was not denied, but waits in line for the model.
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
        if self._wire is None:
            return True  # It is we who have gone, which says nothing about the server.
        try:
            async with asyncio.timeout(OLLAMA_ANSWER_S_MAX):
                await version_of(self._wire)
        except TimeoutError:
            return False
        except TransientBackendError as error:
            return not error.is_unreachable
        except BackendError:
            pass  # Whatever it has against being asked, it answers.
        return True

    @asynccontextmanager
    async def _starting(self, limit_s: float | None) -> AsyncIterator[None]:
        """One step of the start: under a deadline, and with each error as what it means at the start."""
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

    async def _check_version(self, wire: Wire) -> None:
        version = await version_of(wire)
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
        """A chat without messages loads the model; with which context, the list of loaded models tells."""
        config = self._config
        with verdicts(config.host, self._redactor):
            await client.chat(
                config.model,
                [],
                stream=False,
                think=config.think,
                options=load_options(config.num_ctx),
                keep_alive=config.keep_alive,
            )
            loaded = await client.ps()
        context_tokens = _context_tokens(loaded, config.model)
        if config.num_ctx is None:
            self._context_tokens = context_tokens
            if context_tokens is not None:
                told = f"Ollama gives {config.model!r} a context of {context_tokens} tokens; set num_ctx for another"
                self._say(f"{'.'.join(self._key)}: {told}")
        elif context_tokens is not None and context_tokens < config.num_ctx:
            raise self._refusal(
                f"found {config.num_ctx}; Ollama loads {config.model!r} with a context of {context_tokens} tokens at "
                "most",
                "num_ctx",
            )

    def _refusal(self, text: str, *setting: str) -> ConfigError:
        """What is wrong with a setting of the section, or with all of it."""
        key = (*self._key, *setting)
        return ConfigError(f"{'.'.join(key)}: {text}", key=key)


def _context_tokens(loaded: ProcessResponse, model: str) -> int | None:
    """The context that `model` is loaded with; None when the server does not tell."""
    for entry in loaded.models:
        if model.casefold() in (name := _tagged(entry.model or "").casefold(), name.removesuffix(":latest")):
            return entry.context_length or None
    return None


def _tagged(model: str) -> str:
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"
