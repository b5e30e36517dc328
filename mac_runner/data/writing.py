"""Several tables written at once, from one reading of each conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mac_runner.data.arrow import Batcher, size_chars
from mac_runner.data.files import encoder
from mac_runner.data.schema import metadata_of
from mac_runner.data.sources import Source
from mac_runner.data.tables import Ended, FlatTable
from mac_runner.flat import FlatColumn, Row
from mac_runner.store import Disk


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
        self._file = disk.stage(target.path)

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

    def commit(self) -> None:
        """Give the file its name."""
        self._file.commit()

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.discard()

    def _append(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self._file.append(data)


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
            file.commit()
    finally:
        for file in files:
            file.discard()
