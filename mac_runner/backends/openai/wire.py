"""HTTP: bytes out, an Answer in, over one pool of connections. The only file that knows aiohttp.

No body grows beyond HTTP_BODY_BYTES_MAX in memory, no redirect is followed (the key goes nowhere but where the file
says), and what comes back is left as it came.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from mac_runner.backends.foreign import clipped
from mac_runner.backends.keys import bearer
from mac_runner.backends.openai.answer import Answer
from mac_runner.backends.openai.decoding import unpacked
from mac_runner.backends.openai.faults import SendingError, Standing, malformed
from mac_runner.limits import HTTP_BODY_BYTES_MAX, HTTP_CONNECT_S_MAX, HTTP_KEEP_ALIVE_S

_UNREACHED: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class Wire:
    """Connections to the servers of one model; to be made inside a running loop, and closed."""

    def __init__(self, key: str | None) -> None:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(
            # The scheduler bounds what is in flight; a second bound here could only hold up what it let go.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=HTTP_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=HTTP_CONNECT_S_MAX),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers=headers | bearer(key),
        )

    async def get(self, url: URL, *, deadline_s: float) -> Answer:
        """GET within `deadline_s`. Raises SendingError."""
        return await self._ask("GET", url, None, {}, deadline_s)

    async def post(self, url: URL, body: bytes, *, request_id: str, deadline_s: float) -> Answer:
        """POST within `deadline_s`, the reading of the answer included. Raises SendingError."""
        return await self._ask("POST", url, body, {"X-Request-Id": quote(request_id, safe="/")}, deadline_s)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _ask(
        self, method: str, url: URL, body: bytes | None, headers: dict[str, str], deadline_s: float
    ) -> Answer:
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                return await _answer(response)
        except _UNREACHED as fault:
            raise SendingError(f"no connection: {clipped(str(fault))}", standing=Standing.GONE) from fault
        except TimeoutError as fault:
            raise SendingError(f"no answer within {deadline_s:g} s", standing=Standing.DOUBTFUL) from fault
        except (aiohttp.ClientError, OSError) as fault:
            text = f"{type(fault).__name__}: {clipped(str(fault))}"
            raise SendingError(f"the connection broke: {text}", standing=Standing.CUT_OFF) from fault


async def _answer(response: aiohttp.ClientResponse) -> Answer:
    return Answer(
        status=response.status,
        body=unpacked(await _body(response), response.headers.get("Content-Encoding", "")),
        retry_after=response.headers.get("Retry-After"),
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
