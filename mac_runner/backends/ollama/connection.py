"""The connections of the official client to an Ollama server, and what a server says of itself.

By itself the client would open at most 100 connections and use proxies from the environment. `Transport` opens as many
as there are requests, goes straight to the address in the experiment, and bounds what a server may send. It sets no
limit on the time of a reply, which the caller sets, but a connection must open soon.

It adds the two fields to a chat request for which the client has no parameters: `truncate` and `shift`. Without them
Ollama silently shortens a prompt, or forgets its beginning while replying. It also turns an answer with an error into
a BackendError before the client sees it, because the client drops the header Retry-After. A request that crosses the
closing of a kept connection goes over a new one, once (`resending`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import cache, partial
from ssl import SSLContext
from typing import Final, NamedTuple

import httpx

from mac_runner.backends.http_errors import error_body_of, resending, retry_after_s
from mac_runner.backends.ollama.client import ollama
from mac_runner.backends.ollama.errors import CUT_OFF, refusal, verdicts
from mac_runner.backends.redaction import Redactor, bearer, key_in, redacting
from mac_runner.client_settings import no_client_settings
from mac_runner.clock import Clock
from mac_runner.errors import BackendError, ConfigError, TransientBackendError
from mac_runner.printable import printable

OLLAMA_ANSWER_S_MAX: Final = 10.0
"""How long a server may take to open a connection, or to answer a question other than a chat."""
OLLAMA_BODY_BYTES_MAX: Final = 16 << 20
KEY_VARIABLE: Final = "OLLAMA_API_KEY"
"""The environment variable of the key, for a proxy in front of the server; the client would read it unchecked."""
VERSION_CHARS_MAX: Final = 40
_CHAT_PATH: Final = "/api/chat"
_TIMEOUT: Final = httpx.Timeout(None, connect=OLLAMA_ANSWER_S_MAX)
_PLAIN: Final = {"accept-encoding": "identity"}
_WHOLE: Final = b',"truncate":false,"shift":false}'


@cache
def _certificates() -> SSLContext:
    """Those that are trusted; to read them takes 20 ms."""
    with no_client_settings():
        return httpx.create_ssl_context(trust_env=False)


class Transport(httpx.AsyncHTTPTransport):
    """The connections to one server, and `headers` for each request to it."""

    def __init__(self, host: str, *, key: str | None, redactor: Redactor, clock: Clock) -> None:
        self.host = host
        self.redactor = redactor
        self.headers = _PLAIN | bearer(key)
        self._clock = clock
        kept = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        super().__init__(verify=_certificates(), limits=kept, trust_env=False)
        single_use = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._new = httpx.AsyncHTTPTransport(verify=_certificates(), limits=single_use, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and bound its answer. Raises a BackendError for an answer with an error."""
        is_chat = request.method == "POST" and request.url.path.endswith(_CHAT_PATH)
        request = _whole(request) if is_chat else request
        opened: list[str] = []

        async def note(event: str, _details: object) -> None:
            if event.startswith("connection."):
                opened.append(event)

        request.extensions = {**request.extensions, "trace": note}
        response = await resending(
            partial(super().handle_async_request, request),
            partial(self._new.handle_async_request, request),
            broken=CUT_OFF,
            unreached=(httpx.ConnectError, httpx.ConnectTimeout),
            may_resend=lambda: not opened,
            now_s=self._clock.monotonic_s,
        )
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise TransientBackendError("Ollama sent a compressed answer, which was not asked for", has_answered=True)
        if isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _Bounded(response.stream)
        if response.status_code != httpx.codes.OK:
            raise await self._refusal(response)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await super().aclose()
        await self._new.aclose()

    async def _refusal(self, response: httpx.Response) -> BackendError:
        try:
            error = error_body_of(await response.aread(), self.redactor)
        finally:
            await response.aclose()
        pause_s = retry_after_s(response.headers.get("retry-after"), self._clock.utc_now())
        return refusal(response.status_code, error, self.host, retry_after_s=pause_s)


class _Bounded(httpx.AsyncByteStream):
    """A body that may not grow beyond OLLAMA_BODY_BYTES_MAX."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size_bytes = 0
        async for chunk in self._stream:
            size_bytes += len(chunk)
            if size_bytes > OLLAMA_BODY_BYTES_MAX:
                text = f"Ollama sent more than {OLLAMA_BODY_BYTES_MAX} bytes in one answer"
                raise TransientBackendError(text, has_answered=True)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _whole(request: httpx.Request) -> httpx.Request:
    """The same request, asking for an error where the prompt does not fit. Its body is a JSON object with fields."""
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    return httpx.Request(
        request.method,
        request.url,
        headers=headers,
        content=request.content.rstrip()[:-1] + _WHOLE,
        extensions=request.extensions,
    )


def client_of(transport: Transport) -> ollama.AsyncClient:
    """The official client over `transport`, which the caller closes."""
    with no_client_settings():
        return ollama.AsyncClient(
            transport.host, transport=transport, timeout=_TIMEOUT, headers=transport.headers, follow_redirects=False
        )


async def version_of(transport: Transport) -> str:
    """The version of the server in its own words, for which the client has no call. Raises a BackendError."""
    web = httpx.AsyncClient(transport=transport, headers=transport.headers, timeout=_TIMEOUT)
    with verdicts(transport.host, transport.redactor):
        response = await web.get(f"{transport.host.rstrip('/')}/api/version")
        return str(response.json()["version"])


class Survey(NamedTuple):
    """An Ollama server and the models it has."""

    version: str
    models: tuple[str, ...]


async def described(host: str, clock: Clock) -> str:
    """The server at `host` on one line, or why it cannot be described."""
    try:
        found = await survey(host, clock)
    except (BackendError, ConfigError) as error:
        return str(error)
    models = ", ".join(map(printable, found.models)) or "none"
    return f"{printable(found.version)} at {host}; models: {models}"


async def survey(host: str, clock: Clock) -> Survey:
    """Ask the server at `host` for its version and its models. Raises a BackendError or ConfigError."""
    key = key_in(os.environ, KEY_VARIABLE)
    redactor = Redactor(key)
    transport = Transport(host, key=key, redactor=redactor, clock=clock)
    with redacting(redactor):
        try:
            async with asyncio.timeout(OLLAMA_ANSWER_S_MAX):
                version = await version_of(transport)
                with verdicts(host, redactor):
                    listed = await client_of(transport).list()
        except TimeoutError:
            text = f"Ollama at {host} did not answer within {OLLAMA_ANSWER_S_MAX:.0f} s"
            raise TransientBackendError(text, is_unreachable=True) from None
        finally:
            await transport.aclose()
    models = sorted(entry.model for entry in listed.models if entry.model)
    return Survey(redactor.quoted(version, VERSION_CHARS_MAX), tuple(map(redactor.quoted, models)))
