"""`mac-run verify` finds what was changed behind the back of a run, and changes nothing itself."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.store import has_run, is_grid, verify_run
from mac_runner.store.verify import verify_journal
from tests.cli.lab import AtOnce, Lab, discussion, ending, experiment, render_other_prompts, scripted
from tests.kit import undigested
from tests.patience import wait_for

CALLS = 6
"""From the name of the first transcript to its row in the index."""
HELD = f"""
import time
from pathlib import Path
from threading import Lock, get_ident
from mac_runner.cli import main
from mac_runner.store import writer
from mac_runner.store.disk import System
gate, link, calls, writing, choosing = Path("gate"), System.link, 0, None, Lock()
def held(call):
    def wait(*args):
        global calls, writing
        with choosing:
            if writing is None and call is link and args[2].parent.name == "transcripts":
                writing = get_ident()
        if get_ident() == writing and calls < {CALLS}:
            calls += 1
            gate.touch()
            while gate.exists():
                time.sleep(0.005)
        return call(*args)
    return wait
for name in ("link", "unlink", "fsync_directory", "write", "fsync"):
    setattr(System, name, held(getattr(System, name)))
writer.WRITER_STALL_S_MAX = 3600
main()
"""


def test_verify_of_a_finished_run_is_content_and_touches_nothing(
    finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    run = finished.run_dir()
    with run.unchanged():
        process = at_once("verify runs/small")

        assert process.stdout == snapshot


@pytest.mark.ci
def test_run_that_is_under_way_is_verified_without_a_finding(lab: Lab) -> None:
    """Held before each call that brings a transcript to its row, and as it goes on; a grid too."""
    small = experiment(models={"m": scripted(latency_ms=1)})
    single, many = lab.write(small), lab.write({**small, "_grid": {"sweep": {"seed": [1, 2]}}}, "many.yaml")
    gate = lab.path / "gate"
    for file, out in ((single, "single"), (many, "many")):
        process, looks = lab.start(file, "--out", out, program=(sys.executable, "-c", HELD)), 0
        while process.poll() is None:
            wait_for(lambda process=process: gate.exists() or process.poll() is not None, "a gate")  # type: ignore[misc]
            is_held = gate.exists()
            notes = notes_on(lab.path / out)
            looks += is_held and bool(notes)
            gate.unlink(missing_ok=True)
            notes_on(lab.path / out)
        ending(process).done()
        assert looks == CALLS


def notes_on(directory: Path) -> list[str]:
    """What is said of the runs in a directory, in which nothing is wrong."""
    notes: list[str] = []
    combinations = (directory / path.stem for path in directory.glob("experiments/*.yaml"))
    for run in filter(has_run, (directory, *combinations)):
        report = verify_run(run, rebuild=lambda transcript: transcript)
        assert report.findings == ()
        notes += report.notes
    if is_grid(directory):
        assert verify_journal(directory).findings == ()
    return notes


@pytest.mark.ci
def test_verify_plays_a_discussion_again(lab: Lab, at_once: AtOnce) -> None:
    at_once(discussion(scripted("discussant"))).done()

    lab.verified(lab.run_dir("talk").path)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("transcripts/small-000001.json", "Night", "Knight", "- damaged: small-000001"),
        ("experiment.yaml", "lobby: classic-7", "lobby: classic-8", "- mismatched: small-000000"),
    ],
)
def test_verify_names_what_was_tampered_with_and_changes_nothing(
    finished: Lab, at_once: AtOnce, file: str, old: str, new: str, told: str
) -> None:
    run = finished.run_dir()
    (run.path / file).write_text(re.sub(old, new, undigested(run.path / file), count=1))
    with run.unchanged():
        process = at_once("verify runs/small").ends(Exit.FAILURES, printed=("NOT as promised", told))

    assert process.stderr == ""


def test_verify_notices_that_this_version_renders_another_prompt(
    finished: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_other_prompts(monkeypatch)

    at_once("verify runs/small").ends(Exit.FAILURES, printed=("damaged 0, mismatched 2", "different in turns"))


@pytest.mark.parametrize("kind", ["reply", "done"])
def test_byte_that_was_flipped_in_the_journal_is_left_behind_by_a_merge_as_verify_advises(
    finished: Lab, at_once: AtOnce, kind: str
) -> None:
    path = finished.run_dir().path / "journal/000001.jsonl"
    data = bytearray(path.read_bytes())
    data[data.index(f'"kind":"{kind}"'.encode()) + len(kind) + 20] ^= 1
    path.write_bytes(data)
    told = at_once("verify runs/small").ends(Exit.FAILURES, printed="`mac-run merge NEW runs/small` writes").stdout
    assert "--repair" not in told

    at_once("merge new runs/small").done(told="1 damaged lines of its journal stay behind")
    finished.verified(finished.path / "new")


def test_environment_that_is_not_installed_is_named_and_no_file_is_blamed(finished: Lab, at_once: AtOnce) -> None:
    path = finished.run_dir().path / "experiment.yaml"
    path.write_text(undigested(path).replace("environment: town_of_salem", "environment: chess"))

    process = at_once("verify runs/small").refused("environment 'chess', ")

    assert "put back" not in process.stderr


@pytest.mark.parametrize("left", [0, 1])
def test_endings_that_a_journal_has_lost_are_told_by_every_reader_until_a_run_takes_them_over(
    finished: Lab, at_once: AtOnce, left: int
) -> None:
    run = finished.run_dir()
    segment = run.path / "journal/000001.jsonl"
    data = segment.read_bytes()
    first, last = re.finditer(rb'"id":"(small-[0-9]+)","kind":"done"', data)
    segment.write_bytes(data[: last.start() if left else 0])
    told = "are not in the journal, which was cut off or damaged; run the experiment again"

    assert told in at_once("status runs/small --json").done().stdout
    at_once("show runs/small").done(told=told)
    if left:
        at_once("show runs/small", first[1].decode(), "--html", "page.html").done(told=told)
    for verb in ("export runs/small --to tables", "report runs/small --out report.html"):
        at_once(verb).refused(told)

    at_once("small.yaml --quiet").done()
    assert told not in at_once("status runs/small --json").done().stdout
    at_once("export runs/small --to tables").done()
    finished.verified(run.path)
