"""A run is shown while its journal is still read, and all of it arrives in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mac_runner.store import read_run
from mac_runner.store.testing import done_frame, retry_frame, session_frame
from mac_runner.types import JsonObject
from mac_runner.viewer.testing import NotThereError, PublishRequest, RunSource, publish
from tests.kit import StridingClock
from tests.viewer.served import served
from tests.viewer.test_live import Page, ended

COPIES = 600
STEP_S = 1.0


def sliced(directory: Path) -> RunSource:
    """A source that reads one block of the journal at a time: whenever it looks at its clock, a step has passed."""
    return RunSource(directory, clock=StridingClock(STEP_S), slice_s=STEP_S)


@pytest.fixture
def rows(own_run: Path) -> list[JsonObject]:
    """The index rows of a long run in `own_run`: the three conversations, and copies of them in several blocks."""
    known = list(read_run(own_run).rows())
    pad = "x" * 5000
    copies = [{**known[n % 3], "task_id": f"copy-{n}", "index": 3 + n, "pad": pad} for n in range(COPIES)]
    made: list[JsonObject] = [*known, *copies]
    segment_of(own_run).write_bytes(
        session_frame(1, started_at="2026-01-01T00:00:00.000Z") + b"".join(map(done_frame, made))
    )
    return made


def segment_of(directory: Path) -> Path:
    (segment,) = (directory / "journal").iterdir()
    return segment


def append(directory: Path, *frames: bytes) -> None:
    with segment_of(directory).open("ab") as file:
        file.write(b"".join(frames))


def ids(source: RunSource, since: int = 0) -> Iterator[str]:
    column = source.index("", since, None).words["id"]
    return (column.words[code] for code in column.codes)


@pytest.mark.ci
def test_first_rows_are_answered_before_the_journal_is_read(own_run: Path, rows: list[JsonObject]) -> None:
    """The head says so; a conversation is there by its number; more requests do not read on, `read_on` does."""
    source = sliced(own_run)

    first = source.index("", 0, None).rows
    head = source.run("")
    assert 0 < first < len(rows) / 2
    assert head.is_reading
    assert head.state == "reading"
    assert head.engines
    assert source.index("", 0, None).rows == first
    assert source.conversation("", "1", "").status == "finished"
    with pytest.raises(NotThereError, match="no conversation"):
        source.conversation("", f"copy-{COPIES - 1}", "")

    while source.read_on():
        pass
    assert list(ids(source)) == [row["task_id"] for row in rows] == ended(own_run)
    assert source.index("", 0, None) == RunSource(own_run).index("", 0, None)
    assert source.run("") == RunSource(own_run).run("")
    assert not source.run("").is_reading


def test_summary_says_how_many_ended_while_the_journal_is_read(own_run: Path, rows: list[JsonObject]) -> None:
    (own_run / "summary.json").touch()

    head = sliced(own_run).run("")

    assert head.is_reading
    assert (head.done, head.state) == (3, "stopped")
    assert head.facts


def test_every_row_comes_once_when_the_run_grows_and_is_retried_meanwhile(
    own_run: Path, rows: list[JsonObject]
) -> None:
    """A page that takes what is new after each slice has in the end what a reader of all has, in that order."""
    source = sliced(own_run)
    failed = rows[5]
    seen: list[str] = []
    version, step, versions = source.index("", 0, None).version, 0, set[int]()
    changes = {2: retry_frame(failed), 3: done_frame({**rows[-1], "task_id": "late"}), 4: done_frame(failed)}
    while True:
        is_more = source.read_on()
        part = source.index("", len(seen), version)
        if part.version != version:
            seen, version = [], part.version
        assert part.since == len(seen)
        versions.add(version)
        column = part.words["id"]
        seen += [column.words[code] for code in column.codes]
        step += 1
        append(own_run, changes.pop(step, b""))
        if not is_more and not changes:
            break

    assert seen == ended(own_run)
    assert len(seen) == len(set(seen)) == len(rows) + 1
    assert versions == {0, 1}


def test_streams_send_the_rest_and_pages_of_all_wait_for_it(own_run: Path, rows: list[JsonObject]) -> None:
    source, page = sliced(own_run), Page()
    with served(source) as viewer, viewer.events("/api/stream?since=0&version=0") as events:
        forks = viewer.get("/api/flow")
        head: Any = viewer.json("/api/run")
        while len(page.ids) < len(rows):
            page.take(next(events))

    assert forks.status == 200
    assert "is_reading" not in head
    assert page.ids == ended(own_run)


def test_journal_that_is_replaced_while_it_is_read_is_shown_anew(own_run: Path, rows: list[JsonObject]) -> None:
    source = sliced(own_run)
    source.index("", 0, None)
    segment = segment_of(own_run)
    data = segment.read_bytes()
    segment.unlink()
    segment.write_bytes(data.split(b"\n", 1)[0] + b"\n" + b"".join(map(done_frame, rows[1:4])))

    while source.read_on():
        pass

    assert list(ids(source)) == [row["task_id"] for row in rows[1:4]]
    assert source.index("", 0, None).version > 0


@pytest.mark.ci
def test_publication_has_all_of_a_long_run(own_run: Path, rows: list[JsonObject], tmp_path: Path) -> None:
    found = publish(PublishRequest(directory=own_run, out=tmp_path / "out", only=["number<3"]))

    assert (found.conversations, found.ended) == (3, len(rows))
