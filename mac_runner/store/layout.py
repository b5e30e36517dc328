"""The paths in a run directory.

::

    runs/NAME/
      experiment.yaml        the resolved config: the file that makes this a run directory
      shard.json             which part of the experiment this is, if it is not all of it
      task_manifest.json     every planned task and its status, written whole now and then
      NAME_index.jsonl       one row per ended conversation
      summary.json           the results in numbers
      events.jsonl           what happened when, for machines
      journal/000001.jsonl   one segment per session: the truth between two manifests
      transcripts/ID.json    one file per ended conversation
      traces/ID.parquet      its token ids, where they are recorded
      attempts/ID.N.json     the N-th attempt at a conversation that failed and was retried; ID.N.parquet its tokens
      damaged/               damaged transcripts, set aside
      .lock  .owner.json     which process is at work
      .lease                 its signs of life

A grid has all its combinations in one directory, with these files in the place of `experiment.yaml`::

    runs/NAME/
      grid.yaml              what was asked for, and every combination there ever was, one per line
      experiments/SLUG.yaml  the resolved config of one combination
      summaries/SLUG.json    its results in numbers
      journal/SLUG/          its segments; those beside it say what the engines used
      grid.csv               one row per combination, its values and its results; grid.parquet beside it, if asked for

A combination is read by the name `runs/NAME/SLUG`, though there is no directory of this name.

And while workers claim its shards, in the directory of a run:

::

    runs/NAME/
      leases.json            how many shards there are, and of which experiment; gone once all has ended
      leases/03-of-64/       who has claimed this shard: the lock, the note and the signs of life of a run directory
      workers/NAME/          one directory for each worker that came: its signs of life, events and accounts
      .submit/               the script and the output of the workers that `mac-run submit` started

The shards of a combination are in `leases/SLUG.json` and `leases/SLUG/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard, index_of
from mac_runner.store.disk import Disk

CONFIG: Final = "experiment.yaml"
MANIFEST: Final = "task_manifest.json"
SUMMARY: Final = "summary.json"
EVENTS: Final = "events.jsonl"
SHARD: Final = "shard.json"
LEASES: Final = "leases.json"
LEASE_DIRECTORIES: Final = "leases"
WORKERS: Final = "workers"
SUBMIT: Final = ".submit"
"""What `mac-run submit` leaves in the directory of a run or a grid: its script, and the output of its workers."""
FORK: Final = "fork.json"
VALUE: Final = "value.json"
GRID: Final = "grid.yaml"
EXPERIMENTS: Final = "experiments"
SUMMARIES: Final = "summaries"
GRID_HEAD: Final = b"# What this grid was started with. Do not edit: run a changed experiment file instead.\n"
"""Its first line, which tells it from an experiment file of that name."""
MERGE_MARK: Final = ".merging.json"
"""Exists while a merge into the directory is unfinished; names its sources."""
LOCK: Final = ".lock"
OWNER: Final = ".owner.json"
LEASE: Final = ".lease"
HIDDEN: Final = frozenset({LOCK, OWNER, LEASE, MERGE_MARK, SUBMIT})
"""The files of runs whose names begin with a dot: systems and programs put such files beside them."""
INDEX_SUFFIX: Final = "_index.jsonl"
TRACES_SUFFIX: Final = ".parquet"

_NAME = re.compile(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*")
_NAME_BYTES_MAX = 200
_EVENT_TASK = re.compile(rb'"task": ?"([^"\\]*)"')
_SEGMENT = re.compile(r"([0-9]{6,12})\.jsonl")
_TRANSCRIPT = re.compile(r"(?!\.)(.+)\.json")
_TRACES = re.compile(r"(?!\.)(.+)\.parquet")
_ATTEMPT = re.compile(r"(?!\.)(.+)\.[0-9]+\.(?:json|parquet)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's claim on a shard of a run. Each deal has `samples` tasks, and all of them are in one shard."""

    shard: Shard
    samples: int
    events: Path
    """The event log of the worker: that of the run belongs to the process that has the whole run."""
    heads: dict[int, Shard | None] = field(default_factory=dict, compare=False, repr=False)
    """The shard of each session that was looked at, None for one of the whole run. All leases of a worker share it."""

    def holds(self, task_id: str) -> bool:
        index = index_of(task_id)
        return index is not None and self.shard.holds(index // self.samples)

    def may_hold(self, shard: Shard | None) -> bool:
        """Whether a session of `shard` may have records of this one: of the whole run, and where it was cut anew."""
        return shard is None or shard.of != self.shard.of or shard == self.shard


class _Place:
    """A path of a layout: `name` in its directory, or, of a combination, `in_grid` with its slug."""

    def __init__(self, name: str, in_grid: str = "") -> None:
        self._name = name
        self._in_grid = in_grid

    def __get__(self, layout: Layout, _kind: type[Layout]) -> Path:
        if layout.grid is not None and self._in_grid:
            return layout.grid / self._in_grid.format(layout.directory.name)
        return layout.root / self._name


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The paths of one run directory. Raises RunDirectoryError for a name that could lead out of it.

    A combination of a grid is a run in the directory of the `grid`: `directory` names it there and is none itself.
    Under a `lease` only what is of its shard is read and written.
    """

    directory: Path
    experiment_name: str
    grid: Path | None = None
    lease: Lease | None = None
    config = _Place(CONFIG, EXPERIMENTS + "/{}.yaml")
    manifest = _Place(MANIFEST)
    summary = _Place(SUMMARY, SUMMARIES + "/{}.json")
    journal = _Place("journal", "journal/{}")
    transcripts = _Place("transcripts")
    traces = _Place("traces")
    attempts = _Place("attempts")
    damaged = _Place("damaged")
    leases = _Place(LEASES, LEASE_DIRECTORIES + "/{}.json")
    lease_directories = _Place(LEASE_DIRECTORIES, LEASE_DIRECTORIES + "/{}")

    def __post_init__(self) -> None:
        check_name(self.experiment_name, "the experiment name")

    @property
    def index(self) -> Path:
        return self.root / f"{self.experiment_name}{INDEX_SUFFIX}"

    @property
    def events(self) -> Path:
        return self.root / EVENTS if self.lease is None else self.lease.events

    @staticmethod
    def at(disk: Disk, directory: Path) -> Layout:
        """The layout of the run that is there, be it a combination of a grid, without the name of its experiment."""
        is_of_itself = disk.exists(directory / CONFIG) or disk.exists(directory / GRID)
        # An experiment file may be called like the record of a grid.
        has_grid = not is_of_itself and next(disk.chunks(directory.parent / GRID), b"").startswith(GRID_HEAD)
        return Layout(directory=directory, experiment_name="unknown", grid=directory.parent if has_grid else None)

    @property
    def root(self) -> Path:
        return self.grid or self.directory

    @property
    def is_whole(self) -> bool:
        """Whether it is all that is in the directory. Index and manifest are of the whole."""
        return self.grid is None and self.lease is None

    def holds(self, task_id: str) -> bool:
        """Whether a task is of this run, or this shard of it."""
        is_named = self.grid is None or task_id.rpartition("-")[0] == self.experiment_name
        return is_named and (self.lease is None or self.lease.holds(task_id))

    def has_event(self, line: bytes) -> bool:
        """Whether a line of an event log is about this run: that of a grid has those of all its combinations."""
        if self.grid is None:
            return True
        found = _EVENT_TASK.search(line)
        return found is not None and self.holds(found[1].decode("utf-8", "replace"))

    @property
    def place(self) -> Path:
        """Where the process at work has its lock, its note and its signs of life."""
        return self.root if self.lease is None else self.lease_directory(self.lease.shard)

    def lease_directory(self, shard: Shard) -> Path:
        """Where the worker that has claimed a shard has its lock."""
        return self.lease_directories / f"{shard.number:0{len(str(shard.of))}}-of-{shard.of}"

    @property
    def swept(self) -> tuple[Path, ...]:
        """The directories in which a killed process may leave temporary files, and no other process is at work."""
        if self.lease is not None:
            return (self.place,)
        if not self.is_whole:
            return (self.journal,)
        of_grid = (self.root / name for name in (EXPERIMENTS, SUMMARIES, LEASE_DIRECTORIES))
        return (self.journal, self.root, self.transcripts, self.traces, self.attempts, *of_grid)

    def attempt(self, task_id: str, number: int) -> Path:
        """The transcript of the `number`-th attempt at a task, from 1."""
        return self.root / attempt_path(check_name(task_id, "the task id"), number)

    def transcript(self, task_id: str) -> Path:
        return self.root / transcript_path(check_name(task_id, "the task id"))

    def segment(self, session: int) -> Path:
        return self.journal / f"{session:06d}.jsonl"


def visible(disk: Disk, directory: Path) -> list[str]:
    """The names in a directory, but for those with a dot: systems and processes at work put such files there."""
    return [name for name in disk.names(directory) if not name.startswith(".")]


def refuse_in_grid(disk: Disk, directory: Path) -> None:
    """Raises RunDirectoryError where names are those of the combinations of a grid: nothing else begins there."""
    if (grid := Layout.at(disk, directory).grid) is not None:
        raise RunDirectoryError(
            f"{directory} names a combination of the grid {grid}, which no other run may hide; choose a directory "
            "outside of it"
        )


def refuse_strays(directory: Path, strays: Iterable[str], head: str, what: str) -> None:
    """Raises RunDirectoryError where files are in a directory that lacks the one that would make it `what`."""
    for name in strays:
        raise RunDirectoryError(
            f"{directory} holds {name!r} and no {head}, so it is not {what}; choose an empty or a new directory with "
            "--out"
        )


def transcript_path(task_id: str) -> str:
    return f"transcripts/{task_id}.json"


def attempt_path(task_id: str, number: int) -> str:
    """The transcript of the `number`-th attempt at a retried task, relative to the run directory."""
    return f"attempts/{task_id}.{number}.json"


def traces_beside(transcript: Path) -> Path:
    """The token traces of a transcript, by its path: those of a retried attempt lie beside it."""
    name = transcript.name.removesuffix(".json") + TRACES_SUFFIX
    directory = transcript.parent
    return (directory.parent / "traces" if directory.name == "transcripts" else directory) / name


def traced_task_of(traces_name: str) -> str | None:
    """The task of a file in `traces/`; None for any other file name."""
    return _first_group(_TRACES, traces_name)


def attempted_task_of(attempt_name: str) -> str | None:
    """The task of a file in `attempts/`; None for any other file name."""
    return _first_group(_ATTEMPT, attempt_name)


def task_id_of(transcript_name: str) -> str | None:
    """The task of a file in `transcripts/`; None for any other file name."""
    return _first_group(_TRANSCRIPT, transcript_name)


def session_of(segment_name: str) -> int | None:
    """The session of a journal segment; None for any other file name."""
    number = _first_group(_SEGMENT, segment_name)
    return None if number is None else int(number)


def _first_group(pattern: re.Pattern[str], name: str) -> str | None:
    match = pattern.fullmatch(name)
    return None if match is None else match[1]


def check_name(name: str, what: str) -> str:
    """Return `name`. Raises RunDirectoryError when it is not safe as a part of a file name."""
    if not _NAME.fullmatch(name) or len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX:
        raise RunDirectoryError(
            f"{what} {name!r:.100} cannot be part of a file name: it may not start with a dot, hold a slash or a "
            f"control character, or be longer than {_NAME_BYTES_MAX} bytes"
        )
    return name


def repair_advice(directory: Path) -> str:
    return f"`mac-run verify {directory} --repair` writes it again from the journal"
