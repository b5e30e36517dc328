"""The directory of a grid: what was asked for, and what belongs to all of its combinations together.

::

    runs/NAME/
      grid.yaml              what was asked for, and every combination that ever was, one a line
      grid.csv               one row per combination, its values and its results; grid.parquet beside it, if asked for
      summary.json           the same as JSON, and what the engines did
      events.jsonl           when engines ran and combinations were opened and closed
      journal/               one segment per session: what it used up
      SLUG/                  the run directory of one combination, complete in itself

A combination that is no longer asked for stays where it is, and is marked as such. Which session first asked for one is
kept, so that a grid that grew tells which part came when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from mac_runner.errors import RunDirectoryError
from mac_runner.store.disk import Disk
from mac_runner.store.frames import encode_json
from mac_runner.store.layout import check_name, config_path, grid_path
from mac_runner.store.plain import read_plain
from mac_runner.store.records import entry, objects
from mac_runner.types import JsonObject, JsonValue

GRID_FORMAT: Final = 1

_SESSIONS_MAX: Final = 10**12
"""As many as the names of segments can count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridEntry:
    """One combination: how it is recognised, what it is called, since which session it is there."""

    slug: str
    identity: str
    values: Mapping[str, JsonValue]
    session: int
    is_asked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRecord:
    """What `grid.yaml` says. `asked` is the section `_grid`, `entries` are in the order in which they came."""

    name: str
    profile: str
    asked: JsonObject
    entries: tuple[GridEntry, ...] = ()

    def slug_of(self, identity: str) -> str | None:
        """What the combination of this identity is called, None when there is none."""
        return next((known.slug for known in self.entries if known.identity == identity), None)

    def extended(self, new: GridRecord, session: int) -> GridRecord:
        """This one brought up to what is asked for now: what is new joins in `session`, what is not asked for stays."""
        asked = {wanted.identity: wanted for wanted in new.entries}
        kept = [
            replace(
                known,
                is_asked=known.identity in asked,
                values=asked[known.identity].values if known.identity in asked else known.values,
            )
            for known in self.entries
        ]
        here = {known.identity for known in self.entries}
        joined = [replace(wanted, session=session) for wanted in new.entries if wanted.identity not in here]
        return replace(new, entries=(*kept, *joined))


def is_grid(directory: Path, *, disk: Disk | None = None) -> bool:
    """Whether a directory is that of a grid."""
    return (disk or Disk()).exists(grid_path(directory))


def read_grid(directory: Path, *, disk: Disk | None = None) -> GridRecord | None:
    """The grid of a directory; None when one can begin there.

    Raises RunDirectoryError when the directory is used for something else or cannot be read.
    """
    disk = disk or Disk()
    path = grid_path(directory)
    if disk.exists(path):
        return _decoded(read_plain(disk, path), path)
    if disk.exists(config_path(directory)):
        raise RunDirectoryError(
            f"{directory} is the run directory of one experiment, and no place for a grid; choose another with --out"
        )
    if strays := [name for name in disk.names(directory) if not name.startswith(".")]:
        raise RunDirectoryError(
            f"{directory} holds {strays[0]!r} and no {path.name}, so it is not the directory of a grid; choose an "
            "empty or a new one with --out"
        )
    return None


def encode_grid(record: GridRecord) -> Iterator[bytes]:
    """The file, in pieces: the section as a person reads it, then one line for each combination."""
    head = {"format": GRID_FORMAT, "name": record.name, "profile": record.profile, "asked": record.asked}
    yield b"# What this grid was started with. Do not edit: run a changed experiment file instead.\n"
    text: str = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120)
    yield text.encode("utf-8")
    yield b"combinations:\n"
    for known in record.entries:
        line: JsonObject = {
            "slug": known.slug,
            "identity": known.identity,
            "session": known.session,
            "asked": known.is_asked,
            "values": dict(known.values),
        }
        yield b"- " + encode_json(line) + b"\n"


def grid_entries(combinations: Iterable[tuple[str, str, Mapping[str, JsonValue]]]) -> tuple[GridEntry, ...]:
    """Combinations as (slug, identity, values), before any session knows them."""
    return tuple(
        GridEntry(slug=check_name(slug, "the combination"), identity=identity, values=values, session=0)
        for slug, identity, values in combinations
    )


def _decoded(record: JsonObject, path: Path) -> GridRecord:
    try:
        if record.get("format") != GRID_FORMAT:
            raise ValueError(f"it should be a mapping with format {GRID_FORMAT}")
        return GridRecord(
            name=entry(record, "name", str),
            profile=entry(record, "profile", str),
            asked=entry(record, "asked", dict),
            entries=tuple(_entry(line) for line in objects(record, "combinations")),
        )
    except (ValueError, RunDirectoryError) as fault:
        raise RunDirectoryError(f"{path} cannot be read: {fault}; put back the file that the run wrote") from fault


def _entry(line: JsonObject) -> GridEntry:
    if not 0 <= (session := entry(line, "session", int)) < _SESSIONS_MAX:
        raise ValueError(f"there is no session {session}")
    return GridEntry(
        slug=check_name(entry(line, "slug", str), "the combination"),
        identity=entry(line, "identity", str),
        values=entry(line, "values", dict),
        session=session,
        is_asked=entry(line, "asked", bool),
    )
