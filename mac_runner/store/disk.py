"""The disk: the only file of the package that writes.

Two layers. `System` is the operating system, one method per call, raising OSError: a test replaces it by a disk that
fills up, or by one that forgets what was never synced. `Disk` composes these calls into what the store does, each with
its durability rule, and turns every OSError into a StoreError (`_naming`).

The rules. A replaced or published file is whole: it is written under a temporary name beside its place, synced, and
then takes its name; then the directory is synced, or the name could be lost. A result is published by `os.link`, which
fails where the name is taken, so the first publication wins; caches are replaced. A short write is continued. Nothing
is retried after a failure: a kernel may drop the data of a failed fsync and report success the next time.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mac_runner.errors import StoreError, UnusablePathError
from mac_runner.files import IrregularFileError, obstacle, open_regular
from mac_runner.store.machine import Machine

TEMPORARY_PREFIX = ".tmp-"
READ_CHUNK_BYTES = 1 << 20

_MACHINE = Machine()
_TOKEN = re.compile(r"([0-9a-f]{8})-([0-9]{1,9})-[0-9a-f]{12}")

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_UNUSABLE = {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
_LIMITED = {errno.EMFILE: "ulimit -n", errno.EFBIG: "ulimit -f"}
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Free(NamedTuple):
    """Free space of a filesystem; `files` (inodes) is None where it does not count them."""

    size_bytes: int
    files: int | None
    block_bytes: int


class System:
    """The calls to the operating system; each raises OSError."""

    def create(self, path: Path) -> int:
        """Open a new file for writing. Raises FileExistsError when the name is taken, even by a link."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)

    def open_append(self, path: Path) -> int:
        """Open a regular file for appending, created if missing; anything else, also a link, is refused."""
        return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)

    def open_read(self, path: Path) -> int:
        """Open a regular file for reading; anything else, also a link, is refused."""
        return open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)

    def read(self, descriptor: int, size_bytes: int) -> bytes:
        return os.read(descriptor, size_bytes)

    def seek(self, descriptor: int, start: int) -> None:
        os.lseek(descriptor, start, os.SEEK_SET)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`; returns how many bytes."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises FileExistsError when it is taken."""
        os.link(source, target, follow_symlinks=False)

    def replace(self, source: Path, target: Path) -> None:
        """Rename; a file at `target` is replaced."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def last_byte(self, path: Path) -> bytes:
        with os.fdopen(self.open_read(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            return file.read(1)

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def fsync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def names(self, path: Path) -> list[str]:
        return [entry.name for entry in path.iterdir()]

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def is_file(self, path: Path) -> bool:
        try:
            return stat.S_ISREG(os.lstat(path).st_mode)
        except FileNotFoundError:
            return False

    def is_writable(self, path: Path) -> bool:
        """Whether names in a directory may be removed."""
        return os.access(path, os.W_OK)

    def sizes(self, path: Path) -> dict[str, int | None]:
        """The size of each regular file in a directory, by name; None for anything else."""
        found: dict[str, int | None] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # It has gone since, as the temporary file of a process at work does.
                    is_file = entry.is_file(follow_symlinks=False)
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size if is_file else None
        return found

    def size(self, path: Path) -> int | None:
        """The size of a regular file; None for anything else. Raises FileNotFoundError."""
        found = os.lstat(path)
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def free(self, path: Path) -> Free:
        """What the filesystem of `path` has left for this user."""
        found = os.statvfs(path)
        return Free(
            size_bytes=found.f_bavail * found.f_frsize,
            files=found.f_favail if found.f_files else None,
            block_bytes=found.f_frsize,
        )

    def token(self) -> str:
        """A text for temporary names that no other writer on any host uses; it names its writer."""
        return f"{_MACHINE.identity}-{os.getpid()}-{secrets.token_hex(6)}"

    def is_in_use(self, token: str) -> bool:
        """Whether the writer of a temporary name is another live process of this machine."""
        match = _TOKEN.fullmatch(token)
        if match is None or match[1] != _MACHINE.identity or int(match[2]) == os.getpid():
            return False
        return _MACHINE.process_start(int(match[2])) is not None


class PrivateSystem(System):
    """Makes files that this user alone can read."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """An open file, and its path for the text of an error."""

    path: Path
    descriptor: int


class Disk:
    """What the store does to the disk. Every method raises StoreError naming operation, path and cause."""

    def __init__(self, system: System | None = None) -> None:
        self._system = System() if system is None else system
        self.pulse = 0
        """Grows with each completed operation: a disk hangs when it stays the same for long."""

    def exists(self, path: Path) -> bool:
        with _naming("look for", path):
            return self._system.exists(path)

    def is_directory(self, path: Path) -> bool:
        with _naming("look for", path):
            return self._system.is_directory(path)

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, sorted; none when it does not exist."""
        with _naming("list", directory):
            if self._system.is_directory(directory):
                return sorted(self._system.names(directory))
            _check_place(directory)
            return []

    def check_regular(self, path: Path) -> None:
        """Raise UnusablePathError unless `path` is a regular file or free."""
        with _naming("use", path):
            if self._system.exists(path):
                self._system.close(self._system.open_read(path))

    def is_file(self, path: Path) -> bool:
        with _naming("look for", path):
            return self._system.is_file(path)

    def sizes(self, directory: Path, names: Sequence[str] | None = None) -> dict[str, int | None]:
        """The size of each regular file in a directory, None for anything else; empty when it does not exist.

        With `names` those of them alone that are there, without a look at the others.
        """
        found: dict[str, int | None] = {}
        with _naming("list", directory):
            if not self._system.is_directory(directory):
                return found
            if names is None:
                return self._system.sizes(directory)
            for name in names:
                with suppress(FileNotFoundError):
                    found[name] = self._system.size(directory / name)
        return found

    def free(self, path: Path) -> Free:
        with _naming("look for room in", path):
            return self._system.free(path)

    def chunks(self, path: Path, start: int = 0, size_bytes: int | None = None) -> Iterator[bytes]:
        """A file, or what follows an offset, in pieces of bounded size; nothing when it does not exist.

        With `size_bytes` not more than so much of it.
        """
        with _naming("read", path):
            try:
                descriptor = self._system.open_read(path)
            except FileNotFoundError:
                return
            try:
                if start:
                    self._system.seek(descriptor, start)
                left = READ_CHUNK_BYTES if size_bytes is None else size_bytes
                while chunk := self._system.read(descriptor, min(left, READ_CHUNK_BYTES)):
                    self.pulse += 1
                    left -= 0 if size_bytes is None else len(chunk)
                    yield chunk
            finally:
                self._system.close(descriptor)

    def ends_line(self, path: Path) -> bool:
        """Whether what is appended next begins a line."""
        with _naming("read", path):
            return not self._system.exists(path) or self._system.last_byte(path) in {b"", b"\n"}

    def read(self, path: Path) -> bytes:
        if not self.exists(path):
            with _naming("read", path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return b"".join(self.chunks(path))

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, durably; an existing one is fine."""
        with _naming("make the directory", path):
            if self._system.is_directory(path):
                return
            _check_place(path)
            self.make_directory(path.parent)
            try:
                self._system.make_directory(path)
            except FileExistsError:
                # A process that a broken lock let in was quicker. A file of this name is an error.
                if not self._system.is_directory(path):
                    raise
            self._system.fsync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        with _naming("sync the directory", path):
            self._system.fsync_directory(path)

    def sync_file(self, path: Path) -> None:
        """Make durable what another process wrote into a file."""
        with _naming("sync", path):
            descriptor = self._system.open_read(path)
            try:
                self._system.fsync(descriptor)
            finally:
                self._system.close(descriptor)

    def create(self, path: Path) -> OpenFile | None:
        """A new file to append to, its name durable; None when the name is taken."""
        with _naming("create", path):
            try:
                descriptor = self._system.create(path)
            except FileExistsError:
                return None
            try:
                self._system.fsync_directory(path.parent)
            except OSError:
                self._system.close(descriptor)
                raise
            return OpenFile(path=path, descriptor=descriptor)

    def open_append(self, path: Path) -> OpenFile:
        """A file to append to, created if missing; its name is not made durable."""
        with _naming("open", path):
            return OpenFile(path=path, descriptor=self._system.open_append(path))

    def append(self, file: OpenFile, data: bytes) -> None:
        """Write all of `data` at the end; durable only after `sync`."""
        with _naming("write", file.path):
            self._write(file.descriptor, data)

    def sync(self, file: OpenFile) -> None:
        with _naming("sync", file.path):
            self._system.fsync(file.descriptor)
            self.pulse += 1

    def close(self, file: OpenFile) -> None:
        with _naming("close", file.path):
            self._system.close(file.descriptor)

    def write_atomic(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Replace the file at `path`, durably: a reader or a crash sees the old or the new one, whole."""
        temporary = self._write_temporary(path, pieces)
        with _naming("replace", path):
            try:
                self._system.replace(temporary, path)
            except OSError:
                self._discard(temporary)
                raise
            self._system.fsync_directory(path.parent)

    def stage(self, path: Path) -> StagedFile:
        """Begin a file that is written piece by piece and gets its name when it is whole."""
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{self._system.token()}")
        with _naming("write", path):
            return StagedFile(self, OpenFile(path=temporary, descriptor=self._system.create(temporary)), path)

    def publish_once(self, path: Path, data: bytes) -> bool:
        """Write a durable file at `path` unless the name is taken; returns whether it was free.

        The name itself is durable only after `sync_directory`, which one call does for many files.
        """
        temporary = self._write_temporary(path, [data])
        with _naming("publish", path):
            try:
                return self._link(temporary, path)
            finally:
                with suppress(FileNotFoundError):  # Without hard links it was moved.
                    self._system.unlink(temporary)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file, durably."""
        with _naming("move", source):
            self._system.replace(source, target)
            self._system.fsync_directory(target.parent)
            self._system.fsync_directory(source.parent)

    def remove(self, path: Path) -> None:
        """Remove a name, if it is there."""
        with _naming("remove", path):
            self._unlink(path)

    def remove_directory(self, path: Path) -> None:
        with _naming("remove", path):
            self._system.remove_directory(path)

    def sweep(self, directory: Path) -> int:
        """Remove the temporary files of killed processes; returns how many there were.

        Those of a live process stay: a broken lock may have let it in.
        """
        found = self.strays(directory)
        for path in found:
            self.remove(path)
        return len(found)

    def strays(self, directory: Path) -> list[Path]:
        """The temporary files in a directory that no process needs any more; none where this one cannot remove them."""
        found = [directory / name for name in self.names(directory) if name.startswith(TEMPORARY_PREFIX)]
        return [
            path
            for path in found
            if not self._system.is_in_use(path.name.removeprefix(TEMPORARY_PREFIX))
            and self._system.is_writable(directory)
        ]

    def _unlink(self, path: Path) -> None:
        if self._system.exists(path):
            # A process that a broken lock let in may remove the same file.
            with suppress(FileNotFoundError):
                self._system.unlink(path)

    def _write_temporary(self, path: Path, pieces: Iterable[bytes]) -> Path:
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{self._system.token()}")
        with _naming("write", path):
            descriptor = self._system.create(temporary)
            try:
                try:
                    for chunk in _gathered(pieces):
                        self._write(descriptor, chunk)
                    self._system.fsync(descriptor)
                finally:
                    self._system.close(descriptor)
            except BaseException:
                self._discard(temporary)
                raise
        return temporary

    def _discard(self, temporary: Path) -> None:
        """Remove an unused temporary file; if that fails, a later sweep removes it."""
        with suppress(OSError):
            self._system.unlink(temporary)

    def _write(self, descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = self._system.write(descriptor, rest)
            if written <= 0:
                raise OSError(errno.EIO, "the system wrote nothing")
            rest = rest[written:]
            self.pulse += 1

    def _link(self, temporary: Path, path: Path) -> bool:
        try:
            self._system.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as fault:
            if fault.errno not in _NO_HARD_LINKS:
                raise
            # A filesystem without hard links. The lock makes this process the only writer, so looking first is as
            # good as an exclusive claim. Only here does the store depend on the lock.
            if self._system.exists(path):
                return False
            self._system.replace(temporary, path)
        return True


class StagedFile:
    """A file under a temporary name: `commit` gives it its own, `discard` removes it. After a kill `sweep` does."""

    def __init__(self, disk: Disk, file: OpenFile, path: Path) -> None:
        self._disk = disk
        self._file = file
        self._is_open = True
        self._is_named = False
        self.path = path

    def append(self, data: bytes) -> None:
        if data:
            self._disk.append(self._file, data)

    def commit(self) -> None:
        """Give the file its name, durably; it replaces one that has it."""
        self._disk.sync(self._file)
        self._close()
        self._disk.rename(self._file.path, self.path)
        self._is_named = True

    def discard(self) -> None:
        """Remove the file, unless it has its name."""
        self._close()
        if not self._is_named:
            self._disk.remove(self._file.path)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._disk.close(self._file)


def is_full(failure: StoreError) -> bool:
    return isinstance(failure.__cause__, OSError) and failure.__cause__.errno in _FULL


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in chunks that are worth a write each."""
    chunk: list[bytes] = []
    size_bytes = 0
    for piece in pieces:
        chunk.append(piece)
        size_bytes += len(piece)
        if size_bytes >= READ_CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size_bytes = [], 0
    if chunk:
        yield b"".join(chunk)


@contextmanager
def _naming(operation: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that names operation, path and advice."""
    try:
        yield
    except IrregularFileError as fault:
        raise UnusablePathError(
            f"cannot {operation} {path}: {fault.strerror}; put back the file that the run wrote, or choose another "
            "directory with --out"
        ) from fault
    except OSError as fault:
        code = errno.errorcode.get(fault.errno or 0, "unknown")
        kind = UnusablePathError if fault.errno in _UNUSABLE else StoreError
        reason = fault.strerror or str(fault)
        raise kind(f"cannot {operation} {path}: {reason} ({code}); {_advice(fault.errno)}") from fault


def _check_place(directory: Path) -> None:
    """Raise UnusablePathError when something else is in the place of a directory."""
    if (what := obstacle(directory)) is not None:
        raise UnusablePathError(f"cannot use {directory} as a directory: {what}; choose another place with --out")


def _advice(code: int | None) -> str:
    again = "run the same command again: it goes on where it stopped"
    if code in _FULL:
        return f"free some space or raise the quota, then {again}"
    if code in _DENIED:
        return f"make the directory writable for this user, then {again}"
    if code in _UNUSABLE:
        return "choose another place with --out, or put back what the run wrote"
    if code in _LIMITED:
        return f"raise the limit of this process (`{_LIMITED[code]}`), then {again}"
    return f"when the storage works again, {again}"
