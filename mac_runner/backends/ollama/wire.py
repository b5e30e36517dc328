"""What lies between the official client and the network: one pool of connections, of our own setting up.

The client builds the pool itself unless it is given one, with 100 connections at most and proxies from the environment.
Ours has as many connections as there are requests, goes straight to the address in the experiment, and bounds what a
server may send; how long a reply may take is for the caller to say, but a connection is there soon or never. It adds
the two fields to a chat request for which the client has no parameters: `truncate` and `shift`, without which Ollama
shortens a prompt, or forgets the beginning of it while replying, and says nothing. And it takes an answer that tells of
an error before the client does, which would keep one header to itself, Retry-After.

A server, or a proxy in front of it, may hang up on a connection that was kept, without a word, and a request may cross
that on its way. What breaks at once on a connection that had served before is sent once more, on a new one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx
import ollama

from mac_runner.backends.complaint import complaint_of
from mac_runner.backends.keys import bearer
from mac_runner.backends.ollama.verdicts import CUT_OFF, refusal, verdicts
from mac_runner.backends.redaction import Redactor
from mac_runner.backends.retry_after import retry_after_s
from mac_runner.clock import Clock
from mac_runner.errors import BackendError, TransientBackendError, lacks_descriptors
from mac_runner.limits import HTTP_HANG_UP_S_MAX, OLLAMA_ANSWER_S_MAX, OLLAMA_BODY_BYTES_MAX

KEY_VARIABLE: Final = "OLLAMA_API_KEY"
"""Where a proxy in front of the server asks for a key, this holds it; the client would read it by itself as it is."""
VERSION_CHARS_MAX: Final = 40
_CHAT_PATH: Final = "/api/chat"
_TIMEOUT: Final = httpx.Timeout(None, connect=OLLAMA_ANSWER_S_MAX)
_PLAIN: Final = {"accept-encoding": "identity"}
_WHOLE: Final = b',"truncate":false,"shift":false}'


class Wire(httpx.AsyncHTTPTransport):
    """The connections to one server, and `headers` for each request to it."""

    def __init__(self, host: str, *, key: str | None, redactor: Redactor, clock: Clock) -> None:
        self.host = host
        self.redactor = redactor
        self.headers = _PLAIN | bearer(key)
        self._clock = clock
        super().__init__(limits=httpx.Limits(max_connections=None, max_keepalive_connections=None), trust_env=False)
        single_use = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._new = httpx.AsyncHTTPTransport(limits=single_use, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and bound its answer. Raises a BackendError for one that tells of an error."""
        is_chat = request.method == "POST" and request.url.path.endswith(_CHAT_PATH)
        response = await self._answered(_whole(request) if is_chat else request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise TransientBackendError("Ollama sent a compressed answer, which was not asked for")
        if isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _Bounded(response.stream)
        if response.status_code != httpx.codes.OK:
            raise await self._refusal(response)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await super().aclose()
        await self._new.aclose()

    async def _answered(self, request: httpx.Request) -> httpx.Response:
        """The answer over a kept connection; over a new one where the server may just have hung up on that."""
        opened: list[str] = []

        async def note(event: str, _of: object) -> None:
            if event.startswith("connection."):
                opened.append(event)

        request.extensions = {**request.extensions, "trace": note}
        sent_at_s = self._clock.monotonic_s()
        try:
            return await super().handle_async_request(request)
        except CUT_OFF as fault:
            if opened or self._clock.monotonic_s() - sent_at_s > HTTP_HANG_UP_S_MAX:
                raise
            try:
                return await self._new.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as unreached:
                if lacks_descriptors(unreached):
                    raise
                # It was there a moment ago, and may have died over this.
                raise fault from None

    async def _refusal(self, response: httpx.Response) -> BackendError:
        try:
            complaint = complaint_of(await response.aread(), self.redactor)
        finally:
            await response.aclose()
        pause_s = retry_after_s(response.headers.get("retry-after"), self._clock.utc_now())
        return refusal(response.status_code, complaint, self.host, retry_after_s=pause_s)


class _Bounded(httpx.AsyncByteStream):
    """A body that may not grow beyond OLLAMA_BODY_BYTES_MAX."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size_bytes = 0
        async for chunk in self._stream:
            size_bytes += len(chunk)
            if size_bytes > OLLAMA_BODY_BYTES_MAX:
                raise TransientBackendError(f"Ollama sent more than {OLLAMA_BODY_BYTES_MAX} bytes in one answer")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def client_of(wire: Wire) -> ollama.AsyncClient:
    """The official client of the server at the end of `wire`, which is for the caller to close."""
    return ollama.AsyncClient(wire.host, transport=wire, timeout=_TIMEOUT, headers=wire.headers, follow_redirects=False)


async def version_of(wire: Wire) -> str:
    """The version of the server in its own words, for which the client has no call. Raises a BackendError."""
    web = httpx.AsyncClient(transport=wire, headers=wire.headers, timeout=_TIMEOUT)
    with verdicts(wire.host, wire.redactor):
        response = await web.get(f"{wire.host.rstrip('/')}/api/version")
        return str(response.json()["version"])


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
