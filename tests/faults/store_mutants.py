"""Bugs to be planted in the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from mac_runner.errors import StoreError
from mac_runner.store import Disk, journal, records
from mac_runner.store.disk import OpenFile
from mac_runner.store.records import Line
from mac_runner.store.run_state import RunState
from mac_runner.store.session import Item, Session, TranscriptItem
from mac_runner.store.transcripts import index_row
from mac_runner.types import JsonObject
from tests.faults import oracles
from tests.faults.planting import Mutant


def skip_fsync(patch: pytest.MonkeyPatch) -> None:
    """What is appended is never synced."""
    patch.setattr(Disk, "sync", lambda _disk, _file: None)


def skip_fsync_of_new_files(patch: pytest.MonkeyPatch) -> None:
    """A file gets its name before its bytes are durable."""

    def write(disk: Disk, path: Path, pieces: Iterable[bytes]) -> Path:
        temporary = path.with_name(f".tmp-{disk._system.token()}")
        descriptor = disk._system.create(temporary)
        for piece in pieces:
            disk._write(descriptor, piece)
        disk._system.close(descriptor)
        return temporary

    patch.setattr(Disk, "_write_temporary", write)


def skip_directory_fsync(patch: pytest.MonkeyPatch) -> None:
    """The names of published transcripts are never synced."""
    patch.setattr(Disk, "sync_directory", lambda _disk, _path: None)


def note_before_transcript(patch: pytest.MonkeyPatch) -> None:
    """The `done` frame is written before the transcript that it tells of."""
    publish = Session._publish

    def note_first(session: Session, items: Sequence[TranscriptItem]) -> None:
        session._log_frames([journal.done_frame(index_row(item.transcript)) for item in items])
        publish(session, items)

    patch.setattr(Session, "_publish", note_first)


def acknowledged_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """A conversation counts as written when it is handed over."""
    commit = Session.commit

    def count_first(session: Session, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, TranscriptItem):
                session._manifest.settle(item.task_id, str(item.transcript["status"]))
        commit(session, items)

    patch.setattr(Session, "commit", count_first)


def ignored_short_write(patch: pytest.MonkeyPatch) -> None:
    """A write that took half of the bytes is taken for one that took all."""
    patch.setattr(
        Disk, "_write", lambda disk, descriptor, data: disk._system.write(descriptor, memoryview(data)) and None
    )


def torn_tail_taken_for_a_line(patch: pytest.MonkeyPatch) -> None:
    """What a kill left half written is read like the rest."""
    lines = records.lines

    def all_ended(chunks: Iterable[bytes]) -> Iterator[Line]:
        return (line._replace(is_ended=True) for line in lines(chunks))

    patch.setattr(records, "lines", all_ended)


def accepted_checksum(patch: pytest.MonkeyPatch) -> None:
    """A frame is believed whatever its checksum says."""

    def decode(data: bytes) -> JsonObject | None:
        try:
            record = json.loads(data[9:])
        except (ValueError, RecursionError):
            return None
        return record if isinstance(record, dict) else None

    patch.setattr(records, "decode_frame", decode)


def second_publication_wins(patch: pytest.MonkeyPatch) -> None:
    """A transcript takes the place of one that was published before."""

    def replace(disk: Disk, temporary: Path, path: Path) -> bool:
        disk._system.replace(temporary, path)
        return True

    patch.setattr(Disk, "_link", replace)


def failed_sync_tried_again(patch: pytest.MonkeyPatch) -> None:
    """A sync that failed is believed when it succeeds the next time."""
    sync = Disk.sync

    def insist(disk: Disk, file: OpenFile) -> None:
        try:
            sync(disk, file)
        except StoreError:
            sync(disk, file)

    patch.setattr(Disk, "sync", insist)


def forgotten_deaths(patch: pytest.MonkeyPatch) -> None:
    """Each session counts the deaths over a turn from the beginning."""
    apply = RunState.apply

    def forget(state: RunState, record: JsonObject) -> None:
        if record["kind"] != "death":
            apply(state, record)

    patch.setattr(RunState, "apply", forget)


STORE_MUTANTS = (
    Mutant(name="skip fsync", plant=skip_fsync, oracle=oracles.crashes),
    Mutant(name="skip fsync of new files", plant=skip_fsync_of_new_files, oracle=oracles.crashes),
    Mutant(name="skip directory fsync", plant=skip_directory_fsync, oracle=oracles.crashes),
    Mutant(name="note before transcript", plant=note_before_transcript, oracle=oracles.crashes),
    Mutant(name="acknowledged before fsync", plant=acknowledged_before_fsync, oracle=oracles.crashes),
    Mutant(name="ignored short write", plant=ignored_short_write, oracle=oracles.failing_disks),
    Mutant(name="torn tail taken for a line", plant=torn_tail_taken_for_a_line, oracle=oracles.damaged_frames),
    Mutant(name="accepted checksum", plant=accepted_checksum, oracle=oracles.damaged_frames),
    Mutant(name="second publication wins", plant=second_publication_wins, oracle=oracles.sessions),
    Mutant(name="failed sync tried again", plant=failed_sync_tried_again, oracle=oracles.failing_disks),
    Mutant(name="forgotten deaths", plant=forgotten_deaths, oracle=oracles.sessions),
)
