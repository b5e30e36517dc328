"""Tables written to files, several at once, from one reading of each conversation.

Where they are in parts, a part holds the conversations of 2,000 numbers of the plan, in task order, whatever order they
ended in. So a part that is complete does not change, and what was exported while a run went on equals what is exported
at its end. A digest of `_parts.json` records what a part is made of; a part with another digest is written again,
whatever the reason: more conversations ended, one was retried, or the tables have other columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from mac_runner.data.files import Batcher, encoder, size_chars
from mac_runner.data.sources import Source, Sources
from mac_runner.data.tables import Ended, FlatTable, metadata_of, schema_json
from mac_runner.errors import ConfigError
from mac_runner.flat import FlatColumn, Row
from mac_runner.store import Disk, encode_for_reading
from mac_runner.store.rows import DoneRow
from mac_runner.store.run_state import digest_of
from mac_runner.structs import as_json, convert

# Parts.

PART_CONVERSATIONS: Final = 2_000
"""How many numbers of the plan a part has."""
STATE: Final = "_parts.json"
SCHEMA: Final = "_schema.json"


class PartName(NamedTuple):
    """A part: the run of its conversations, and its number."""

    run: int
    number: int


@dataclass(slots=True)
class Part:
    """The conversations of a part: how many, and the sum of the digests of what they are."""

    conversations: int = 0
    digest: int = 0

    @property
    def is_full(self) -> bool:
        """Whether no more conversations can come to it."""
        return self.conversations >= PART_CONVERSATIONS


def planned_parts(sources: Sources) -> dict[PartName, Part]:
    """Every part that there is to write, by name, in order."""
    parts: dict[PartName, Part] = {}
    for place, source in enumerate(sources.runs):
        state, span = source.contents.state, _span(source)
        for task_id, ending in state.endings.items():
            part = parts.setdefault(PartName(place, ending.task_index // span), Part())
            part.conversations += 1
            what = json.dumps([task_id, ending.sha256.hex(), len(state.attempts.get(task_id, ()))])
            part.digest = (part.digest + digest_of(what.encode())) % 2**128
    return dict(sorted(parts.items()))


def _span(source: Source) -> int:
    """From how many numbers of the plan a part has its conversations; a shard has every n-th number."""
    shard = source.contents.shard
    return PART_CONVERSATIONS * (1 if shard is None else shard.of)


def rows_by_part(sources: Sources, wanted: Iterable[PartName]) -> Iterator[tuple[PartName, list[DoneRow]]]:
    """The index rows of the parts that are wanted, a part at a time."""
    left = set(wanted)
    for place, source in enumerate(sources.runs):
        for number, rows in _by_number(source) if any(name.run == place for name in left) else ():
            if (name := PartName(place, number)) in left:
                yield name, list(rows)


def _by_number(source: Source) -> Iterator[tuple[int, Iterator[DoneRow]]]:
    endings, span = source.contents.state.endings, _span(source)
    return groupby(source.contents.json_rows_in_task_order(), lambda row: endings[row.task_id].task_index // span)


def file_name(sources: Sources, part: PartName, kind: str) -> str:
    """The name of the file of a part, which has the run where there are several."""
    run = sources.runs[part.run].name.replace("/", "-")
    return f"part-{f'{run}-' if run else ''}{part.number:06d}.{kind}"


def basis(sources: Sources, source: Source, table: str) -> str:
    """A digest of all that a table depends on besides the conversations of a run."""
    training = source.tables[table].training
    known = [
        schema_json({table: sources.tables[table]}, sources.prefix),
        {name: str(cell) for name, cell in source.prefix.items()},
        source.contents.resolved,
        *([] if training is None else [training.basis()]),
    ]
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


class WrittenFile(msgspec.Struct, frozen=True):
    """What a file is made of, and what it came to; nothing where it is not written yet."""

    made_of: str = ""
    conversations: int = 0
    rows: int = 0
    size_bytes: int = 0


class State(msgspec.Struct, kw_only=True):
    """What `_parts.json` holds: the files of an export, by name."""

    version: Literal[1] = 1
    runs: list[str]
    files: dict[str, WrittenFile] = {}

    def encode(self) -> bytes:
        """The contents of the file."""
        in_order = msgspec.structs.replace(self, files=dict(sorted(self.files.items())))
        return encode_for_reading(as_json(in_order))


def read_state(disk: Disk, to: Path, runs: Sequence[str]) -> State:
    """What was exported to a directory before. Raises ConfigError for an export of other runs."""
    path = to / STATE
    if not disk.exists(path):
        return State(runs=[*runs])
    try:
        found = convert(json.loads(disk.read(path)), State)
    except (ValueError, RecursionError) as fault:
        raise ConfigError(
            f"--to: {path} cannot be read ({fault}); name another directory, or remove this one"
        ) from None
    if found.runs != [*runs]:
        raise ConfigError(f"--to: {to} holds an export of {found.runs}, and this is {[*runs]}; name another directory")
    return found


# Files.


class Target(NamedTuple):
    """A file to be written: the table, all its columns, the format."""

    table: str
    columns: Mapping[str, FlatColumn]
    format: str
    path: Path


class TableFile:
    """A file under way."""

    def __init__(self, disk: Disk, target: Target, metadata: Mapping[str, str]) -> None:
        self.target = target
        self.rows = 0
        self.size_bytes = 0
        self._batcher = Batcher[Row](size_chars)
        self._encoder = encoder(target.format, target.columns, metadata)
        self.staged = disk.stage(target.path)

    def add(self, row: Row) -> None:
        """Add a row; what has gathered is written now and then."""
        self.rows += 1
        if (batch := self._batcher.add(row)) is not None:
            self._append(self._encoder.rows(batch))

    def finish(self) -> None:
        """Write the rest."""
        if batch := self._batcher.rest():
            self._append(self._encoder.rows(batch))
        self._append(self._encoder.end())

    def _append(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self.staged.append(data)


class Writer:
    """Writes the rows of conversations to files. Each table is made once, whatever the formats."""

    def __init__(self, files: Sequence[TableFile]) -> None:
        self.files = files
        self._by_table: dict[str, list[TableFile]] = {}
        for file in files:
            self._by_table.setdefault(file.target.table, []).append(file)

    def add(self, source: Source, ended: Ended) -> None:
        """Add a conversation. Raises RunDirectoryError for one that is damaged."""
        for name, files in self._by_table.items():
            table = source.tables.get(name)
            if table is None:
                continue
            for row in table.rows(ended, frozenset(table.columns)):
                for file in files:
                    file.add({**source.prefix, **row} if source.prefix else row)


@contextmanager
def writing(disk: Disk, targets: Iterable[Target], tables: Mapping[str, FlatTable]) -> Iterator[Writer]:
    """Files that get their names at the end of the block. If it raises, nothing is left of those that have none."""
    files: list[TableFile] = []
    try:
        for target in targets:
            disk.make_directory(target.path.parent)
            files.append(TableFile(disk, target, metadata_of(tables[target.table], target.columns)))
        yield Writer(files)
        # All are whole before one has its name: a full disk leaves none that the next export would find in its way.
        for file in files:
            file.finish()
        for file in files:
            file.staged.commit()
    finally:
        for file in files:
            file.staged.discard()
