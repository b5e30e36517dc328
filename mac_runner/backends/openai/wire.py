"""HTTP: bytes out, an Answer in, over one pool of connections. The only file that knows aiohttp.

No body grows beyond HTTP_BODY_BYTES_MAX in memory, no redirect is followed (the key goes nowhere but where the file
says), and what comes back is left as it came.

A server may hang up on a connection that it has kept, without a word, and a request may cross that on its way. So what
breaks at once on a connection that had served before says nothing of the server, and is sent once more on a new one.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from mac_runner.backends.keys import bearer
from mac_runner.backends.openai.answer import Answer
from mac_runner.backends.openai.decoding import unpacked
from mac_runner.backends.openai.faults import SendingError, Standing, malformed
from mac_runner.backends.redaction import Redactor
from mac_runner.errors import NO_DESCRIPTORS, lacks_descriptors
from mac_runner.limits import HTTP_BODY_BYTES_MAX, HTTP_CONNECT_S_MAX, HTTP_HANG_UP_S_MAX, HTTP_KEEP_ALIVE_S

_UNREACHED: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_BROKEN: Final = (aiohttp.ClientError, OSError)


class _Sending(NamedTuple):
    method: str
    url: URL
    body: bytes | None = None
    request_id: str | None = None


@dataclass(slots=True)
class _Course:
    """How far a sending came."""

    is_kept: bool = False
    """It went over a connection that had served before."""
    is_answered: bool = False
    """The beginning of an answer has come."""


_COURSE: Final[ContextVar[_Course]] = ContextVar("course")


class _Connector(aiohttp.TCPConnector):
    """Notes on the course of a sending whether its connection had served before. Tracing would tell, at a third more
    processor time for each request.
    """

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=HTTP_KEEP_ALIVE_S)
        self._served: WeakSet[object] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - as aiohttp has it
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        while connection.protocol is not None and connection.protocol.should_close:
            # It was kept, and holds bytes that nobody asked for: they would be taken for the answer to this request.
            connection.close()
            connection = await super().connect(req, traces, timeout)
        if connection.protocol in self._served:
            _COURSE.get().is_kept = True
        else:
            self._served.add(connection.protocol)
        return connection


class Wire:
    """Connections to the servers of one model; to be made inside a running loop, and closed."""

    def __init__(self, key: str | None, redactor: Redactor) -> None:
        self._redactor = redactor
        # The scheduler bounds what is in flight; a second bound (`limit`) could only hold up what it let go.
        self._kept = _session(_Connector(), key)
        self._new = _session(aiohttp.TCPConnector(limit=0, force_close=True), key)

    async def get(self, url: URL, *, deadline_s: float) -> Answer:
        """GET within `deadline_s`. Raises SendingError."""
        return await self._ask(_Sending(method="GET", url=url), deadline_s)

    async def post(self, url: URL, body: bytes, *, request_id: str, deadline_s: float) -> Answer:
        """POST within `deadline_s`, the reading of the answer included. Raises SendingError."""
        return await self._ask(_Sending(method="POST", url=url, body=body, request_id=request_id), deadline_s)

    async def close(self) -> None:
        """Close all connections."""
        await self._kept.close()
        await self._new.close()

    async def _ask(self, sending: _Sending, deadline_s: float) -> Answer:
        try:
            async with asyncio.timeout(deadline_s):
                return await self._answered(sending)
        except _UNREACHED as fault:
            if lacks_descriptors(fault):
                raise SendingError(NO_DESCRIPTORS, standing=Standing.UNSENT, is_busy=True) from fault
            raise SendingError(f"no connection: {self._redactor.quoted(str(fault))}", standing=Standing.GONE) from fault
        except TimeoutError as fault:
            raise SendingError(f"no answer within {deadline_s:g} s", standing=Standing.DOUBTFUL) from fault
        except _BROKEN as fault:
            text = f"{type(fault).__name__}: {self._redactor.quoted(str(fault))}"
            raise SendingError(f"the connection broke: {text}", standing=Standing.CUT_OFF) from fault

    async def _answered(self, sending: _Sending) -> Answer:
        """The answer over a kept connection; over a new one where the server may just have hung up on that."""
        loop, course = asyncio.get_running_loop(), _Course()
        sent_at_s = loop.time()
        try:
            return await self._sent(self._kept, sending, course)
        except _BROKEN as fault:
            is_hung_up = course.is_kept and not course.is_answered and loop.time() - sent_at_s <= HTTP_HANG_UP_S_MAX
            if not is_hung_up:
                raise
            try:
                return await self._sent(self._new, sending, _Course())
            except _UNREACHED as unreached:
                if lacks_descriptors(unreached):
                    raise
                # It was there a moment ago, and may have died over this.
                raise fault from None

    async def _sent(self, session: aiohttp.ClientSession, sending: _Sending, course: _Course) -> Answer:
        _COURSE.set(course)
        headers = {} if sending.request_id is None else {"X-Request-Id": quote(sending.request_id, safe="/")}
        async with session.request(
            sending.method,
            sending.url,
            data=sending.body,
            headers=headers,
            allow_redirects=False,
        ) as response:
            course.is_answered = True
            return await self._answer(response)

    async def _answer(self, response: aiohttp.ClientResponse) -> Answer:
        encoding = response.headers.get("Content-Encoding", "")
        return Answer(
            status=response.status,
            body=unpacked(await _body(response), encoding, self._redactor),
            retry_after=response.headers.get("Retry-After"),
            location=response.headers.get("Location"),
        )


def _session(connector: aiohttp.TCPConnector, key: str | None) -> aiohttp.ClientSession:
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=HTTP_CONNECT_S_MAX),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers=headers | bearer(key),
    )


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, never more than HTTP_BODY_BYTES_MAX of it."""
    chunks: list[bytes] = []
    size = 0
    while chunk := await response.content.readany():
        size += len(chunk)
        if size > HTTP_BODY_BYTES_MAX:
            raise malformed(f"more than {HTTP_BODY_BYTES_MAX} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
