"""The manifest: every planned task, its transcript's place, and what became of it.

It is written whole, and therefore rarely: at the start, at the end, and in between only when both some time has gone
by and a fair share of the tasks has ended, so that its cost per conversation does not grow with the plan. Between two
writings the journal is the truth, and whoever resumes reads both.

What was planned once stays planned: an invocation that plans fewer tasks does not shrink it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise
from typing import Literal, NamedTuple, TypeAlias

from mac_runner.errors import RunDirectoryError
from mac_runner.store.frames import encode_json, lines
from mac_runner.store.records import entry, objects
from mac_runner.store.transcripts import transcript_path
from mac_runner.types import JsonObject

MANIFEST_FORMAT = 1

_LINES_PER_PIECE = 1_000
_TASK = re.compile(rb'\{"task_id": .*\},?')
_quoted = json.JSONEncoder(ensure_ascii=True).encode

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

    def __init__(self, experiment_name: str, planned: Mapping[str, int]) -> None:
        self._experiment_name = experiment_name
        self._indexes = _in_task_order(planned)
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

    def status(self, task_id: str) -> str:
        """How a task ended, or that it is pending."""
        return self._endings.get(task_id, "pending")

    def is_done(self, task_id: str) -> bool:
        """Whether a task needs no more work."""
        return task_id in self._endings

    def is_pending(self, task_id: str) -> bool:
        """Whether a task is planned and needs work."""
        return task_id in self._indexes and task_id not in self._endings

    def done(self) -> Iterator[str]:
        """The tasks that are done, in task order."""
        return (task_id for task_id in self._indexes if task_id in self._endings)

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
        status = self.status(task_id)
        names = f'"task_id": {_quoted(task_id)}, "index": {index}, "transcript": {_quoted(transcript_path(task_id))}'
        return f'{{{names}, "status": "{status}"}}'


class ManifestFile(NamedTuple):
    """What a manifest on disk says was planned, and what became of it up to its writing."""

    experiment_name: str
    planned: dict[str, int]
    statuses: dict[str, str]
    counts: JsonObject


def decode_manifest(chunks: Iterable[bytes], where: str) -> ManifestFile:
    """Read a manifest back, given in pieces, line by line. Raises RunDirectoryError when it is none."""
    planned: dict[str, int] = {}
    statuses: dict[str, str] = {}

    def note(task: JsonObject) -> None:
        task_id = entry(task, "task_id", str)
        planned[task_id] = entry(task, "index", int)
        statuses[task_id] = entry(task, "status", str)

    # What is left when the lines of the tasks are taken out is a manifest without tasks, and small.
    frame: list[bytes] = []
    try:
        for line in lines(chunks):
            if _TASK.fullmatch(line.data):
                note(json.loads(line.data.removesuffix(b",")))
            else:
                frame.append(line.data)
        record = json.loads(b"\n".join(frame))
        if not isinstance(record, dict) or record.get("format") != MANIFEST_FORMAT:
            raise ValueError(f"it should be an object with format {MANIFEST_FORMAT}")
        # Laid out anew by another program it has its tasks here.
        for task in objects(record, "tasks"):
            note(task)
        return ManifestFile(entry(record, "experiment_name", str), planned, statuses, entry(record, "counts", dict))
    except (ValueError, RecursionError) as fault:
        raise RunDirectoryError(
            f"{where} cannot be read ({fault}); remove it and run the same command again: it is written anew"
        ) from fault


def _in_task_order(planned: Mapping[str, int]) -> dict[str, int]:
    ordered = dict(planned)
    if all(one < other for one, other in pairwise(ordered.values())):
        return ordered
    return dict(sorted(ordered.items(), key=lambda item: (item[1], item[0])))
