"""Marks of files, by which a reader knows that a file has changed since it was read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


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
