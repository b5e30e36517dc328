"""New weights for servers of ours (`mac-serve`), by their `/admin` paths.

All servers of a model are alike, so what one of them refuses, each would refuse. The first server is asked alone: while
it refuses, nothing has changed anywhere. A server that fails after that gets no requests until it has the weights too.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from yarl import URL

from mac_runner.backends.http_errors import error_body_in
from mac_runner.backends.openai.answer import Answer, SendingError, Standing, decode
from mac_runner.backends.openai.connection import HttpClient
from mac_runner.backends.redaction import Redactor
from mac_runner.errors import (
    BroadcastError,
    StaleVersionError,
    UpdateInProgressError,
    WeightMismatchError,
    WeightUpdateError,
    boundary,
)
from mac_runner.types import JsonObject
from mac_runner.weights import Broadcast, Weights, WeightUpdate

LOAD_S_MAX: Final = 600.0
"""How long a server may take to load weights."""
STATE_S_MAX: Final = 10.0
_ERRORS: Final[Mapping[str, type[WeightUpdateError]]] = {
    "weights_mismatch": WeightMismatchError,
    "stale_version": StaleVersionError,
    "update_in_progress": UpdateInProgressError,
    "broadcast_failed": BroadcastError,
}


class ServerWeights:
    """The weights that all servers of a model are to have. `key_of` is the key of a server's `/admin` paths.

    Tensors in memory are written to a new directory in `directory`, which the servers read too; None: in that of
    temporary files.
    """

    def __init__(self, key_of: Callable[[str], str | None], directory: Path | None = None) -> None:
        self.version = 0
        self._key_of = key_of
        self._directory = directory
        self._path: Path | None = None
        self._written: Path | None = None

    async def update(self, update: WeightUpdate, urls: Sequence[str]) -> dict[str, str]:
        """Have all servers take weights; those that did not, each with the reason. Raises a WeightUpdateError."""
        if update.version <= self.version:
            raise StaleVersionError(
                f"weights of version {update.version}: the servers have version {self.version}; give a version above it"
            )
        path, written = await asyncio.to_thread(self._place, update.weights)
        try:
            missed = await self._spread(update, path, urls)
        except BaseException:
            _remove(written)
            raise
        _remove(self._written)
        self.version, self._path, self._written = update.version, path, written
        return missed

    async def bring(self, url: str) -> None:
        """Have one server take the weights of the latest update. Raises a WeightUpdateError or SendingError."""
        if self._path is not None:
            await self._install(url, WeightUpdate(version=self.version, weights=self._path), self._path)

    async def check(self, url: str) -> None:
        """Raise SendingError or WeightUpdateError for a server whose `/admin` paths cannot be used."""
        await self._state(url)

    def close(self) -> None:
        """Remove what was written."""
        _remove(self._written)
        self._written = self._path = None

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

    async def _state(self, url: str) -> JsonObject:
        return _read(await self._ask(url, "/admin/state", None), url, self._redactor(url))

    async def _ask(self, url: str, path: str, body: JsonObject | None) -> Answer:
        target = URL(url.rstrip("/").removesuffix("/v1") + path)
        # Updates are rare, and may come in another loop than requests: each has connections of its own.
        client = HttpClient(self._key_of(url), self._redactor(url))
        try:
            if body is None:
                return await client.get(target, deadline_s=STATE_S_MAX)
            content = json.dumps(body).encode()
            return await client.post(target, content, request_id="weights", deadline_s=LOAD_S_MAX)
        finally:
            await client.close()

    def _redactor(self, url: str) -> Redactor:
        return Redactor(self._key_of(url))

    def _place(self, weights: Weights) -> tuple[Path, Path | None]:
        """Where the servers find weights, and what was written for them."""
        if isinstance(weights, Broadcast):
            raise WeightUpdateError("weights that a trainer sends do not reach servers; give tensors, or a path")
        if isinstance(weights, Path):
            path = weights.expanduser().absolute()
            if not path.is_dir() and path.suffix != ".safetensors":
                raise WeightUpdateError(
                    f"weights: {path} is neither a directory nor a .safetensors file; other formats can run code"
                )
            return path, None
        written = Path(tempfile.mkdtemp(prefix="mac_runner-weights-", dir=self._directory))
        try:
            write_tensors(weights, written / "model.safetensors")
        except BaseException:
            _remove(written)
            raise
        return written, written


def write_tensors(weights: Mapping[str, Any], path: Path) -> None:
    """Write tensors of torch to a safetensors file. Raises a WeightUpdateError."""
    from safetensors.torch import save_file

    for name, tensor in weights.items():
        if not hasattr(tensor, "detach"):
            kind = type(tensor).__name__
            raise WeightMismatchError(f"weights: tensor {name} is of type {kind}, expected a torch.Tensor")
    with boundary(WeightUpdateError, f"the weights cannot be written to {path.parent}"):
        # A file holds no tensor twice; tied ones share their memory.
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights.items()}
        save_file(copies, path)


def _remove(written: Path | None) -> None:
    if written is not None:
        shutil.rmtree(written, ignore_errors=True)


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
