"""What the backend `openai` makes of a vLLM server that takes new weights: a stub of its development paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack

import pytest
from yarl import URL

from mac_runner.backends.testing import Answer, SendingError, Sent, VllmWeights
from mac_runner.errors import EngineDeadError, StaleVersionError, WeightMismatchError, WeightUpdateError
from mac_runner.types import PolicySpan
from mac_runner.weights import WeightUpdate
from tests.sim.held_time import real

URL_OF_IT = "http://s0/v1"


@dataclass
class Stub:
    """A vLLM server in development mode. `loaded` is where its weights come from."""

    loaded: Path
    label: str = "default"
    is_open: bool = True
    breaks: Callable[[str, Path | None], int] = lambda _path, _weights: 200
    heard: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = self.loaded

    async def ask(self, url: str, path: str, body: object | None, _deadline_s: float = 0.0) -> Answer:
        assert url == URL_OF_IT
        name = URL(path).path
        asked = body if isinstance(body, Mapping) else {}
        self.heard.append(name)
        if name == "/v1/models":
            return self.answer({"data": [{"id": "stub", "root": str(self.model)}]})
        if not self.is_open:
            return self.answer({"detail": "Not Found"}, 404)
        if name == "/weight_info":
            return self.answer({"weight_version": self.label})
        weights = Path(asked["kwargs"]["weights_path"]) if name == "/collective_rpc" else None
        if (status := self.breaks(name, weights)) != 200:
            return self.answer({"error": {"message": "the loader fell over"}}, status)
        self.loaded = weights or self.loaded
        self.label = str(asked.get("new_version", self.label))
        return self.answer({"success": True})

    async def get(self, path: str, _within_s: float) -> Answer:
        return await self.ask(URL_OF_IT, path, None)

    @staticmethod
    def answer(content: object, status: int = 200) -> Answer:
        return Answer(status=status, body=json.dumps(content).encode())


class Weights(VllmWeights):
    """They talk to a stub."""

    def __init__(self, stub: Stub) -> None:
        super().__init__(lambda _url: None)
        self._ask = stub.ask  # type: ignore[assignment]


def checkpoint(directory: Path, name: str = "w") -> Path:
    """A model of one tensor."""
    directory.mkdir()
    head = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (directory / "model.safetensors").write_bytes(pack("<Q", len(head)) + head + bytes(4))
    return directory


@real
async def test_update_pauses_loads_empties_the_cache_names_the_weights_and_resumes(tmp_path: Path) -> None:
    stub = Stub(checkpoint(tmp_path / "model"))
    weights = Weights(stub)
    new = checkpoint(tmp_path / "new")
    await weights.update(WeightUpdate(version=4, weights=new), [URL_OF_IT])

    assert stub.heard == [
        *("/weight_info", "/v1/models", "/pause", "/update_weight_version", "/collective_rpc"),
        *("/reset_prefix_cache", "/update_weight_version", "/resume"),
    ]
    assert (stub.loaded, stub.label) == (new, "4")


@real
async def test_server_that_cannot_load_weights_keeps_those_that_it_had_or_ends_the_run(tmp_path: Path) -> None:
    stub = Stub(checkpoint(tmp_path / "model"))
    weights = Weights(stub)
    new, other = checkpoint(tmp_path / "new"), checkpoint(tmp_path / "other", "v")
    stub.is_open = False
    with pytest.raises(WeightUpdateError, match="VLLM_SERVER_DEV_MODE=1"):
        await weights.update(WeightUpdate(version=1, weights=new), [URL_OF_IT])
    stub.is_open = True
    with pytest.raises(WeightMismatchError, match=r"tensor w "):
        await weights.update(WeightUpdate(version=1, weights=other), [URL_OF_IT])
    stub.label = "9"
    with pytest.raises(StaleVersionError, match="version 9"):
        await weights.update(WeightUpdate(version=1, weights=new), [URL_OF_IT])
    assert "/pause" not in stub.heard
    stub.label = "default"

    stub.breaks = lambda path, asked: 500 if path == "/collective_rpc" and asked == new else 200
    with pytest.raises(WeightUpdateError, match="the loader fell"):
        await weights.update(WeightUpdate(version=1, weights=new), [URL_OF_IT])
    assert (stub.loaded, stub.label, stub.heard[-1]) == (stub.model, "default", "/resume")
    stub.breaks = lambda path, _asked: 500 if path == "/collective_rpc" else 200
    with pytest.raises(EngineDeadError, match=r"restart the server"):
        await weights.update(WeightUpdate(version=1, weights=new), [URL_OF_IT])
    assert stub.heard[-1] == "/collective_rpc"  # It stays paused.


@real
async def test_restarted_server_makes_no_reply_of_a_wrong_version_and_gets_the_weights_again(tmp_path: Path) -> None:
    stub = Stub(checkpoint(tmp_path / "model"))
    weights = Weights(stub)
    new = checkpoint(tmp_path / "new")
    at_first = await weights.sent(URL_OF_IT, stub.get)
    await weights.update(WeightUpdate(version=1, weights=new), [URL_OF_IT])
    assert await weights.span(URL_OF_IT, at_first, stub.get) == PolicySpan(0, 1)
    two = [await weights.sent(URL_OF_IT, stub.get) for _ in range(2)]
    stub.label, stub.loaded = "default", stub.model
    with pytest.raises(SendingError, match="restarted"):
        await weights.span(URL_OF_IT, two[0], stub.get)
    await weights.bring(URL_OF_IT)
    with pytest.raises(SendingError, match="restarted"):  # It began before the weights were brought.
        await weights.span(URL_OF_IT, two[1], stub.get)

    assert (stub.loaded, stub.label) == (new, "1")
    again = await weights.sent(URL_OF_IT, stub.get)
    assert await weights.span(URL_OF_IT, again, stub.get) == PolicySpan(1, 1)


@real
async def test_server_without_the_paths_is_asked_once_and_its_replies_name_no_version(tmp_path: Path) -> None:
    stub = Stub(checkpoint(tmp_path / "model"))
    weights = Weights(stub)
    stub.is_open = False
    for _ in range(3):
        sent = await weights.sent(URL_OF_IT, stub.get)
        assert (sent, await weights.span(URL_OF_IT, sent, stub.get)) == (Sent(), None)
    assert stub.heard == ["/weight_info"]
    assert weights.obstacle is not None
    stub.is_open, stub.label = True, "update under way"
    with pytest.raises(WeightUpdateError, match="restart the server"):
        await weights.check(URL_OF_IT)
