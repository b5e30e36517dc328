"""Mirrors of finished runs: complete, resumed, checked, and never in the way of a run."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mac_runner.errors import ConfigError, StoreError
from mac_runner.store import mirror
from mac_runner.store.testing import Mirror, copy_run, file_system
from tests.sim.leaks import leak_in

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory like that of a run."""
    directory = tmp_path / "shared/grid/seed=1"
    for name in ("journal/000001.jsonl", "experiment.yaml", *(f"transcripts/{n}.json" for n in range(9)), ".lock"):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n" * 20)
    return directory


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place in a real directory, or in one in memory."""
    return f"file://{tmp_path}/mirror" if request.param == "file" else f"memory://{uuid4()}"


def contents(files: Any, root: str) -> dict[str, bytes]:
    """Every file below a place."""
    found = files.find(root)
    return {path[path.index(root.strip("/")) + len(root.strip("/")) + 1 :]: files.cat_file(path) for path in found}


def originals(run: Path) -> dict[str, bytes]:
    paths = [path for path in run.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


class Counted:
    """A file system that counts the files that are put into it, and fails after some of them."""

    def __init__(self, files: Any, most: int = 1000) -> None:
        self._files = files
        self.left = most
        self.put_names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def put(self, lpath: list[str], rpath: list[str]) -> None:
        for one, other in zip(lpath, rpath, strict=True):
            if not self.left:
                raise OSError("the line is cut")
            self.left -= 1
            self._files.put_file(one, other)
            self.put_names.append(Path(one).name)


def test_copy_has_every_file_with_its_digest_and_is_made_once(run: Path, url: str) -> None:
    found, root = file_system(url)
    files = Counted(found)

    assert copy_run(run, files, root) == 11
    assert copy_run(run, files, root) == 0

    there = contents(found, root)
    record = json.loads(there.pop("mirror.json"))
    assert there == originals(run)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in there.items()}
    assert ({name: file["sha256"] for name, file in record["files"].items()}, record["is_complete"]) == (digests, True)


def test_copy_that_was_broken_off_goes_on_with_what_is_missing(
    run: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "BATCH_FILES", 2)
    found, root = file_system(url)
    cut, whole = Counted(found, most=5), Counted(found)

    with pytest.raises(OSError, match="is cut"):
        copy_run(run, cut, root)
    assert json.loads(found.cat_file(f"{root}/mirror.json"))["is_complete"] is False
    copied = copy_run(run, whole, root)

    # The third batch was cut after one of its two files: it is copied again.
    assert (len(cut.put_names), copied) == (5, 11 - 4)
    assert set(cut.put_names[:4]).isdisjoint(whole.put_names)
    assert {name: data for name, data in contents(found, root).items() if name != "mirror.json"} == originals(run)


def test_run_that_went_on_is_brought_up_to_date(run: Path, url: str) -> None:
    found, root = file_system(url)
    copy_run(run, found, root)
    (run / "journal/000001.jsonl").write_text("longer\n" * 100)
    (run / "experiment.yaml").write_text("x" * (run / "experiment.yaml").stat().st_size)

    files = Counted(found)
    copy_run(run, files, root)

    assert sorted(files.put_names) == ["000001.jsonl", "experiment.yaml"]


def test_record_that_is_damaged_means_a_copy_of_everything(run: Path, url: str) -> None:
    found, root = file_system(url)
    copy_run(run, found, root)
    for damage in (b"", b"[", b'{"format": 9}', b"\xff"):
        found.pipe_file(f"{root}/mirror.json", damage)
        assert copy_run(run, found, root) == 11


def test_file_that_arrives_with_another_size_is_an_error(run: Path, url: str) -> None:
    found, root = file_system(url)

    class Cutting(Counted):
        def size(self, path: str) -> int:
            return 3 if path.endswith("4.json") else int(self._files.size(path))

    with pytest.raises(StoreError, match=r"4\.json has 3 bytes"):
        copy_run(run, Cutting(found), root)


def test_failure_is_said_and_the_next_start_copies(run: Path, tmp_path: Path) -> None:
    said: list[str] = []
    taken = tmp_path / "mirror"
    taken.write_text("a file in the way")
    first = Mirror(f"file://{taken}", run.parents[1], say=said.append, quoted=str)
    first.add(run)
    first.close()

    assert any("seed=1 was not" in line and "next start" in line for line in said)
    taken.unlink()
    second = Mirror(f"file://{taken}", run.parents[1], say=said.append, quoted=str)
    second.add(run)
    second.add(run)
    second.close()
    assert (taken / "grid" / "seed=1" / "mirror.json").is_file()


def test_copies_are_made_off_the_thread_that_asks(run: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def copy(*_args: object, **_more: object) -> int:
        threads.append(threading.current_thread())
        return 0

    monkeypatch.setattr(mirror, "copy_run", copy)

    made = Mirror(url, run, say=lambda _line: None, quoted=str)
    made.add(run)
    made.close()

    assert [thread is threading.main_thread() for thread in threads] == [False]


@pytest.mark.parametrize("url", ["s3://ID:{}@bucket/runs", "memory://:{}@x", "https://h/x?sig={}", "s3://ID:{}"])
def test_url_with_a_secret_is_refused_without_a_word_of_it(url: str) -> None:
    secret = "Zq7/Wv9+Jp3Gf5Ty2Ub8Nd"
    with pytest.raises(ConfigError) as caught:
        file_system(url.format(secret))

    assert caught.value.__cause__ is caught.value.__context__ is None
    assert leak_in(str(caught.value), secret, 4) is None


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "find_spec", lambda _name: None)

    with pytest.raises(ConfigError, match=r"pip install .*\[mirror\]"):
        file_system("memory://x")


def test_url_of_no_file_system_is_refused() -> None:
    for url, words in (("nowhere://x", "cannot be used"), ("s3://bucket/x", "needs another package")):
        with pytest.raises(ConfigError, match=words):
            file_system(url)
