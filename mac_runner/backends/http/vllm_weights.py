"""New weights for servers of vLLM (`vllm serve`), by the paths that its development mode opens.

A server keeps a label of its weights: `default` for those that it loaded, else what the last update called them. A
label below the one seen before shows that the server was restarted. While weights arrive, the label is not a number.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from mac_runner.backends.http.answer import Answer, SendingError, Standing, decode
from mac_runner.backends.http.weights import LOAD_S_MAX, STATE_S_MAX, Get, Sent, ServerWeights
from mac_runner.backends.http_errors import error_body_in
from mac_runner.backends.updates import policy_of
from mac_runner.backends.weight_files import check_against, find_weights
from mac_runner.errors import EngineDeadError, StaleVersionError, WeightUpdateError
from mac_runner.types import JsonObject, PolicySpan
from mac_runner.weights import Broadcast, WeightUpdate, stale

CLOSED: Final = (
    "it takes no new weights; start vllm serve, 0.32 or newer, with VLLM_SERVER_DEV_MODE=1 in its environment; for "
    "mac-serve set openai_config.admin_key_env"
)
_LABEL: Final = "/weight_info"
_LOADED: Final = "default"
_COMING: Final = "update under way"


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
        """Why no server takes new weights, as far as they were asked."""
        is_closed = bool(self._labels) and all(label is None for label in self._labels.values())
        return f"{next(iter(self._labels))}: {CLOSED}" if is_closed else None

    async def check(self, url: str) -> None:
        """Ask a server for its label. Raises WeightUpdateError where an update was cut off."""
        try:
            self._see(url, await self._ask(url, _LABEL, None))
        except SendingError:
            self._labels[url] = None
        if self._labels[url] == _COMING:
            raise WeightUpdateError(f"{url}: an update of its weights was cut off; restart the server")

    async def bring(self, url: str) -> None:
        """Have one server take the weights of the latest update. Raises a WeightUpdateError or SendingError."""
        if self._labels.get(url) is None:
            self._labels.pop(url, None)  # It may have been started in another way.
        try:
            await super().bring(url)
        except EngineDeadError as fault:
            raise WeightUpdateError(str(fault)) from fault

    async def sent(self, url: str, get: Get) -> Sent:
        """What is known of a server's weights before a request is sent there."""
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
        await self._order(url, "/pause?mode=keep")
        await self._order(url, "/update_weight_version", {"new_version": _COMING})
        await self._order(url, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})
        if (await self._order(url, "/reset_prefix_cache?reset_running_requests=true")).get("success") is not True:
            raise WeightUpdateError(f"{url}: its prefix cache could not be emptied")
        await self._order(url, "/update_weight_version", {"new_version": label})
        self._labels[url] = label
        self._loading.discard(url)
        await self._order(url, "/resume")

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
        listed = (await self._order(url, "/v1/models", is_get=True)).get("data")
        roots = [entry.get("root") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        root = next((root for root in roots if isinstance(root, str) and root), None)
        if root is None:
            raise WeightUpdateError(f"{url}: its list of models does not say which files the model was loaded from")
        return await asyncio.to_thread(find_weights, root)

    async def _receive(self, update: WeightUpdate, source: Broadcast, urls: object) -> dict[str, str]:
        raise WeightUpdateError("vLLM's server takes no weights that a trainer sends; give tensors, or a path")

    async def _order(self, url: str, path: str, body: JsonObject | None = None, *, is_get: bool = False) -> JsonObject:
        answer = await self._ask(url, path, None if is_get else body or {})
        redactor = self._redactor(url)
        found = decode(answer.body, redactor)
        if answer.status == 200:
            return found
        words = error_body_in(found, redactor).quoted or f"status {answer.status}"
        if answer.status == 404:
            raise WeightUpdateError(f"{url}: {CLOSED}")
        raise WeightUpdateError(f"{url}: {path.partition('?')[0]}: {words}")

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
    """The number that a label is; None for those of other programs."""
    span = None if label is None else policy_of([label])
    return None if span is None else span.end
