"""HTTP to the servers of a model: bytes out, an Answer in, over one pool. The only file that knows aiohttp.

No body grows beyond HTTP_BODY_BYTES_MAX in memory. No redirect is followed, so the key goes only where the file says. A
request that crosses the closing of a kept connection goes over a new one, once.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote
from weakref import WeakSet

from yarl import URL

from mac_runner.backends.http.answer import Answer, SendingError, Standing, malformed
from mac_runner.backends.redaction import Redactor
from mac_runner.errors import NO_DESCRIPTORS, lacks_descriptors
from mac_runner.http_library import aiohttp

HTTP_BODY_BYTES_MAX: Final = 8 << 20
HTTP_GZIP_MEMBERS_MAX: Final = 256
"""Each member costs a copy of all that follows it."""
HTTP_CONNECT_S_MAX: Final = 10.0
HTTP_HANG_UP_S_MAX: Final = 1.0
"""How soon a request breaks that crosses the closing of its connection: within one way there and back."""
HTTP_KEEP_ALIVE_S: Final = 4.0
"""Less than the five seconds after which vLLM's server closes an idle connection."""

_UNREACHED: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_BROKEN: Final = (aiohttp.ClientError, OSError)


class _HttpRequest(NamedTuple):
    method: str
    url: URL
    body: bytes | None = None
    headers: Mapping[str, str] = {}


def beside_v1(base_url: str, path: str) -> str:
    """The address of a page that a server has beside its `/v1`."""
    return base_url.rstrip("/").removesuffix("/v1") + path


@dataclass(slots=True)
class _Progress:
    """How far a sending came."""

    is_kept: bool = False
    """It went over a connection that had served before."""
    is_answered: bool = False
    """The beginning of an answer has come."""


_PROGRESS: Final[ContextVar[_Progress]] = ContextVar("progress")


class _Connector(aiohttp.TCPConnector):
    """Notes whether the connection of a sending had served before.

    aiohttp's tracing could say so too, at a third more processor time per request.
    """

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=HTTP_KEEP_ALIVE_S)
        self._served: WeakSet[object] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - as aiohttp has it
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        while connection.protocol is not None and connection.protocol.should_close:
            # It was kept, and holds bytes that no request asked for: they would be taken for the answer to this one.
            connection.close()
            connection = await super().connect(req, traces, timeout)
        if connection.protocol in self._served:
            _PROGRESS.get().is_kept = True
        else:
            self._served.add(connection.protocol)
        return connection


class HttpClient:
    """Connections to the servers of one model; to be made inside a running loop, and closed."""

    def __init__(self, headers: Mapping[str, str], redactor: Redactor) -> None:
        self._redactor = redactor
        # The scheduler bounds what is in flight; a second bound (`limit`) could only hold up what it let go.
        self._kept = _session(_Connector(), headers)
        self._new = _session(aiohttp.TCPConnector(limit=0, force_close=True), headers)

    async def get(self, url: URL, *, deadline_s: float) -> Answer:
        """GET within `deadline_s`. Raises SendingError."""
        return await self._answer_to(_HttpRequest(method="GET", url=url), deadline_s, set())

    async def post(
        self,
        url: URL,
        body: bytes,
        *,
        request_id: str,
        deadline_s: float,
        headers: Mapping[str, str] | None = None,
        under_way: set[asyncio.Timeout] | None = None,
    ) -> Answer:
        """POST within `deadline_s`, the reading of the answer included. Raises SendingError.

        Meanwhile its timeout is among those `under_way`. Who takes it out there and lets it expire has found that the
        server hangs.
        """
        named = {"X-Request-Id": quote(request_id, safe="/"), **(headers or {})}
        request = _HttpRequest(method="POST", url=url, body=body, headers=named)
        return await self._answer_to(request, deadline_s, set() if under_way is None else under_way)

    async def close(self) -> None:
        """Close all connections."""
        await self._kept.close()
        await self._new.close()

    async def _answer_to(self, request: _HttpRequest, deadline_s: float, under_way: set[asyncio.Timeout]) -> Answer:
        deadline = asyncio.timeout(deadline_s)
        under_way.add(deadline)
        try:
            async with deadline:
                return await self._sent(request)
        except _UNREACHED as fault:
            if lacks_descriptors(fault):
                raise SendingError(NO_DESCRIPTORS, standing=Standing.UNSENT, is_busy=True) from fault
            raise SendingError(f"no connection: {self._redactor.quoted(str(fault))}", standing=Standing.GONE) from fault
        except TimeoutError as fault:
            if deadline not in under_way:
                raise SendingError("it hangs", standing=Standing.HUNG) from fault
            raise SendingError(f"no answer within {deadline_s:g} s", standing=Standing.LATE) from fault
        except _BROKEN as fault:
            text = f"{type(fault).__name__}: {self._redactor.quoted(str(fault))}"
            raise SendingError(f"the connection broke: {text}", standing=Standing.CUT_OFF) from fault
        finally:
            under_way.discard(deadline)

    async def _sent(self, request: _HttpRequest) -> Answer:
        """The answer, over a new connection if the server had just closed the kept one.

        A server may close a connection that it has kept, without notice, while a request is under way. So what breaks
        at once on a connection that had served before says nothing about the server: the request goes over a new one.
        """
        progress = _Progress()
        loop = asyncio.get_running_loop()
        sent_at_s = loop.time()
        try:
            return await self._send(self._kept, request, progress)
        except _BROKEN as fault:
            may_have_crossed = progress.is_kept and not progress.is_answered
            if not may_have_crossed or loop.time() - sent_at_s > HTTP_HANG_UP_S_MAX:
                raise
            try:
                return await self._send(self._new, request, _Progress())
            except _UNREACHED as error:
                if lacks_descriptors(error):
                    raise
                # The server was there a moment ago, so the request may be why it is gone.
                raise fault from None

    async def _send(self, session: aiohttp.ClientSession, request: _HttpRequest, progress: _Progress) -> Answer:
        _PROGRESS.set(progress)
        async with session.request(
            request.method,
            request.url,
            data=request.body,
            headers=request.headers,
            allow_redirects=False,
        ) as response:
            progress.is_answered = True
            encoding = response.headers.get("Content-Encoding", "")
            return Answer(
                status=response.status,
                body=unpacked(await _body(response), encoding, self._redactor),
                retry_after=response.headers.get("Retry-After"),
                location=response.headers.get("Location"),
            )


def _session(connector: aiohttp.TCPConnector, headers: Mapping[str, str]) -> aiohttp.ClientSession:
    always = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=HTTP_CONNECT_S_MAX),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={**always, **headers},
    )


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, never more than HTTP_BODY_BYTES_MAX of it."""
    chunks: list[bytes] = []
    size = 0
    while not response.content.at_eof():
        chunk = await response.content.readany()
        size += len(chunk)
        if size > HTTP_BODY_BYTES_MAX:
            raise malformed(f"more than {HTTP_BODY_BYTES_MAX} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_GZIP_MAGIC: Final = b"\x1f\x8b"


def unpacked(body: bytes, content_encoding: str, redactor: Redactor) -> bytes:
    """The body as it was before a server compressed it, unasked. Raises SendingError, also beyond the size limit."""
    encoding = content_encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise malformed(f"compressed as {redactor.quoted(content_encoding, 40)!r}, which was not asked for")
    members: list[bytes] = []
    left, rest = HTTP_BODY_BYTES_MAX, body
    while not members or rest.startswith(_GZIP_MAGIC):  # Anything else that follows is padding.
        if len(members) == HTTP_GZIP_MEMBERS_MAX:
            raise malformed(f"gzip of more than {HTTP_GZIP_MEMBERS_MAX} members")
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        try:
            members.append(inflater.decompress(rest, left + 1))
        except zlib.error as error:
            raise malformed(f"not gzip: {error}") from None
        left -= len(members[-1])
        if left < 0:
            raise malformed(f"more than {HTTP_BODY_BYTES_MAX} bytes unpacked")
        if not inflater.eof:
            raise malformed("gzip that ends too early")
        rest = inflater.unused_data
    return b"".join(members)
