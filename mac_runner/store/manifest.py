"""The manifest: every planned task, its transcript's place, and what became of it.

It is written whole, and therefore rarely: at the start, at the end, and in between only when both some time has gone
by and a fair share of the tasks has ended, so that its cost per conversation does not grow with the plan. Between two
writings the journal is the truth, and whoever resumes reads both.

What was planned once stays planned: an invocation that plans fewer tasks does not shrink it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from mac_runner.errors import RunDirectoryError
from mac_runner.store.frames import encode_json
from mac_runner.store.records import entry, objects
from mac_runner.store.transcripts import transcript_path
from mac_runner.types import JsonObject

MANIFEST_FORMAT = 1

_LINES_PER_PIECE = 1_000

Ending: TypeAlias = Literal["finished", "failed"]


class Counts(NamedTuple):
    """How many tasks are planned, and how many of them ended, and how."""

    planned: int
    finished: int
    failed: int

    @property
    def done(self) -> int:
        """How many need no more work."""
        return self.finished + self.failed


class Manifest:
    """Planned tasks in the order of their index, and the endings of those that are done."""

    def __init__(self, experiment_name: str, planned: Iterable[tuple[str, int]]) -> None:
        self._experiment_name = experiment_name
        self._indexes = dict(sorted(planned, key=lambda item: (item[1], item[0])))
        self._endings: dict[str, Ending] = {}
        self._failed = 0

    @property
    def counts(self) -> Counts:
        """How far the run is."""
        return Counts(len(self._indexes), len(self._endings) - self._failed, self._failed)

    def settle(self, task_id: str, ending: Ending) -> None:
        """Note that a task is done."""
        if task_id not in self._endings:
            self._failed += ending == "failed"
            self._endings[task_id] = ending

    def is_done(self, task_id: str) -> bool:
        """Whether a task needs no more work."""
        return task_id in self._endings

    def encode(self, updated_at: str) -> Iterator[bytes]:
        """The file, in pieces: one line for each task."""
        head: JsonObject = {
            "format": MANIFEST_FORMAT,
            "experiment_name": self._experiment_name,
            "counts": dict(self.counts._asdict()),
            "timing": {"updated_at": updated_at},
        }
        rows = b",\n".join(encode_json(key) + b": " + encode_json(value) for key, value in head.items())
        yield b"{\n" + rows + b',\n"tasks": ['
        tasks = (self._line(task_id, index) for task_id, index in self._indexes.items())
        separator = "\n"
        while piece := ",\n".join(islice(tasks, _LINES_PER_PIECE)):
            yield (separator + piece).encode("ascii")
            separator = ",\n"
        yield b"\n]\n}\n"

    def _line(self, task_id: str, index: int) -> str:
        status = self._endings.get(task_id, "pending")
        names = (
            f'"task_id": {json.dumps(task_id)}, "index": {index}, "transcript": {json.dumps(transcript_path(task_id))}'
        )
        return f'{{{names}, "status": "{status}"}}'


class ManifestFile(NamedTuple):
    """What a manifest on disk says was planned, and what became of it up to its writing."""

    experiment_name: str
    planned: dict[str, int]
    statuses: dict[str, str]


def decode_manifest(data: bytes, where: str) -> ManifestFile:
    """Read a manifest back. Raises RunDirectoryError when it is none."""
    try:
        record = json.loads(data)
        if not isinstance(record, dict) or record.get("format") != MANIFEST_FORMAT:
            raise ValueError(f"it should be an object with format {MANIFEST_FORMAT}")
        tasks = objects(record, "tasks")
        return ManifestFile(
            experiment_name=entry(record, "experiment_name", str),
            planned={entry(task, "task_id", str): entry(task, "index", int) for task in tasks},
            statuses={entry(task, "task_id", str): entry(task, "status", str) for task in tasks},
        )
    except (ValueError, RecursionError) as fault:
        raise RunDirectoryError(
            f"{where} cannot be read ({fault}); remove it and run the same command again: it is written anew"
        ) from fault
