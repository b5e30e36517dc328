"""Memory runs out: the run ends, nothing is tried again, and what was acknowledged is there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import pytest

from mac_runner.cli.maintenance import verify
from mac_runner.cli.process import Exit
from mac_runner.errors import ConversationError, OutOfMemoryError, StoreError, boundary
from mac_runner.store import Disk, writer
from tests.faults.crashfs import CrashDisk
from tests.faults.forking import Extras, Forking
from tests.faults.talks import Talks
from tests.faults.test_crashes import CONVERSATIONS, Promised, check_whole, examine, transcripts_in
from tests.store import player
from tests.store.conftest import StillClock

STORE = str(Path(writer.__file__).parent)
Tracer: TypeAlias = Callable[[FrameType, str, object], object]
Site: TypeAlias = tuple[str, int]


@contextmanager
def tracing_the_writer(tracer: Tracer) -> Iterator[None]:
    """Threads that are started inside the block, the writer's above all, run under `tracer`."""
    before = threading.gettrace()
    threading.settrace(tracer)  # type: ignore[arg-type]
    try:
        yield
    finally:
        threading.settrace(before)


def lines_of_commit(told: Callable[[Site], None]) -> Tracer:
    """Tells of every line of the store that is run while a batch is committed."""

    def tracer(frame: FrameType, event: str, _value: object) -> object:
        if not frame.f_code.co_filename.startswith(STORE) or not is_committing(frame):
            return tracer if frame.f_code.co_name in {"_work", "_bootstrap_inner", "run"} else None
        if event == "line":
            told((frame.f_code.co_filename, frame.f_lineno))
        return tracer

    return tracer


def is_committing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in {"commit", "finish"}:
            return True
        frame = frame.f_back
    return False


def play(disk: CrashDisk, run_dir: Path) -> Promised:
    """Play to the end; what was promised by then."""
    # Where time goes on, some lines are run only when the machine is slow.
    run = player.open_toy(run_dir, CONVERSATIONS, disk=Disk(disk), clock=StillClock())
    with suppress(StoreError), run:
        player.play(run)
        run.contents()
        run.write_summary({})
    return Promised(results=run.written, steps=0)


# What is raised where a reader of the journal is let go of has nobody who could hear of it.
@pytest.mark.parametrize(
    "every", [pytest.param(3, marks=pytest.mark.ci), pytest.param(1, marks=pytest.mark.nightly)], ids=str
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_memory_error_on_any_line_of_a_commit_ends_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)
    run_dir, sites = tmp_path / "run", dict[Site, None]()
    undisturbed = CrashDisk(tmp_path)
    with tracing_the_writer(lines_of_commit(sites.setdefault)):
        play(undisturbed, run_dir)
    expected = transcripts_in(undisturbed.files())
    assert len(sites) > 60

    for nth, site in enumerate([*sites][::every]):
        disk, raised = CrashDisk(tmp_path), list[Site]()

        def raise_once(found: Site, site: Site = site, raised: list[Site] = raised) -> None:
            if found == site:
                assert not raised, f"{found} was tried again"
                raised.append(found)
                raise MemoryError

        with tracing_the_writer(lines_of_commit(raise_once)):
            promised = play(disk, run_dir)
        assert raised == [site]
        examine(disk.crash("keep" if nth % 2 else "drop"), run_dir, promised, expected)
        if nth % 20 == 0:
            check_whole(disk, run_dir, expected)


def test_writer_without_memory_tells_so_and_takes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> bytes:
        raise MemoryError

    run = player.open_toy(tmp_path / "run", 1, disk=Disk(CrashDisk(tmp_path)))
    monkeypatch.setattr("mac_runner.store.journal.encode_frame", no_memory)
    player.play(run)

    with pytest.raises(StoreError, match="no memory left"):
        run.close()
    assert run.written == 0


def test_memory_error_in_foreign_code_is_not_laid_at_its_door() -> None:
    """A conversation that fails stays failed for ever; one that met the end of memory must not."""
    with pytest.raises(OutOfMemoryError, match="turn 1: no memory"), boundary(ConversationError, "turn 1"):
        raise MemoryError


@pytest.mark.ci
def test_process_that_may_have_no_more_memory_ends_resumably(tmp_path: Path, forking: Forking) -> None:
    talks = Talks(conversations=20, out=tmp_path / "tight")

    ended = forking.ended(forking.start(*talks.args(), extras=Extras(spare_memory_mib=64)))

    assert ended.code == Exit.INTERRUPTED, ended.err
    assert "no memory left" in ended.err
    assert "Traceback" not in ended.err
    assert verify(talks.out) == Exit.OK
    assert all(row["status"] == "finished" for row in talks.run_dir.index)
    assert forking.run(*talks.args()).code == Exit.OK
    assert talks.run_dir.statuses == {"finished": 20}


@pytest.fixture(autouse=True)
def traced_by_nobody() -> Iterator[None]:
    """A tool that traces tests would be in the way, and must not be lost either."""
    before = sys.gettrace()
    yield
    assert sys.gettrace() is before
