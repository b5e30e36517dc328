"""Open pages follow a run that is played, killed, resumed, retried, or still being read."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mac_runner.errors import RunDirectoryError
from mac_runner.planning.testing import SimulatedClock
from mac_runner.store import Disk, read_run
from mac_runner.store.testing import done_frame, retry_frame, session_frame
from mac_runner.types import JsonObject
from mac_runner.view_model import EnginesPage, IndexColumns, RunPage
from mac_runner.viewer.testing import Cursor, Live, NotThereError, PublishRequest, RunSource, publish
from tests.cli.lab import Lab, experiment
from tests.kit import StridingClock
from tests.kit import played as run_of
from tests.patience import LIMIT_S, wait_for
from tests.sim.shuffled import simulate
from tests.viewer.served import Served, engine, events_in, served

T = TypeVar("T")


class Page:
    """A list as a page keeps it: by the events of a stream alone."""

    def __init__(self, *ids: str) -> None:
        self.ids = [*ids]
        self.version = 0
        self.touched: set[int] = set()
        self.state = ""
        self.troubles: list[str] = []
        self.last_id = ""

    def take(self, event: tuple[str, str, Any]) -> None:
        self.last_id = event[0] or self.last_id
        match event:
            case (_, "rows", columns):
                if columns["version"] != self.version:
                    self.ids, self.version = [], columns["version"]
                assert columns["since"] == len(self.ids)
                words = columns["words"]["id"]
                self.ids += [words["words"][code] for code in words["codes"]]
            case (_, "touched", numbers):
                self.touched |= set(numbers)
            case (_, "standing", page):
                self.state = f"{page['state']} {page['done']}"
            case (_, "trouble", trouble):
                self.troubles.append(trouble["error"])

    def until(self, events: Iterator[tuple[str, str, Any]], state: str) -> None:
        """Take events until the head of the run says so, and the list has all that ended: either may come first."""
        while self.state != state or len(self.ids) != int(state.split()[-1]):
            self.take(next(events))


def ended(directory: Path) -> list[str]:
    """The conversations of a run, in the order in which they ended."""
    return [str(row["task_id"]) for row in read_run(directory).rows()]


@pytest.mark.ci
def test_page_follows_a_run_that_is_killed_and_resumed(lab: Lab) -> None:
    directory, page = lab.run_dir("live").path, Page()
    with engine() as held:
        file = lab.write(held.experiment("live", conversations=4))
        first = lab.start(file)
        wait_for(lambda: (directory / "task_manifest.json").exists() and (directory / "journal").exists(), "a run")
        with served(directory) as viewer, viewer.events("/api/stream?since=0&version=0") as events:
            while not (page.ids and page.touched - {0}):
                page.take(next(events))
            open_number = min(page.touched - {0})
            assert page.ids == ["live-000000"]
            first.send_signal(signal.SIGKILL)
            first.wait(LIMIT_S)
            half_done = viewer.json(f"/api/c/{open_number}")
            held.goes_on = True
            lab.done(file)
            page.until(events, "complete 4")
            whole = viewer.json(f"/api/c/{open_number}")

    assert page.ids == ended(directory)
    assert open_number in page.touched <= set(range(4))
    assert half_done["status"] == "open"
    assert whole["status"] == "finished"
    turns = [turn["key"] for turn in whole["turns"]]
    assert {turn["key"] for turn in half_done["turns"]} < set(turns)
    shared = len(half_done["events"]) - 1
    assert half_done["events"][:shared] == whole["events"][:shared]


def test_page_that_connects_again_gets_what_it_lacks(own_run: Path) -> None:
    """The id of the last event says what it has, also after the list was made anew."""
    rows = list(read_run(own_run).rows())
    with served(own_run) as viewer:
        page = _after_rows(viewer, Page(""), "/api/stream?since=1&version=0")
        assert page.ids == ["", *ended(own_run)[1:]]
        append(own_run, retry_frame(rows[1]))
        again = _after_rows(viewer, Page(), "/api/stream", f"Last-Event-ID: {page.last_id}")
        assert again.ids == [str(rows[0]["task_id"]), str(rows[2]["task_id"])]
        append(own_run, done_frame(rows[1]))
        _after_rows(viewer, again, "/api/stream", f"Last-Event-ID: {again.last_id}")

    assert again.ids == ended(own_run)


def _after_rows(viewer: Served, page: Page, path: str, *headers: str) -> Page:
    """A page after the first rows that it is sent."""
    with viewer.events(path, *headers) as events:
        for event in events:
            page.take(event)
            if event[1] == "rows":
                break
    return page


def test_page_that_names_no_rows_learns_how_many_there_are(viewer: Served) -> None:
    with viewer.events() as events:
        names: dict[str, Any] = {}
        while not names.keys() >= {"rows", "standing", "engines"}:
            _, name, data = next(events)
            names[name] = data

    assert (names["rows"]["since"], names["rows"]["rows"]) == (3, 0)
    assert names["standing"]["done"] == 3
    assert names["engines"]["engines"]
    assert "touched" not in names


def test_page_is_told_of_trouble_and_of_its_end(own_run: Path) -> None:
    aside, page = own_run.with_name("aside"), Page()
    with served(own_run) as viewer, viewer.events("/api/stream?since=0&version=0") as events:
        page.until(events, "complete 3")
        own_run.rename(aside)
        # The folder may go in the middle of a look, which then misses a file; the next look says what is wrong.
        while not (page.troubles and "is not a run directory" in page.troubles[-1]):
            page.take(next(events))
        aside.rename(own_run)
        while page.troubles[-1]:
            page.take(next(events))
        page.state = ""
        page.until(events, "complete 3")

    assert page.ids == ended(own_run)


def test_server_ends_while_pages_listen(played: Path) -> None:
    with served(played) as viewer, viewer.asked("/api/stream") as connection:
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.ci
def test_run_that_is_replaced_by_another_is_shown_anew(own_run: Path, tmp_path: Path) -> None:
    other = run_of(experiment("other", conversations=1, seed=5), tmp_path / "other")
    page = Page()
    with served(own_run) as viewer, viewer.events("/api/stream?since=0&version=0") as events:
        page.until(events, "complete 3")
        shutil.rmtree(own_run)
        other.rename(own_run)
        page.until(events, "complete 1")

    assert page.ids == ["other-000000"]


class Flaky(RunSource):
    """Cannot be read whenever the test says so, and has no log of its engines."""

    fails: tuple[str, ...] = ()

    def index(self, slug: str, since: int, version: int | None, most: int | None = None) -> IndexColumns:
        self._check("index")
        return super().index(slug, since, version, most)

    def run(self, slug: str) -> RunPage:
        self._check("run")
        return super().run(slug)

    def engines(self, slug: str) -> EnginesPage:
        raise NotThereError("there is no log")

    def _check(self, name: str) -> None:
        if name in self.fails:
            self.fails = tuple(one for one in self.fails if one != name)
            raise RunDirectoryError(f"{name} cannot be read")


def test_what_could_not_be_read_for_a_moment_is_told_and_sent_though_nothing_changes(played: Path) -> None:
    """The next pulse may be as the one before. The head of a page is tried again after a pause."""
    source = Flaky(played)
    source.fails = ("index", "run")

    async def work(call: Callable[[], T]) -> T:
        return call()

    async def program() -> Page:
        page, live = Page(), Live(source, work, work, SimulatedClock())
        async with asyncio.timeout(60), live.events("", Cursor(0, 0)) as events:
            while not (page.ids and page.state and page.troubles[-1:] == [""]):
                for event in events_in((await anext(events)).splitlines()):
                    page.take(event)
        await asyncio.sleep(0)  # The poll ends.
        return page

    page = simulate(program)
    assert (page.ids, page.state) == (ended(played), "complete 3")
    assert page.troubles == ["index cannot be read", "run cannot be read", ""]


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
    session = session_frame(1, started_at="2026-01-01T00:00:00.000Z")
    segment_of(own_run).write_bytes(session + b"".join(map(done_frame, made)))
    return made


def segment_of(directory: Path) -> Path:
    (segment,) = (directory / "journal").iterdir()
    return segment


def append(directory: Path, frame: bytes) -> None:
    with segment_of(directory).open("ab") as file:
        file.write(frame)


def ids(source: RunSource) -> list[str]:
    column = source.index("", 0, None).words["id"]
    return [column.words[code] for code in column.codes]


def test_summary_says_how_many_ended_while_the_journal_is_read(own_run: Path, rows: list[JsonObject]) -> None:
    (own_run / "summary.json").touch()

    head = sliced(own_run).run("")

    assert (head.is_reading, head.done, head.state) == (True, 3, "stopped")
    assert head.facts


def test_a_head_that_is_asked_for_while_the_journal_is_read_does_not_read_it_through(
    own_run: Path, rows: list[JsonObject], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, read, chunks = sliced(own_run), list[Path](), Disk.chunks

    def noted(disk: Disk, path: Path, start: int = 0, size_bytes: int | None = None) -> Iterator[bytes]:
        read.append(path)
        return chunks(disk, path, start, size_bytes)

    monkeypatch.setattr(Disk, "chunks", noted)
    source.index("", 0, None)
    source.read_on()
    read.clear()

    assert source.run("").is_reading
    assert segment_of(own_run) not in read


@pytest.mark.ci
def test_results_of_a_killed_run_are_shown_however_large_its_journal_is(own_run: Path, played: Path) -> None:
    """A kill leaves no summary; a power failure also leaves zeros behind the last frame."""
    (own_run / "summary.json").unlink()
    os.truncate(segment_of(own_run), 300 << 20)

    head = RunSource(own_run).run("")

    assert head.facts == RunSource(played).run("").facts


def test_summary_is_made_in_parts_between_requests_and_then_announced(own_run: Path) -> None:
    (own_run / "summary.json").unlink()
    source = sliced(own_run)
    source.index("", 0, None)
    while source.read_on():
        pass

    begun, known = source.run(""), source.pulse("").state
    while source.read_on():
        pass

    assert not begun.is_reading
    assert len(begun.facts) < len(source.run("").facts)
    assert source.pulse("").state != known
    assert source.run("") == RunSource(own_run).run("")


def test_why_there_are_no_results_is_told_where_they_are_made_between_requests(
    own_run: Path, rows: list[JsonObject]
) -> None:
    """The outcome of the last of many rows can be listed and not added up; pages ask again once that is found."""
    outcome: Any = rows[-1]["outcome"]
    odd = {**outcome, "players": [{**player, "measures": 3} for player in outcome["players"]]}
    append(own_run, done_frame({**rows[-1], "task_id": "odd", "outcome": odd}))
    source = sliced(own_run)
    source.index("", 0, None)
    while source.read_on():
        pass

    source.run("")
    known = source.pulse("").state
    while source.read_on():
        pass

    assert source.pulse("").state != known
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match="odd"):
            source.run("")


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
    assert ids(source) == [row["task_id"] for row in rows] == ended(own_run)
    assert source.index("", 0, None) == RunSource(own_run).index("", 0, None)
    source.run("")
    while source.read_on():
        pass
    assert source.run("") == RunSource(own_run).run("")
    assert not source.run("").is_reading


def test_every_row_comes_once_when_the_run_grows_and_is_retried(own_run: Path, rows: list[JsonObject]) -> None:
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


def test_what_is_half_read_leaves_no_file_open_once_nobody_asks(own_run: Path, rows: list[JsonObject]) -> None:
    """A summary that is being made reads the journal, part by part."""
    source = sliced(own_run)
    while source.is_reading(""):
        source.read_on()
    source.run("")
    assert is_open(segment_of(own_run))

    source.let_go()

    assert not is_open(segment_of(own_run))
    source.run("")
    while source.read_on():
        pass
    assert not is_open(segment_of(own_run))


def is_open(path: Path) -> bool:
    """Whether this process has a file open."""
    return str(path) in {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}


def test_journal_that_is_replaced_while_it_is_read_is_shown_anew(own_run: Path, rows: list[JsonObject]) -> None:
    source = sliced(own_run)
    source.index("", 0, None)
    segment = segment_of(own_run)
    data = segment.read_bytes()
    segment.unlink()
    segment.write_bytes(data.split(b"\n", 1)[0] + b"\n" + b"".join(map(done_frame, rows[1:4])))

    while source.read_on():
        pass

    assert ids(source) == [row["task_id"] for row in rows[1:4]]
    assert source.index("", 0, None).version > 0


@pytest.mark.ci
def test_publication_has_all_of_a_long_run(own_run: Path, rows: list[JsonObject], tmp_path: Path) -> None:
    found = publish(PublishRequest(directory=own_run, out=tmp_path / "out", only=["number<3"]))

    assert (found.conversations, found.ended) == (3, len(rows))
