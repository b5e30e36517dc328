"""New weights for servers: for ours (`mac-serve`) by their `/admin` paths, for vLLM's by those of its development mode.

All servers of a model are alike, so what one of them refuses, each would refuse. The first server is asked alone: while
it refuses, nothing has changed anywhere. A server that fails after that gets no requests until it has the weights too.

A server of vLLM (`vllm serve`) keeps a label of its weights: `default` for those that it loaded, else what the last
update called them. A label below the one seen before shows that the server was restarted. While weights arrive, the
label is not a number.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from yarl import URL

from mac_runner.backends.http.answer import Answer, SendingError, Standing, decode
from mac_runner.backends.http.client import HttpClient, beside_v1
from mac_runner.backends.http.errors import ErrorBody, error_body_of
from mac_runner.backends.redaction import Redactor, bearer
from mac_runner.backends.updates import KEPT_FILE, Placed, check_against, find_weights, make_place, place, policy_of
from mac_runner.checkpoints import digest_of
from mac_runner.errors import (
    BroadcastError,
    EngineDeadError,
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

CLOSED: Final = (
    "it takes no new weights; start vllm serve, 0.32 or newer, with VLLM_SERVER_DEV_MODE=1 in its environment; for "
    "mac-serve set openai_config.admin_key_env"
)
_LABEL: Final = "/weight_info"
_LOADED: Final = "default"
_COMING: Final = "update under way"

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
        try:
            await self._order(url, "/admin/weights", body)
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
            await self._order(url, "/admin/weights/receive", {**body, **more}, source.timeout_s + LOAD_S_MAX)

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
        return await self._order(url, "/admin/state", None)

    async def _order(self, url: str, path: str, body: JsonObject | None, deadline_s: float = LOAD_S_MAX) -> JsonObject:
        """The object that a server answers with. Raises a WeightUpdateError for a refusal, or SendingError."""
        answer, redactor = await self._ask(url, path, body, deadline_s), self._redactor(url)
        if answer.status != 200:
            raise self._refusal(url, path, answer.status, error_body_of(answer.body, redactor))
        return decode(answer.body, redactor)

    async def _ask(self, url: str, path: str, body: JsonObject | None, deadline_s: float = LOAD_S_MAX) -> Answer:
        target = URL(beside_v1(url, path))
        # Updates are rare, and may come in another loop than requests: each has connections of its own.
        client = HttpClient(bearer(self._key_of(url)), self._redactor(url))
        try:
            if body is None:
                return await client.get(target, deadline_s=STATE_S_MAX)
            content = json.dumps(body).encode()
            return await client.post(target, content, request_id="weights", deadline_s=deadline_s)
        finally:
            await client.close()

    def _refusal(self, url: str, _path: str, status: int, error: ErrorBody) -> Exception:
        """What follows an answer without the object that was asked for."""
        text = f"{url}: {error.quoted or 'no reason given'}"
        kind = next((_ERRORS[code] for code in error.codes if code in _ERRORS), None)
        if kind is not None:
            return kind(text)
        if status in (401, 403):
            return WeightUpdateError(f"{text}; admin_key_env names the key that mac-serve has by --admin-key-env")
        if status == 404:
            return WeightUpdateError(f"{text}; weights are updated on servers of mac-serve")
        if status >= 500:
            return SendingError(f"status {status}: {error.quoted}", standing=Standing.FAILING)
        return WeightUpdateError(text)

    def _redactor(self, url: str) -> Redactor:
        return Redactor(self._key_of(url), *self._secrets)


class VllmWeights(ServerWeights):
    """The weights that all servers of vLLM of a model are to have. No other program may update them."""

    needs_directory = True

    def __init__(
        self, key_of: Callable[[str], str | None], directory: Path | None = None, *, secrets: Iterable[str] = ()
    ) -> None:
        super().__init__(key_of, directory, secrets=secrets)
        self._labels: dict[str, str | None] = {}
        """What servers called their weights when they were last asked; None where they have no such path."""
        self._restarts: Counter[str] = Counter()
        self._loading: set[str] = set()
        """Servers that make no token until they have the new weights."""
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def obstacle(self) -> str | None:
        is_closed = bool(self._labels) and all(label is None for label in self._labels.values())
        return f"{next(iter(self._labels))}: {CLOSED}" if is_closed else None

    async def check(self, url: str) -> None:
        try:
            self._see(url, await self._ask(url, _LABEL, None))
        except SendingError:
            self._labels[url] = None
        if self._labels[url] == _COMING:
            raise WeightUpdateError(f"{url}: an update of its weights was cut off; restart the server")

    async def bring(self, url: str) -> None:
        if self._labels.get(url) is None:
            self._labels.pop(url, None)  # It may have been started in another way.
        try:
            await super().bring(url)
        except EngineDeadError as fault:
            raise WeightUpdateError(str(fault)) from fault

    async def sent(self, url: str, get: Get) -> Sent:
        if url not in self._labels:
            try:
                self._see(url, await get(_LABEL, STATE_S_MAX))
            except SendingError:
                self._labels[url] = None
        return Sent(_version(self._labels[url]), self._restarts[url])

    async def span(self, url: str, sent: Sent, get: Get) -> PolicySpan | None:
        """The versions that made a reply that has come. Raises SendingError if the server was restarted meanwhile."""
        if self._labels.get(url) is None:
            return None
        if url not in self._loading:
            self._see(url, await get(_LABEL, LOAD_S_MAX))
        if self._restarts[url] != sent.restarts:
            raise SendingError("it was restarted, and has lost its new weights", standing=Standing.DOUBTFUL)
        version = _version(self._labels[url])
        return None if version is None or sent.version is None else PolicySpan(sent.version, version)

    async def _install(self, url: str, update: WeightUpdate, path: Path) -> None:
        async with self._turns[url]:
            self._see(url, await self._ask(url, _LABEL, None))
            before = self._labels[url]
            if before is None:
                raise WeightUpdateError(f"{url}: {CLOSED}")
            if (version := _version(before)) is not None and version > update.version:
                raise StaleVersionError(f"{url}: {stale(update.version, version)}")
            model = await self._model(url)
            # vLLM only warns of tensors that are missing, and would compute with what it has read.
            await asyncio.to_thread(check_against, path, model)
            self._loading.add(url)
            try:
                await self._load(url, path, str(update.version))
            except (SendingError, WeightUpdateError) as fault:
                await self._restore(url, before, model, fault)
                raise
            finally:
                self._loading.discard(url)

    async def _load(self, url: str, path: Path, label: str) -> None:
        """Have a server load weights. It makes no token meanwhile; replies under way go on with the new weights."""
        await self._order(url, "/pause?mode=keep", {})
        await self._order(url, "/update_weight_version", {"new_version": _COMING})
        await self._order(url, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})
        if (await self._order(url, "/reset_prefix_cache?reset_running_requests=true", {})).get("success") is not True:
            raise WeightUpdateError(f"{url}: its prefix cache could not be emptied")
        await self._order(url, "/update_weight_version", {"new_version": label})
        self._labels[url] = label
        self._loading.discard(url)
        await self._order(url, "/resume", {})

    async def _restore(self, url: str, label: str, model: Path, fault: Exception) -> None:
        """Give a server that failed to load weights those that it had. Raises EngineDeadError if it refuses them."""
        path = model if label == _LOADED else None
        if self._placed is not None and label == str(self.version):
            path = self._placed.path
        try:
            if path is None:
                raise WeightUpdateError("they are not kept")
            await self._load(url, path, label)
        except SendingError:
            return  # It is gone. When it comes back, its label shows what it has.
        except WeightUpdateError as again:
            raise EngineDeadError(
                f"{url}: {fault}; it may have a part of the new weights, and did not take those before: {again}; "
                "restart the server"
            ) from fault

    async def _model(self, url: str) -> Path:
        """The directory of the model that a server has loaded."""
        listed = (await self._order(url, "/v1/models", None)).get("data")
        roots = [entry.get("root") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        root = next((root for root in roots if isinstance(root, str) and root), None)
        if root is None:
            raise WeightUpdateError(f"{url}: its list of models does not say which files the model was loaded from")
        return await asyncio.to_thread(find_weights, root)

    async def _receive(self, update: WeightUpdate, source: Broadcast, urls: object) -> dict[str, str]:
        raise WeightUpdateError("vLLM's server takes no weights that a trainer sends; give tensors, or a path")

    def _refusal(self, url: str, path: str, status: int, error: ErrorBody) -> Exception:
        if status == 404:
            return WeightUpdateError(f"{url}: {CLOSED}")
        return WeightUpdateError(f"{url}: {path.partition('?')[0]}: {error.quoted or f'status {status}'}")

    def _see(self, url: str, answer: Answer) -> None:
        """Take in what a server calls its weights, and whether it was restarted since it was last asked."""
        if url in self._loading:
            return
        found = decode(answer.body, self._redactor(url)).get("weight_version") if answer.status == 200 else None
        label = found if isinstance(found, str) else None
        before, now = _version(self._labels.get(url)), _version(label)
        if before is not None and (now is None or now < before):
            self._restarts[url] += 1
        self._labels[url] = label


def _version(label: str | None) -> int | None:
    span = None if label is None else policy_of([label])
    return None if span is None else span.end
