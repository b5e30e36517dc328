"""Publishing a transcript: once, whole, first wins."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from mac_runner.errors import StoreError
from mac_runner.store.disk import Disk
from mac_runner.store.layout import Layout, task_id_of
from mac_runner.store.records import entry
from mac_runner.store.transcripts import decode_transcript, encode_transcript, index_row
from mac_runner.types import JsonObject


class Published(NamedTuple):
    """A transcript as it stands on the disk, and its index row."""

    transcript: JsonObject
    row: JsonObject


class Publication(NamedTuple):
    """The index row of what stands on the disk, and whether that is what was published now."""

    row: JsonObject
    is_first: bool


def publish(disk: Disk, layout: Layout, task_id: str, transcript: JsonObject) -> Publication:
    """Put a transcript in its place and return the index row of what stands there then.

    Where one of the same task was published before, it stays and the new one is dropped: work may repeat, results may
    not. Its name is durable after a sync of the directory, which the caller does for many at once.
    """
    data = encode_transcript(transcript)
    path = layout.transcript(task_id)
    if disk.publish_once(path, data):
        return Publication(index_row(transcript, data), is_first=True)
    try:
        return Publication(read_published(disk, layout, task_id).row, is_first=False)
    except ValueError as fault:
        raise StoreError(
            f"{path} was there before its conversation ended and cannot be read ({fault}); "
            "run the same command again: it is set aside and the conversation is written anew"
        ) from fault


def read_published(disk: Disk, layout: Layout, task_id: str) -> Published:
    """The transcript that stands on the disk for a task. Raises ValueError when it is not one of this task."""
    path = layout.transcript(task_id)
    if disk.exists(path) and not disk.is_file(path):
        raise ValueError("it is no regular file")
    data = disk.read(path)
    try:
        transcript = decode_transcript(data)
    except RecursionError as fault:
        raise ValueError("it is nested too deeply") from fault
    if (found := entry(entry(transcript, "task", dict), "task_id", str)) != task_id:
        raise ValueError(f"it is the transcript of task {found!r}")
    return Published(transcript, index_row(transcript, data))


def read_acknowledged(disk: Disk, path: Path, row: JsonObject) -> bytes:
    """The bytes of a transcript, which are those that its row acknowledges. Raises ValueError saying what is wrong."""
    if not disk.exists(path):
        raise ValueError("is not there")
    if not disk.is_file(path):
        raise ValueError("is no regular file")
    data = disk.read(path)
    if hashlib.sha256(data).hexdigest() != row["sha256"]:
        raise ValueError("is not what was acknowledged")
    return data


def transcript_sizes(disk: Disk, layout: Layout) -> dict[str | None, int | None]:
    """The size of each transcript by its task, None for what is no regular file; under None for a name of no task."""
    return {task_id_of(name): size_bytes for name, size_bytes in disk.sizes(layout.transcripts).items()}


def set_aside(disk: Disk, layout: Layout, path: Path) -> None:
    """Move a damaged transcript, or whatever has its name, into `damaged/`; nothing there is replaced."""
    disk.make_directory(layout.damaged)
    place, n = layout.damaged / path.name, 1
    while disk.exists(place):
        place, n = layout.damaged / f"{path.stem}.{n}.json", n + 1
    disk.rename(path, place)
