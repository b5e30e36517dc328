from __future__ import annotations

import json

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner import store
from mac_runner.errors import RunDirectoryError
from mac_runner.store.testing import Manifest, decode_manifest


@pytest.mark.parametrize("n", [0, 1, 2, 999, 1_000, 1_001, 2_500])
def test_manifest_of_any_length_comes_back(n: int) -> None:
    planned = {f"t{i}": i for i in range(n)}
    manifest = Manifest("toy", dict(reversed(planned.items())))
    found = decode_manifest(manifest.encode("now"), "x")

    assert found.experiment_name == "toy"
    assert list(found.planned.items()) == list(planned.items())
    assert set(found.statuses.values()) <= {"pending"}


def test_manifest_counts_a_task_once_however_often_it_ends() -> None:
    manifest = Manifest("toy", {"a": 0, "b": 1, "c": 2})
    for _ in range(2):
        manifest.settle("a", "failed")
        manifest.settle("b", "finished")

    assert manifest.counts == (3, 1, 1)
    assert manifest.counts.done == 2


def test_manifest_is_readable_line_by_line(snapshot: SnapshotAssertion) -> None:
    manifest = Manifest("toy", {"a": 0})
    manifest.settle("a", "failed")
    text = b"".join(manifest.encode("2025-01-01T00:00:00.000Z")).decode("ascii")

    assert text == snapshot
    assert json.loads(text)["counts"] == {"planned": 1, "finished": 0, "failed": 1}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 9}', b'{"format": 1, "tasks": 3}', b"[" * 100_000])
def test_file_that_is_no_manifest_is_refused_with_advice(data: bytes) -> None:
    with pytest.raises(RunDirectoryError, match="runs/x cannot"):
        decode_manifest([data], "runs/x")


def test_store_offers_these_names_and_no_other(snapshot: SnapshotAssertion) -> None:
    assert sorted(store.__all__) == snapshot
    assert all(hasattr(store, name) for name in store.__all__)
