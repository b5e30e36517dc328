"""A folder that is written under another name and takes its place when it is whole."""

from __future__ import annotations

from pathlib import Path

from mac_runner.store import Disk


class Folder:
    """A folder beside its place `out`, from `begin` to `take_place`. One process writes it."""

    def __init__(self, disk: Disk, out: Path) -> None:
        self._disk = disk
        # Where a link leads, and what `.` is called: the folder is renamed, and not the way to it.
        self._out = out.resolve()
        self._path = self._out.with_name(f".{self._out.name}.publishing")
        self._known: set[Path] = set()
        self.files = 0
        self.size_bytes = 0

    def begin(self) -> None:
        """Start over; what a killed publication left is removed."""
        self.remove()
        self._disk.make_directory(self._path)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, named by its path inside."""
        path = self._path / name
        if path.parent not in self._known:
            self._disk.make_directory(path.parent)
            self._known.add(path.parent)
        file = self._disk.open_append(path)
        try:
            self._disk.append(file, data)
        finally:
            self._disk.close(file)
        self.files += 1
        self.size_bytes += len(data)

    def take_place(self) -> None:
        """Rename the folder. What was in its place is removed after that."""
        former = self._out.with_name(f".{self._out.name}.former")
        _remove(self._disk, former)
        if self._disk.exists(self._out):
            self._disk.rename(self._out, former)
        self._disk.rename(self._path, self._out)
        _remove(self._disk, former)

    def remove(self) -> None:
        """Leave nothing but what was in the place before."""
        _remove(self._disk, self._path)


def _remove(disk: Disk, path: Path) -> None:
    """Remove a folder with all that is in it. What a link leads to stays."""
    if not disk.exists(path):
        return
    if path.is_symlink() or not disk.is_directory(path):
        disk.remove(path)
        return
    for name in disk.names(path):
        _remove(disk, path / name)
    disk.remove_directory(path)
