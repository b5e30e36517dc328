"""Copies of finished run directories at a URL of fsspec, such as a bucket.

A journal needs a file system that appends, so no run works on object storage. A mirror copies what has ended. Beside
the files of a run it keeps `mirror.json`: their sizes and digests, and whether all are there. It is brought up to date
after each batch of files, so a copy that was broken off goes on with the files that are missing. A journal only ever
grows, so a run whose files have the sizes of its copy is not read again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

import msgspec

from mac_runner.errors import ConfigError, MacRunnerError, StoreError, boundary
from mac_runner.extras import install_command
from mac_runner.secrecy import holds_secret
from mac_runner.store.disk import Disk
from mac_runner.structs import decode
from mac_runner.threads import DaemonExecutor

RECORD: Final = "mirror.json"
RECORD_FORMAT: Final = 1
BATCH_FILES: Final = 64
"""So many files are copied between two writings of the record."""
_URL: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+:/")


class Copied(msgspec.Struct, frozen=True):
    """A file of a mirror."""

    size_bytes: int
    sha256: str


class Record(msgspec.Struct):
    """The content of `mirror.json`."""

    files: dict[str, Copied] = {}
    is_complete: bool = False
    format: int = RECORD_FORMAT


class FileSystem(Protocol):
    """What is used of a file system of fsspec."""

    def cat_file(self, path: str) -> bytes: ...

    def pipe_file(self, path: str, value: bytes) -> object: ...

    def put(self, lpath: list[str], rpath: list[str]) -> object:
        """Copy files of this machine, several at a time where the file system can."""
        ...

    def makedirs(self, path: str, exist_ok: bool = False) -> object:
        """Make a directory, where the file system has directories."""
        ...

    def invalidate_cache(self) -> object: ...

    def size(self, path: str) -> int | None: ...


NOT_HERE: Final = "this is the address of another file system"
"""What is said of one in place of a path. It may hold a password, and is not quoted."""


def is_url(path: str) -> bool:
    """Whether a path is the URL of another file system, such as `s3://bucket/runs`, also as `Path` writes it."""
    return _URL.match(path) is not None


def file_system(url: str) -> tuple[FileSystem, str]:
    """The file system of a URL, and the path in it. Raises ConfigError saying what is missing.

    It refuses a URL with a secret, without quoting it: it stands in process lists, job scripts and messages.
    """
    if holds_secret(url):
        raise ConfigError(
            "--mirror: the URL holds a password, a token or a query; give it without, and put what its file system "
            "needs where that looks for it, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
    if find_spec("fsspec") is None:
        raise ConfigError(f"--mirror: fsspec is not installed; install it with: {install_command('mirror')}")
    from fsspec.core import url_to_fs

    try:
        with boundary(ConfigError, f"--mirror: {url} cannot be used"):
            found: tuple[Any, str] = url_to_fs(url)
    except ConfigError as fault:
        if isinstance(fault.__cause__, ImportError):
            raise ConfigError(f"--mirror: {url} needs another package ({fault.__cause__})") from fault
        raise
    return found


def copy_run(directory: Path, files: FileSystem, root: str, *, disk: Disk | None = None) -> int:
    """Copy what has changed of a finished run directory; how many files that were.

    Raises what the file system raises, and StoreError where a file arrived with another size.
    """
    disk = disk or Disk()
    here = dict(_sizes(disk, directory, PurePosixPath()))
    known = _record(files, root)
    if known.is_complete and here == {name: copied.size_bytes for name, copied in known.files.items()}:
        return 0
    now = {name: Copied(size_bytes, _sha256(disk, directory / name)) for name, size_bytes in here.items()}
    record = Record(files={name: copied for name, copied in known.files.items() if now.get(name) == copied})
    missing = [name for name in now if name not in record.files]
    for parent in sorted({str(PurePosixPath(root, name).parent) for name in missing}):
        files.makedirs(parent, exist_ok=True)
    for start in range(0, len(missing), BATCH_FILES):
        batch = missing[start : start + BATCH_FILES]
        files.put([str(directory / name) for name in batch], [f"{root}/{name}" for name in batch])
        files.invalidate_cache()
        for name in batch:
            if (size_bytes := files.size(f"{root}/{name}")) != now[name].size_bytes:
                raise StoreError(f"{name} has {size_bytes} bytes in the mirror, and {now[name].size_bytes} here")
            record.files[name] = now[name]
        _write(files, root, record)
    record.is_complete = True
    _write(files, root, record)
    return len(missing)


def _sizes(disk: Disk, directory: Path, place: PurePosixPath) -> Iterator[tuple[str, int]]:
    """Each file of a run, by its path in it. Locks and notes of processes begin with a dot, and are left out."""
    for name, size_bytes in sorted(disk.sizes(directory / place).items()):
        if name.startswith("."):
            continue
        if size_bytes is not None:
            yield str(place / name), size_bytes
        elif disk.is_directory(directory / place / name):
            yield from _sizes(disk, directory, place / name)


def _sha256(disk: Disk, path: Path) -> str:
    digest = hashlib.sha256()
    for chunk in disk.chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _record(files: FileSystem, root: str) -> Record:
    """The record of a mirror; an empty one where there is none, or where it is damaged: then all is copied."""
    with suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        found = decode(files.cat_file(f"{root}/{RECORD}"), Record)
        return found if found.format == RECORD_FORMAT else Record()
    return Record()


def _write(files: FileSystem, root: str, record: Record) -> None:
    content = json.dumps(msgspec.to_builtins(record), sort_keys=True, indent=1) + "\n"
    files.pipe_file(f"{root}/{RECORD}", content.encode())


class Mirror:
    """Copies run directories to a URL on a thread of its own. A copy that fails harms no run: it is said."""

    def __init__(
        self,
        url: str,
        base: Path,
        *,
        say: Callable[[str], None],
        quoted: Callable[[str], str],
    ) -> None:
        """The copy of `base` is at the URL itself, and that of a directory below it below the URL.

        `say` receives what failed, with the words of the file system as `quoted` gives them: they may hold a secret.
        """
        self._files, self._root = file_system(url)
        self._url = url
        self._base = base
        self._say = say
        self._quoted = quoted
        self._thread = DaemonExecutor(1, "mac-runner-mirror")
        self._copies: dict[Path, Future[int]] = {}

    def add(self, directory: Path) -> None:
        if directory not in self._copies:
            self._copies[directory] = self._thread.submit(self._copy, directory)

    @property
    def waiting(self) -> int:
        return sum(not copy.done() for copy in self._copies.values())

    def close(self) -> None:
        """Wait for the copies, and say which failed."""
        copies = self._copies
        faults = {directory: copy.exception() for directory, copy in copies.items()}
        self._thread.shutdown(wait=False)
        for directory, fault in faults.items():
            if isinstance(fault, MacRunnerError):
                why = self._quoted(str(fault))
                self._say(f"{directory} was not copied to {self._url}: {why}; the next start tries again")
            elif fault is not None:
                raise fault

    def _copy(self, directory: Path) -> int:
        name = directory.relative_to(self._base).as_posix()
        root = self._root if name == "." else f"{self._root.rstrip('/')}/{name}"
        with boundary(StoreError, "the copy failed"):
            return copy_run(directory, self._files, root)
