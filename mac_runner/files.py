"""Regular files, opened without waiting.

Opening a FIFO waits until another process opens its other end, and reading a device may never end. So the package opens
files by name only here: without waiting, and checked on the open descriptor, so that nothing can take the file's place
between the check and the use.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.errors import ConfigError

_KINDS: Final[Mapping[Callable[[int], bool], str]] = {
    stat.S_ISFIFO: "a FIFO (named pipe)",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISDIR: "a directory",
    stat.S_ISLNK: "a symbolic link",
}
MATERIAL_BYTES_MAX: Final = 256 << 20
"""The largest file that an experiment or a command line names to be read whole."""
_REFUSED: Final = frozenset({errno.ENXIO, errno.ELOOP, errno.EISDIR})
"""The system's errors when it cannot open a socket, a FIFO for writing, a link that is not followed, a directory."""


class IrregularFileError(OSError):
    """The file at a path is not a regular file; `strerror` says what it is."""

    def __init__(self, mode: int) -> None:
        kind = next((kind for is_kind, kind in _KINDS.items() if is_kind(mode)), "of an unknown kind")
        super().__init__(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, f"it is {kind}, not a regular file")


def open_regular(path: Path, flags: int, mode: int = 0o644) -> int:
    """`os.open` of a regular file. Raises OSError, and IrregularFileError for any other file, without waiting."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as fault:
        if fault.errno in _REFUSED:
            found = _mode_of(path, follows_links=not flags & os.O_NOFOLLOW)
            if found is not None and not stat.S_ISREG(found):
                raise IrregularFileError(found) from fault
        if isinstance(fault, FileNotFoundError) and path.is_symlink():
            raise FileNotFoundError(errno.ENOENT, "it is a link to a file that is not there") from fault
        raise
    except ValueError as fault:  # The name has a character that is not allowed in a path.
        raise OSError(errno.EINVAL, str(fault)) from fault
    try:
        found = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(found):
            raise IrregularFileError(found)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, size_bytes_max: int) -> bytes:
    """The first bytes of a regular file, found through links. Raises OSError, as `open_regular` does."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read(size_bytes_max)


def read_material(path: Path) -> bytes:
    """The bytes of a file that a user names. Raises ConfigError naming it when it cannot be read or is too large."""
    try:
        data = read_regular(path, MATERIAL_BYTES_MAX + 1)
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read: {fault.strerror or fault}; name a file that exists") from fault
    if len(data) > MATERIAL_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {MATERIAL_BYTES_MAX} bytes; split it")
    return data


def chunks_between(path: Path, start: int, end: int, size_bytes: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of a regular file, found through links, from one offset to another. Raises OSError for fewer."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
        file.seek(start)
        while start < end:
            if not (chunk := file.read(min(size_bytes, end - start))):
                raise OSError(errno.EIO, f"it ends at byte {start}, and should have {end}")
            start += len(chunk)
            yield chunk


def _mode_of(path: Path, *, follows_links: bool) -> int | None:
    with suppress(OSError):
        return path.stat(follow_symlinks=follows_links).st_mode
    return None


def obstacle(path: Path) -> str | None:
    """The part of `path` that prevents a directory there, with the reason; None when nothing does."""
    for part in (*reversed(path.parents), path):
        try:
            found = part.stat().st_mode
        except FileNotFoundError:
            return f"{part} is a link to nothing" if part.is_symlink() else None
        except OSError as fault:
            return f"{part}: {fault.strerror}" if fault.errno == errno.ELOOP else None
        if not stat.S_ISDIR(found):
            return f"{part} is not a directory"
    return None


class Mark(NamedTuple):
    """By what a file is known to be the same as before."""

    inode: int
    size_bytes: int
    changed_ns: int


def mark_of(path: Path) -> Mark | None:
    """The mark of a file; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - one call
    except OSError:
        return None
    return Mark(found.st_ino, found.st_size, found.st_mtime_ns)
