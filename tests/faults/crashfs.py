"""A disk that knows what is durable, and what it would hold after the power went.

It stands in for the operating system under the real store and promises no more than a filesystem must. Bytes that were
written and not synced may be there after a crash, or not, or in part, or as zeros. A name that was made, replaced or
removed may be there, or not, until its directory was synced, and names settle in any order; one rename within one
directory is atomic. Bytes whose sync failed are never durable, though a reader still sees them and a later sync of the
file says that all is well.

`crash` gives the disk as the next process finds it; the one that crashed stays as it was, so that one moment can end in
many ways. Files grow at their end only, which is all that the store does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from mac_runner.store import System
from mac_runner.store.testing import Free

Fate: TypeAlias = Random | Literal["keep", "drop"]
"""What becomes of all that is not durable: it is kept, it is dropped, or chance decides on every piece of it."""

_SECTOR_BYTES = 64
"""Small, so that a frame spans several."""


@dataclass(slots=True)
class _Piece:
    """One write; `is_lost` once a sync of it has failed."""

    data: bytes
    is_durable: bool = False
    is_lost: bool = False


@dataclass(slots=True)
class _File:
    pieces: list[_Piece] = field(default_factory=list)

    @property
    def content(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    def after_crash(self, fate: Fate) -> _File:
        survived = b""
        reached = 0
        for piece in self.pieces:
            kept = piece.data if piece.is_durable else b"" if piece.is_lost else _fragment(piece.data, fate)
            if kept:
                # What stands behind a hole is where it was written.
                survived = survived.ljust(reached, b"\0") + kept
            reached += len(piece.data)
        return _File([_Piece(survived, is_durable=True)] if survived else [])


@dataclass(slots=True)
class _Directory:
    """Its names as a process sees them, those on the platter, and the changes in between, each atomic."""

    names: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    changes: list[dict[str, _Node | None]] = field(default_factory=list)

    def change(self, **entries: _Node | None) -> None:
        _apply(self.names, entries)
        self.changes.append(dict(entries))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def after_crash(self, fate: Fate, files: dict[int, _File]) -> _Directory:
        names = dict(self.durable)
        for entries in self.changes:
            if fate == "keep" or (isinstance(fate, Random) and fate.random() < 0.5):
                _apply(names, entries)
        survived: dict[str, _Node] = {}
        for name, node in names.items():
            if isinstance(node, _Directory):
                survived[name] = node.after_crash(fate, files)
            else:
                # A file with two names is torn once.
                if id(node) not in files:
                    files[id(node)] = node.after_crash(fate)
                survived[name] = files[id(node)]
        return _Directory(survived, dict(survived))


_Node: TypeAlias = _File | _Directory


@dataclass(slots=True)
class _Handle:
    file: _File
    path: Path
    position: int = 0
    is_poisoned: bool = False


class CrashDisk(System):
    """The tree below `root`, which is there and durable from the start.

    `before` is called with each call and its path before it happens; raising OSError there makes the call fail.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prefix = str(root)
        self.before: Callable[[str, Path], None] | None = None
        self.short_write: Callable[[], int | None] = lambda: None
        self.resynced: list[Path] = []
        """Files synced again through a descriptor whose sync had failed: nobody may trust that."""
        self._tree = _Directory()
        self._open: dict[int, _Handle] = {}
        self._descriptors = count(1_000)
        self._tokens = count()

    def crash(self, fate: Fate) -> CrashDisk:
        """The disk as it is found after the power went now."""
        found = CrashDisk(self._root)
        found._tree = self._tree.after_crash(fate, {})
        # Names of temporary files that the crash left behind are not given out again.
        found._tokens = self._tokens
        return found

    def overwrite(self, path: Path, data: bytes) -> None:
        """Have other bytes in a file, durably: what a failing disk does behind everybody's back."""
        self._file(path).pieces = [_Piece(data, is_durable=True)]

    def files(self) -> dict[str, bytes]:
        """Every file by its path below the root."""
        return dict(_walk("", self._tree))

    def create(self, path: Path) -> int:
        self._tell("create", path)
        directory = self._directory(path.parent)
        if path.name in directory.names:
            raise _error(errno.EEXIST)
        directory.change(**{path.name: (file := _File())})
        return self._descriptor(file, path)

    def open_append(self, path: Path) -> int:
        self._tell("open_append", path)
        directory = self._directory(path.parent)
        if path.name not in directory.names:
            directory.change(**{path.name: _File()})
        return self._descriptor(self._file(path), path)

    def open_read(self, path: Path) -> int:
        self._tell("open_read", path)
        return self._descriptor(self._file(path), path)

    def seek(self, descriptor: int, start: int) -> None:
        self._open[descriptor].position = start

    def read(self, descriptor: int, size_bytes: int) -> bytes:
        handle = self._open[descriptor]
        self._tell("read", handle.path)
        data = handle.file.content[handle.position : handle.position + size_bytes]
        handle.position += len(data)
        return data

    def write(self, descriptor: int, data: memoryview) -> int:
        handle = self._open[descriptor]
        self._tell("write", handle.path)
        taken = bytes(data[: self.short_write()])
        handle.file.pieces.append(_Piece(taken))
        return len(taken)

    def fsync(self, descriptor: int) -> None:
        handle = self._open[descriptor]
        if handle.is_poisoned:
            self.resynced.append(handle.path)
        try:
            self._tell("fsync", handle.path)
        except OSError:
            handle.is_poisoned = True
            for piece in handle.file.pieces:
                piece.is_lost = piece.is_lost or not piece.is_durable
            raise
        for piece in handle.file.pieces:
            piece.is_durable = not piece.is_lost

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def link(self, source: Path, target: Path) -> None:
        self._tell("link", target)
        directory = self._directory(target.parent)
        if target.name in directory.names:
            raise _error(errno.EEXIST)
        directory.change(**{target.name: self._node(source)})

    def replace(self, source: Path, target: Path) -> None:
        self._tell("replace", target)
        node = self._node(source)
        if source.parent == target.parent:
            self._directory(target.parent).change(**{target.name: node, source.name: None})
        else:
            self._directory(target.parent).change(**{target.name: node})
            self._directory(source.parent).change(**{source.name: None})

    def unlink(self, path: Path) -> None:
        self._tell("unlink", path)
        self._node(path)
        self._directory(path.parent).change(**{path.name: None})

    def last_byte(self, path: Path) -> bytes:
        self._tell("last_byte", path)
        return self._file(path).content[-1:]

    def make_directory(self, path: Path) -> None:
        self._tell("make_directory", path)
        parent = self._directory(path.parent)
        if path.name in parent.names:
            raise _error(errno.EEXIST)
        parent.change(**{path.name: _Directory()})

    def remove_directory(self, path: Path) -> None:
        self._tell("remove_directory", path)
        if self._directory(path).names:
            raise _error(errno.ENOTEMPTY)
        self._directory(path.parent).change(**{path.name: None})

    def fsync_directory(self, path: Path) -> None:
        self._tell("fsync_directory", path)
        self._directory(path).sync()

    def names(self, path: Path) -> list[str]:
        self._tell("names", path)
        return list(self._directory(path).names)

    def is_directory(self, path: Path) -> bool:
        return isinstance(self._found(path), _Directory)

    def exists(self, path: Path) -> bool:
        return self._found(path) is not None

    def is_file(self, path: Path) -> bool:
        return isinstance(self._found(path), _File)

    def is_writable(self, path: Path) -> bool:
        return True

    def sizes(self, path: Path) -> dict[str, int | None]:
        self._tell("names", path)
        nodes = self._directory(path).names.items()
        return {name: len(node.content) if isinstance(node, _File) else None for name, node in nodes}

    def size(self, path: Path) -> int | None:
        self._tell("names", path)
        node = self._node(path)
        return len(node.content) if isinstance(node, _File) else None

    def free(self, path: Path) -> Free:
        self._tell("free", path)
        return Free(size_bytes=1 << 40, files=None, block_bytes=4096)

    def is_in_use(self, token: str) -> bool:
        """Never: whoever wrote a temporary file is gone, or is swept from under as by a machine that cannot tell."""
        return False

    def token(self) -> str:
        return f"model-{next(self._tokens)}"

    def _tell(self, call: str, path: Path) -> None:
        if self.before is not None:
            self.before(call, path)

    def _descriptor(self, file: _File, path: Path) -> int:
        descriptor = next(self._descriptors)
        self._open[descriptor] = _Handle(file, path)
        return descriptor

    def _found(self, path: Path) -> _Node | None:
        node: _Node | None = self._tree
        # By its text: paths are taken apart so often that pathlib would be most of the cost.
        for part in filter(None, str(path).removeprefix(self._prefix).split(os.sep)):
            node = node.names.get(part) if isinstance(node, _Directory) else None
        return node

    def _node(self, path: Path) -> _Node:
        if (node := self._found(path)) is None:
            raise _error(errno.ENOENT)
        return node

    def _file(self, path: Path) -> _File:
        if not isinstance(node := self._node(path), _File):
            raise _error(errno.EISDIR)
        return node

    def _directory(self, path: Path) -> _Directory:
        if not isinstance(node := self._node(path), _Directory):
            raise _error(errno.ENOTDIR)
        return node


def _fragment(data: bytes, fate: Fate) -> bytes:
    """What is left of unsynced bytes: a beginning of them, of which some sectors may never have been filled."""
    if not isinstance(fate, Random):
        return data if fate == "keep" else b""
    kept = bytearray(data[: fate.randint(0, len(data))])
    if fate.random() < 0.3:
        for start in range(0, len(kept), _SECTOR_BYTES):
            if fate.random() < 0.3:
                sector = kept[start : start + _SECTOR_BYTES]
                kept[start : start + _SECTOR_BYTES] = bytes(len(sector))
    return bytes(kept)


def _apply(names: dict[str, _Node], entries: dict[str, _Node | None]) -> None:
    for name, node in entries.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _walk(prefix: str, directory: _Directory) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for name, node in sorted(directory.names.items()):
        if isinstance(node, _Directory):
            found += _walk(f"{prefix}{name}/", node)
        else:
            found.append((prefix + name, node.content))
    return found


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
