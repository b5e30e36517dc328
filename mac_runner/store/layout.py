"""Where everything stands in a run directory.

::

    runs/NAME/
      experiment.yaml        the resolved config: what makes this run the run it is
      shard.json             which part of the experiment this is, where it is not all of it
      task_manifest.json     every planned task and its status, written whole now and then
      NAME_index.jsonl       one row per ended conversation
      summary.json           the results in numbers
      events.jsonl           what happened when, for machines
      journal/000001.jsonl   one segment per session: the truth between two manifests
      transcripts/ID.json    one file per ended conversation
      attempts/ID.N.json     the N-th attempt at a conversation, where it failed and was tried again
      damaged/               transcripts that could not be read, set aside
      .lock  .owner.json     which process is at work
      .lease                 its signs of life
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mac_runner.errors import RunDirectoryError
from mac_runner.store.transcripts import attempt_path, transcript_path

INDEX_SUFFIX = "_index.jsonl"

_NAME = re.compile(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*")
_NAME_BYTES_MAX = 200
_SEGMENT = re.compile(r"([0-9]{6,12})\.jsonl")
_TRANSCRIPT = re.compile(r"(.+)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The paths of one run directory. Raises RunDirectoryError for a name that could lead out of it.

    With `sessions` its journal has the segments of that many only, the first ones: the run as it was then.
    """

    directory: Path
    experiment_name: str
    sessions: int | None = None

    def __post_init__(self) -> None:
        check_name(self.experiment_name, "the experiment name")

    @property
    def config(self) -> Path:
        """The resolved config."""
        return config_path(self.directory)

    @property
    def manifest(self) -> Path:
        """The planned tasks."""
        return manifest_path(self.directory)

    @property
    def index(self) -> Path:
        """The rows of ended conversations."""
        return self.directory / f"{self.experiment_name}{INDEX_SUFFIX}"

    @property
    def summary(self) -> Path:
        """The results in numbers."""
        return summary_path(self.directory)

    @property
    def events(self) -> Path:
        """The event log."""
        return self.directory / "events.jsonl"

    @property
    def journal(self) -> Path:
        """The directory of the journal's segments."""
        return self.directory / "journal"

    @property
    def transcripts(self) -> Path:
        """The directory of the transcripts."""
        return self.directory / "transcripts"

    @property
    def damaged(self) -> Path:
        """Where unreadable transcripts are set aside."""
        return self.directory / "damaged"

    @property
    def attempts(self) -> Path:
        """The directory of the transcripts of attempts that failed and were tried again."""
        return self.directory / "attempts"

    def attempt(self, task_id: str, number: int) -> Path:
        """The transcript of the `number`-th attempt at a task, from 1."""
        return self.directory / attempt_path(check_name(task_id, "the task id"), number)

    def transcript(self, task_id: str) -> Path:
        """The transcript of one task."""
        return self.directory / transcript_path(check_name(task_id, "the task id"))

    def segment(self, session: int) -> Path:
        """The journal segment of one session."""
        return self.journal / f"{session:06d}.jsonl"


def config_path(directory: Path) -> Path:
    """The resolved config: the file that makes a directory a run directory."""
    return directory / "experiment.yaml"


def shard_path(directory: Path) -> Path:
    """Which part of the experiment is run here; missing where it is all of it."""
    return directory / "shard.json"


def grid_path(directory: Path) -> Path:
    """What makes a directory that of a grid."""
    return directory / "grid.yaml"


def manifest_path(directory: Path) -> Path:
    """The planned tasks."""
    return directory / "task_manifest.json"


def merge_path(directory: Path) -> Path:
    """Says that a merge into the directory has begun and is not over, and of what."""
    return directory / ".merging.json"


def summary_path(directory: Path) -> Path:
    """The results in numbers."""
    return directory / "summary.json"


def lock_path(directory: Path) -> Path:
    """The file that is locked while a process is at work; it is never removed."""
    return directory / ".lock"


def owner_path(directory: Path) -> Path:
    """Who holds the lock, for the message to whoever comes second."""
    return directory / ".owner.json"


def lease_path(directory: Path) -> Path:
    """The signs of life of whoever holds the lock."""
    return directory / ".lease"


def session_of(segment_name: str) -> int | None:
    """The session a file of the journal belongs to; None for any other file."""
    match = _SEGMENT.fullmatch(segment_name)
    return int(match[1]) if match else None


def task_id_of(transcript_name: str) -> str | None:
    """The task a file of `transcripts/` belongs to; None for any other file."""
    match = _TRANSCRIPT.fullmatch(transcript_name)
    return match[1] if match and not transcript_name.startswith(".") else None


def check_name(name: str, what: str) -> str:
    """`name`, which is safe as a part of a file name. Raises RunDirectoryError when it is not."""
    if not _NAME.fullmatch(name) or len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX:
        raise RunDirectoryError(
            f"{what} {name!r:.100} cannot be part of a file name: it may not start with a dot, hold a slash or a "
            f"control character, or be longer than {_NAME_BYTES_MAX} bytes"
        )
    return name
