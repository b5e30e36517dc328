"""Models served by Ollama: requests go through the client of all servers, questions about models through Ollama's own.

At the start each server is asked for its version and the model, and loads it: what is missing, or will not do, is an
error before the first request.

Ollama's API does not say how many requests a server works on at once (its OLLAMA_NUM_PARALLEL). `max_in_flight` are
sent; those beyond what the servers work on wait in their own queues, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from ssl import SSLContext, create_default_context
from typing import Final

import httpx
from pydantic import ValidationError
from yarl import URL

from mac_runner.backends.base import BackendRequest
from mac_runner.backends.dialects.ollama import KEY_VARIABLE, OllamaDialect, load_options
from mac_runner.backends.http.answer import Answer, SendingError, Standing, encoded, malformed, page_of
from mac_runner.backends.http.backend import HttpBackend
from mac_runner.backends.http.client import HttpClient
from mac_runner.backends.http.endpoints import Endpoint
from mac_runner.backends.http.settings import OllamaConfig
from mac_runner.backends.redaction import Redactor, bearer, key_in, redacting
from mac_runner.client_settings import KEY_LOG, no_client_settings
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, EngineDeadError
from mac_runner.types import JsonObject

with no_client_settings():  # The package makes a client when it is imported, as the environment would have it.
    import ollama

OLLAMA_ANSWER_S_MAX: Final = 10.0
"""How long a server may take to open a connection, or to answer a question."""
OLLAMA_LOAD_S_MAX: Final = 600.0
OLLAMA_PULL_STALL_S_MAX: Final = 300.0
"""How long a pull may bring nothing."""
OLLAMA_PULL_SAY_INTERVAL_S: Final = 5.0
_VERSION_CHARS_MAX: Final = 40
_NOT_FOUND: Final = 404
_FIRST_STATUS: Final = 100
_NO_MANIFEST: Final = "file does not exist"
"""What a pull says for a model that is not published."""
_VERSION: Final = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)
_WHOLE_PROMPTS_SINCE: Final = (0, 12, 6)
"""An older server shortens a prompt that does not fit the context, whatever the request says."""
_PENALTIES_SINCE: Final = (0, 30, 0)
"""In an older server the engine for newer models ignores penalties."""
_PENALTIES: Final = frozenset({"presence_penalty", "frequency_penalty", "repetition_penalty"})


class OllamaBackend(HttpBackend):
    """One entry of `model_definitions` with the backend `ollama`."""

    dialect: OllamaDialect

    def __init__(self, request: BackendRequest[OllamaConfig]) -> None:
        key, dialect = key_in(os.environ, KEY_VARIABLE), OllamaDialect(request.settings)
        super().__init__(request.name, dialect, key=key, clock=request.clock, say=request.say)
        self._asked = request
        self._config = request.settings

    async def look(self, endpoint: Endpoint) -> None:
        """Find a server and the model, and load it with the context it will be used with.

        Raises SendingError, or ConfigError for what the server will not do.
        """
        url = endpoint.url
        async with self._asking(url, OLLAMA_ANSWER_S_MAX):
            version = _version_in(await self.json(endpoint, self.dialect.look_path))
        if (missing := missing_in(version, settings=self._asked.used_settings)) is not None:
            shown = self.redactor.quoted(version, _VERSION_CHARS_MAX)
            raise self.error(f"Ollama {shown} at {url} will not do: {missing}")
        async with client_of(url, self._key) as client:
            async with self._asking(url, OLLAMA_ANSWER_S_MAX):
                is_present = await self._has_model(client, url)
            if not is_present:
                await self._pull(client, url)
            async with self._asking(url, OLLAMA_LOAD_S_MAX):
                context_tokens = await self._load(client)
        self._check_context(url, context_tokens)
        endpoint.silence.has_answered = True

    @asynccontextmanager
    async def _asking(self, url: str, limit_s: float | None) -> AsyncIterator[None]:
        """One step of the start, under a deadline. Raises SendingError, or ConfigError for what is refused."""
        try:
            async with asyncio.timeout(limit_s):
                with told(self.dialect, self._clock, self.redactor):
                    yield
        except TimeoutError:
            raise SendingError(f"no answer within {limit_s} s", standing=Standing.LATE) from None
        except SendingError as fault:
            if fault.standing is Standing.REFUSING:
                raise self.error(f"Ollama at {url}: {fault}") from None
            raise

    async def _has_model(self, client: ollama.AsyncClient, url: str) -> bool:
        model = self._config.model
        try:
            await client.show(model)
        except ollama.ResponseError as error:
            if error.status_code != _NOT_FOUND:
                raise
            if self._asked.can_pull:
                return False
            raise self.error(
                f"Ollama at {url} has no model {model!r}; run `ollama pull {model}`, or start the run with --pull",
                "model",
            ) from None
        return True

    async def _pull(self, client: ollama.AsyncClient, url: str) -> None:
        model = self._config.model
        what = model if len(self._config.host) == 1 else f"{model} at {url}"
        async with self._asking(url, None):
            try:
                progress = await client.pull(model, stream=True)
                await follow_pull(what, progress, clock=self._clock, say=self._asked.say, redactor=self.redactor)
            except ollama.ResponseError as error:
                if _NO_MANIFEST in error.error:
                    raise self.error(f"{url}: {self.redactor.quoted(error.error)}", "model") from None
                raise

    async def _load(self, client: ollama.AsyncClient) -> int | None:
        """Load the model, which a chat without messages does; the context it has then, as far as the server says."""
        config, asked = self._config, self._asked
        # One that cannot think is refused here where some agent asks it to.
        has_thinkers = True in asked.thinking or "reasoning_effort" in asked.used_settings
        await client.chat(
            config.model,
            [],
            think=has_thinkers or config.think,
            options=load_options(config.num_ctx),
            keep_alive=config.keep_alive,
        )
        return _context_tokens(await client.ps(), config.model)

    def _check_context(self, url: str, context_tokens: int | None) -> None:
        config, dialect = self._config, self.dialect
        if context_tokens is None:
            return
        if config.num_ctx is None:
            dialect.context_tokens = min(context_tokens, dialect.context_tokens or context_tokens)
            self._asked.say(
                f"model_definitions.{self.name}.{dialect.section}: Ollama at {url} gives {config.model!r} a context of "
                f"{context_tokens} tokens; set num_ctx for another"
            )
        elif context_tokens < config.num_ctx:
            raise self.error(
                f"found {config.num_ctx}; Ollama at {url} loads {config.model!r} with a context of {context_tokens} "
                "tokens at most",
                "num_ctx",
            )


def client_of(url: str, key: str | None) -> ollama.AsyncClient:
    """The official client at `url`, without what the environment would have it do but trust certificates."""
    trusted = certificates()  # As the environment says, which the block hides.
    with no_client_settings():
        return ollama.AsyncClient(
            url,
            headers=bearer(key),
            timeout=httpx.Timeout(None, connect=OLLAMA_ANSWER_S_MAX),
            limits=httpx.Limits(max_keepalive_connections=0),  # A server may close a kept one at any moment.
            follow_redirects=False,
            verify=trusted,
            trust_env=False,
        )


@cache
def certificates() -> SSLContext:
    """Those that the client of the chats trusts; to read them takes 20 ms."""
    with no_client_settings(KEY_LOG):
        return create_default_context()


@contextmanager
def told(dialect: OllamaDialect, clock: Clock, redactor: Redactor) -> Iterator[None]:
    """Turn everything that the official client raises inside the block into a SendingError.

    The client reads an answer without checking it first, so a malformed one surfaces as any error of the reading.
    """
    try:
        yield
    except ollama.ResponseError as error:  # In the middle of a stream it has no status.
        status = error.status_code if error.status_code >= _FIRST_STATUS else 500
        words: JsonObject = {"error": str(error.error)}
        page_of(Answer(status=status, body=encoded(words)), dialect, clock.utc_now(), redactor)
    except (ConnectionError, httpx.TransportError) as error:
        text = f"{type(error).__name__}: {redactor.quoted(str(error))}".rstrip(": ")
        raise SendingError(f"no connection: {text}", standing=Standing.GONE) from error
    except ValidationError as error:
        # The error itself would quote the answer.
        places = [".".join(map(str, flaw["loc"])) for flaw in error.errors(include_url=False, include_input=False)]
        raise malformed(f"{', '.join(places)} not of the right form") from None
    except (httpx.HTTPError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise malformed(f"{type(error).__name__}: {redactor.quoted(str(error))}") from None


def _version_in(body: JsonObject) -> str:
    version = body.get("version")
    if not isinstance(version, str):
        raise malformed("it names no version")
    return version


def _context_tokens(loaded: ollama.ProcessResponse, model: str) -> int | None:
    """The context that `model` is loaded with; None when the server does not say."""
    for entry in loaded.models:
        if model.casefold() in (name := _tagged(entry.model or "").casefold(), name.removesuffix(":latest")):
            return entry.context_length or None
    return None


def _tagged(model: str) -> str:
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"


async def follow_pull(
    model: str,
    progress: AsyncIterator[ollama.ProgressResponse],
    *,
    clock: Clock,
    say: Callable[[str], None],
    redactor: Redactor,
) -> None:
    """Follow a pull to its end, with a line every OLLAMA_PULL_SAY_INTERVAL_S.

    A pull may take hours, so only its silence is bounded. What has arrived stays with Ollama, and the next pull goes
    on from there. Raises EngineDeadError when it stalls or ends too early.
    """
    last, said_at_s = "", float("-inf")
    while (step := await _next_step(model, progress)) is not None:
        line = f"pulling {model}: {_described(step, redactor)}"
        if line != last and clock.monotonic_s() - said_at_s >= OLLAMA_PULL_SAY_INTERVAL_S:
            last, said_at_s = line, clock.monotonic_s()
            say(line)
        if step.status == "success":
            say(f"pulling {model}: done")
            return
    raise EngineDeadError(f"the pull of {model} ended before it succeeded; run the same command again to go on with it")


async def _next_step(model: str, progress: AsyncIterator[ollama.ProgressResponse]) -> ollama.ProgressResponse | None:
    try:
        async with asyncio.timeout(OLLAMA_PULL_STALL_S_MAX):
            return await anext(progress, None)
    except TimeoutError:
        raise EngineDeadError(
            f"the pull of {model} brought nothing for {OLLAMA_PULL_STALL_S_MAX:.0f} s; "
            "run the same command again to go on with it"
        ) from None


def _described(step: ollama.ProgressResponse, redactor: Redactor) -> str:
    status = redactor.quoted(step.status or "", 80)
    if not step.total:
        return status
    return f"{status}, {(step.completed or 0) / step.total:.0%} of {step.total / 1e6:,.0f} MB"


def missing_in(version: str, *, settings: Collection[str]) -> str | None:
    """What a server of `version` lacks for a run that sets `settings`; None when it lacks nothing.

    A version without a number counts as the newest, and so does 0.0.0, that of a server built from its sources.
    """
    match = _VERSION.match(version)
    found = tuple(map(int, match.groups())) if match else ()
    if not any(found):
        return None
    if found < _WHOLE_PROMPTS_SINCE:
        return f"it silently shortens prompts that do not fit; update it to {_dotted(_WHOLE_PROMPTS_SINCE)} or later"
    penalties = ", ".join(sorted(_PENALTIES & set(settings)))
    if penalties and found < _PENALTIES_SINCE:
        since = _dotted(_PENALTIES_SINCE)
        return f"it ignores {penalties} with some models; leave that out, or update it to {since} or later"
    return None


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


async def described(url: str, clock: Clock) -> str:
    """The server at `url` and its models on one line, or why it cannot be described."""
    try:
        key = key_in(os.environ, KEY_VARIABLE)
    except ConfigError as error:
        return str(error)
    redactor = Redactor(key)
    dialect = OllamaDialect(OllamaConfig(model="any"))
    web = HttpClient(dialect.headers(key), redactor)
    with redacting(redactor):
        try:
            async with asyncio.timeout(OLLAMA_ANSWER_S_MAX), client_of(url, key) as client:
                page = await web.get(URL(url.rstrip("/") + dialect.look_path), deadline_s=OLLAMA_ANSWER_S_MAX)
                version = _version_in(page_of(page, dialect, clock.utc_now(), redactor))
                with told(dialect, clock, redactor):
                    listed = await client.list()
        except TimeoutError:
            return f"Ollama at {url} did not answer within {OLLAMA_ANSWER_S_MAX:.0f} s"
        except SendingError as fault:
            return f"Ollama at {url}: {fault}"
        finally:
            await web.close()
    models = ", ".join(redactor.quoted(name) for name in sorted(entry.model for entry in listed.models if entry.model))
    return f"{redactor.quoted(version, _VERSION_CHARS_MAX)} at {url}; models: {models or 'none'}"
