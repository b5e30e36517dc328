"""New weights for servers of ours (`mac-serve`), by their `/admin` paths.

All servers of a model are alike, so what one of them refuses, each would refuse. The first server is asked alone: while
it refuses, nothing has changed anywhere. A server that fails after that gets no requests until it has the weights too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from yarl import URL

from mac_runner.backends.http.answer import Answer, SendingError, Standing, decode
from mac_runner.backends.http.client import HttpClient
from mac_runner.backends.http_errors import error_body_in
from mac_runner.backends.redaction import Redactor, bearer
from mac_runner.backends.weight_files import KEPT_FILE, Placed, make_place, place
from mac_runner.checkpoints import digest_of
from mac_runner.errors import (
    BroadcastError,
    StaleVersionError,
    UpdateInProgressError,
    WeightMismatchError,
    WeightUpdateError,
)
from mac_runner.types import JsonObject, PolicySpan
from mac_runner.weights import Broadcast, WeightUpdate, stale

LOAD_S_MAX: Final = 600.0
"""How long a server may take to load weights."""
STATE_S_MAX: Final = 10.0
_ERRORS: Final[Mapping[str, type[WeightUpdateError]]] = {
    "weights_mismatch": WeightMismatchError,
    "stale_version": StaleVersionError,
    "update_in_progress": UpdateInProgressError,
    "broadcast_failed": BroadcastError,
}

Get: TypeAlias = Callable[[str, float], Awaitable[Answer]]
"""Gets a page of a server within so many seconds."""


class Sent(NamedTuple):
    """What was known of a server's weights when a request was sent there."""

    version: int | None = None
    restarts: int = 0


class ServerWeights:
    """The weights that all servers of a model are to have. `key_of` is the key of a server's `/admin` paths.

    Tensors in memory are written to a new directory in `directory`, which the servers read too; None: in that of
    temporary files. With `keeps_broadcasts` a server writes there what a trainer sends, for servers that start later.
    """

    needs_directory = False
    """Whether a server reads weights from a directory alone."""

    def __init__(
        self,
        key_of: Callable[[str], str | None],
        directory: Path | None = None,
        *,
        secrets: Iterable[str] = (),
        keeps_broadcasts: bool = False,
    ) -> None:
        self.version = 0
        self.digest: str | None = None
        """That of the weights that a trainer sent last, where a server kept them."""
        self._keeps_broadcasts = keeps_broadcasts
        self._key_of = key_of
        self._secrets = tuple(secrets)
        self._directory = directory
        self._placed: Placed | None = None

    @property
    def obstacle(self) -> str | None:
        """Why no server takes new weights, where that is known."""
        return None

    async def update(self, update: WeightUpdate, urls: Sequence[str]) -> dict[str, str]:
        """Have all servers take weights; those that did not, each with the reason. Raises a WeightUpdateError."""
        if update.version <= self.version:
            raise StaleVersionError(stale(update.version, self.version))
        if isinstance(update.weights, Broadcast):
            return await self._receive(update, update.weights, urls)
        placed = await asyncio.to_thread(place, update.weights, self._directory, as_directory=self.needs_directory)
        try:
            missed = await self._spread(update, placed.path, urls)
        except BaseException:
            placed.remove()
            raise
        self._take(update.version, placed)
        return missed

    def _take(self, version: int, placed: Placed | None, digest: str | None = None) -> None:
        self.close()
        self.version, self._placed, self.digest = version, placed, digest

    async def bring(self, url: str) -> None:
        """Have one server take the weights of the latest update. Raises a WeightUpdateError or SendingError."""
        if (placed := self._placed) is None and self.version:
            raise WeightUpdateError(
                f"the weights of version {self.version} came from a trainer and were not kept: it serves after the "
                "next update; a directory in weights_dir, which all servers see, keeps them"
            )
        if placed is not None:
            await self._install(url, WeightUpdate(version=self.version, weights=placed.path), placed.path)

    async def check(self, url: str) -> None:
        """Raise SendingError or WeightUpdateError for a server whose `/admin` paths cannot be used."""
        await self._state(url)

    async def sent(self, _url: str, _get: Get) -> Sent:
        """What is known of a server's weights before a request is sent there."""
        return Sent()

    async def span(self, _url: str, _sent: Sent, _get: Get) -> PolicySpan | None:
        """The versions that made a reply that does not name them. Raises SendingError if they cannot be known."""
        return None

    def close(self) -> None:
        """Remove what was written."""
        placed, self._placed = self._placed, None
        if placed is not None:
            placed.remove()

    async def _spread(self, update: WeightUpdate, path: Path, urls: Sequence[str]) -> dict[str, str]:
        """Ask one server after the other until one has the weights, then all others at once."""
        missed: dict[str, str] = {}
        left = list(urls)
        while left:
            url = left.pop(0)
            try:
                await self._install(url, update, path)
                break
            except SendingError as fault:
                missed[url] = str(fault)
        else:
            why = "; ".join(f"{url}: {fault}" for url, fault in missed.items()) or "none is up"
            raise WeightUpdateError(f"no server took the weights of version {update.version}: {why}")
        results = await asyncio.gather(*(self._install(url, update, path) for url in left), return_exceptions=True)
        for url, result in zip(left, results, strict=True):
            if isinstance(result, SendingError | WeightUpdateError):
                missed[url] = str(result)
            elif result is not None:
                raise result
        return missed

    async def _install(self, url: str, update: WeightUpdate, path: Path) -> None:
        body: JsonObject = {"path": str(path), "version": update.version, "blocking": update.blocking}
        answer = await self._ask(url, "/admin/weights", body)
        try:
            _read(answer, url, self._redactor(url))
        except StaleVersionError:
            # A run that goes on finds the server as it left it.
            state = await self._state(url)
            if (state.get("weight_version"), state.get("weights_path")) != (update.version, str(path)):
                raise

    async def _receive(self, update: WeightUpdate, source: Broadcast, urls: Sequence[str]) -> dict[str, str]:
        """Have all servers receive from a trainer; where that can be, the first one keeps the weights in a file."""
        away = await self._away(urls)
        urls = [url for url in urls if url not in away]
        kept = await asyncio.to_thread(make_place, self._directory) if self._keeps_broadcasts and urls else None
        try:
            missed = away | await self._receive_all(update, source, urls, kept)
            if kept is not None and urls[0] in missed:
                kept.remove()
                kept = None
            digest = None if kept is None else await asyncio.to_thread(digest_of, kept.path)
        except BaseException:
            if kept is not None:
                kept.remove()
            raise
        self._take(update.version, kept, digest)
        return missed

    async def _away(self, urls: Sequence[str]) -> dict[str, str]:
        """The servers that do not answer, for which a trainer would wait in vain. Raises WeightUpdateError for none."""
        states = await asyncio.gather(*map(self._state, urls), return_exceptions=True)
        away = {url: str(state) for url, state in zip(urls, states, strict=True) if isinstance(state, SendingError)}
        if len(away) == len(urls):
            why = "; ".join(f"{url}: {fault}" for url, fault in away.items()) or "none is up"
            raise WeightUpdateError(f"no server can receive weights: {why}")
        return away

    async def _receive_all(
        self, update: WeightUpdate, source: Broadcast, urls: Sequence[str], kept: Placed | None
    ) -> dict[str, str]:
        """Have all servers receive from a trainer, which sends to all of them at once."""
        body: JsonObject = {"address": source.address, "version": update.version, "blocking": update.blocking}
        body["timeout_s"] = source.timeout_s
        if not update.is_shared:
            body["engines"] = len(urls)

        async def receive(url: str) -> None:
            more = {"save_to": str(kept.path / KEPT_FILE)} if kept is not None and url == urls[0] else {}
            answer = await self._ask(url, "/admin/weights/receive", {**body, **more}, source.timeout_s + LOAD_S_MAX)
            _read(answer, url, self._redactor(url))

        results = await asyncio.gather(*(receive(url) for url in urls), return_exceptions=True)
        failed = {url: result for url, result in zip(urls, results, strict=True) if result is not None}
        # A server's own reason comes before what the others heard of it.
        for error in sorted(failed.values(), key=lambda each: isinstance(each, BroadcastError | SendingError)):
            if isinstance(error, SendingError) and len(failed) == len(urls):
                raise WeightUpdateError(f"no server took the weights of version {update.version}: {error}") from error
            if len(failed) == len(urls) or not isinstance(error, SendingError | WeightUpdateError):
                raise error
        return {url: str(error) for url, error in failed.items()}

    async def _state(self, url: str) -> JsonObject:
        return _read(await self._ask(url, "/admin/state", None), url, self._redactor(url))

    async def _ask(self, url: str, path: str, body: JsonObject | None, deadline_s: float = LOAD_S_MAX) -> Answer:
        target = URL(url.rstrip("/").removesuffix("/v1") + path)
        # Updates are rare, and may come in another loop than requests: each has connections of its own.
        client = HttpClient(bearer(self._key_of(url)), self._redactor(url))
        try:
            if body is None:
                return await client.get(target, deadline_s=STATE_S_MAX)
            content = json.dumps(body).encode()
            return await client.post(target, content, request_id="weights", deadline_s=deadline_s)
        finally:
            await client.close()

    def _redactor(self, url: str) -> Redactor:
        return Redactor(self._key_of(url), *self._secrets)


def _read(answer: Answer, url: str, redactor: Redactor) -> JsonObject:
    """The object in an answer. Raises a WeightUpdateError for a refusal, SendingError for no answer of ours."""
    body = decode(answer.body, redactor)
    if answer.status == 200:
        return body
    error = error_body_in(body, redactor)
    kind = next((_ERRORS[code] for code in error.codes if code in _ERRORS), None)
    text = f"{url}: {error.quoted or 'no reason given'}"
    if kind is not None:
        raise kind(text)
    if answer.status in (401, 403):
        raise WeightUpdateError(f"{text}; admin_key_env names the key that mac-serve has by --admin-key-env")
    if answer.status == 404:
        raise WeightUpdateError(f"{text}; weights are updated on servers of mac-serve")
    if answer.status >= 500:
        raise SendingError(f"status {answer.status}: {error.quoted}", standing=Standing.FAILING)
    raise WeightUpdateError(text)
