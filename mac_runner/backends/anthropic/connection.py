"""The connections of the official client to Anthropic's API.

By itself the client would follow redirects, with the key, take proxies from the environment and send requests again.
`Transport` goes straight to the address in the experiment and bounds what a server may send. It turns an answer with
an error into a BackendError before the client reads it. A request that crosses the closing of a kept connection goes
over a new one, once (`resending`). It sets no limit on the time of a reply, which the caller sets, but a connection
must open soon.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache, partial
from ssl import SSLContext
from typing import Final

import httpx2

from mac_runner.backends.anthropic.client import anthropic
from mac_runner.backends.anthropic.errors import BROKEN, refusal
from mac_runner.backends.http_errors import error_body_of, resending, retry_after_s
from mac_runner.backends.redaction import Redactor
from mac_runner.client_settings import no_client_settings
from mac_runner.clock import Clock
from mac_runner.errors import BackendError, TransientBackendError

ANTHROPIC_CONNECT_S_MAX: Final = 10.0
ANTHROPIC_BODY_BYTES_MAX: Final = 8 << 20
_TIMEOUT: Final = httpx2.Timeout(None, connect=ANTHROPIC_CONNECT_S_MAX)
_REDIRECTS: Final = range(300, 400)


@cache
def _certificates() -> SSLContext:
    """Those that are trusted; to read them takes 20 ms."""
    with no_client_settings():
        return httpx2.create_ssl_context(trust_env=False)


class Transport(httpx2.AsyncHTTPTransport):
    """The connections to one address."""

    def __init__(self, url: str, *, redactor: Redactor, clock: Clock) -> None:
        self._url = url
        self._redactor = redactor
        self._clock = clock
        kept = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        super().__init__(verify=_certificates(), limits=kept, trust_env=False)
        single_use = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._new = httpx2.AsyncHTTPTransport(verify=_certificates(), limits=single_use, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and bound its answer. Raises a BackendError for an answer with an error."""
        request.headers["accept-encoding"] = "identity"
        opened: list[str] = []

        async def note(event: str, _details: object) -> None:
            if event.startswith("connection."):
                opened.append(event)

        request.extensions = {**request.extensions, "trace": note}
        response = await resending(
            partial(super().handle_async_request, request),
            partial(self._new.handle_async_request, request),
            broken=BROKEN,
            unreached=(httpx2.ConnectError, httpx2.ConnectTimeout),
            may_resend=lambda: not opened,
            now_s=self._clock.monotonic_s,
        )
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            text = f"{self._url} sent a compressed answer, which was not asked for"
            raise TransientBackendError(text, has_answered=True)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, self._url)
        if response.status_code != httpx2.codes.OK:
            raise await self._refusal(response)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await super().aclose()
        await self._new.aclose()

    async def _refusal(self, response: httpx2.Response) -> BackendError:
        try:
            error = error_body_of(await response.aread(), self._redactor)
        finally:
            await response.aclose()
        if response.status_code in _REDIRECTS:
            text = f"{self._url}: status {response.status_code}; redirects are not followed: name the right base_url"
            return TransientBackendError(text)
        pause_s = retry_after_s(response.headers.get("retry-after"), self._clock.utc_now())
        return refusal(response.status_code, error, self._url, retry_after_s=pause_s)


class _Bounded(httpx2.AsyncByteStream):
    """A body that may not grow beyond ANTHROPIC_BODY_BYTES_MAX."""

    def __init__(self, stream: httpx2.AsyncByteStream, url: str) -> None:
        self._stream = stream
        self._url = url

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size_bytes = 0
        async for chunk in self._stream:
            size_bytes += len(chunk)
            if size_bytes > ANTHROPIC_BODY_BYTES_MAX:
                text = f"{self._url} sent more than {ANTHROPIC_BODY_BYTES_MAX} bytes in one answer"
                raise TransientBackendError(text, has_answered=True)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def client_of(url: str, *, version: str, key: str, redactor: Redactor, clock: Clock) -> anthropic.AsyncAnthropic:
    """The official client at `url`. It never sends a request again: the scheduler does."""
    web = httpx2.AsyncClient(
        transport=Transport(url, redactor=redactor, clock=clock),
        timeout=_TIMEOUT,
        follow_redirects=False,
        trust_env=False,
    )
    with no_client_settings():  # It may name headers.
        return anthropic.AsyncAnthropic(
            api_key=key,
            base_url=url,
            timeout=_TIMEOUT,
            max_retries=0,
            default_headers={"anthropic-version": version},
            http_client=web,
            open_telemetry=False,
        )
