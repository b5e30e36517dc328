"""A run directory whose transcripts were damaged: named, set aside, and written again byte for byte."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce, Lab, RunDir, experiment
from tests.cli.test_discussion import QUESTIONS, moderated
from tests.cli.test_retry import Moody, talk
from tests.faults.tier import SCALE
from tests.kit import copied
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

Harm = Callable[[Path], object]


def flip(path: Path, at: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def flip_somewhere(path: Path, *, bit: int) -> None:
    flip(path, Random(bit).randrange(path.stat().st_size), 1 << bit)


def swap(path: Path) -> None:
    other = next(found for found in sorted(path.parent.iterdir()) if found != path)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def replaced_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("x")


def replaced_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replaced_by_link(path: Path) -> None:
    shutil.move(path, path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


HARMS: Final[Mapping[str, Harm]] = {
    **{f"bit {n}": partial(flip_somewhere, bit=n) for n in range(7)},
    "byte": lambda path: flip(path, path.stat().st_size // 2, 0xFF),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 3),
    "cut by one": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "swapped": swap,
    "deleted": lambda path: path.unlink(),
    "a directory": replaced_by_directory,
    "a pipe": replaced_by_pipe,
    "a link": replaced_by_link,
}
SALVAGED: Final = {"cut by one", "longer", "byte"}
"""Of these a question can be read in the damaged transcript itself."""
SEEN_BY_SIZE: Final = {"cut", "cut by one", "emptied", "longer", "deleted", "a directory", "a pipe", "a link"}


@pytest.fixture
def runs(lab: Lab, at_once: AtOnce) -> list[tuple[str, Path]]:
    """Runs with their files: of games, of questions from a file, and of discussions with some failures."""
    copied(QUESTIONS, lab.path / "q.jsonl")
    lab.write(experiment("games", conversations=2))
    lab.write({**moderated(), "experiment_metadata": {"experiment_name": "questions"}})
    assert at_once("games.yaml", "--quiet").returncode == Exit.OK
    assert at_once("questions.yaml", "--quiet").returncode == Exit.OK
    with in_a_thread(OpenaiServer(script=Moody(lambda received: received.number in (9, 16)))) as server:
        lab.write(talk(server.url))
        assert at_once("talk.yaml", "--quiet").returncode == Exit.FAILURES
    return [(f"{name}.yaml", lab.path / "runs" / name) for name in ("games", "questions", "talk")]


def harmed(runs: list[tuple[str, Path]], lab: Lab) -> Iterator[tuple[str, str, Path, str, dict[str, bytes]]]:
    """File, kind of damage, the damaged copy of its run, the transcript that was harmed, and all as they were."""
    for place, (file, run) in enumerate(runs):
        whole = transcripts(run)
        # Failed conversations first: of these there are few.
        names = sorted(whole, key=lambda name: (b'"status": "failed"' not in whole[name], name))
        for n, (kind, harm) in enumerate(HARMS.items()):
            if SCALE == 1 and (n + place) % 2:  # By day each kind is met by one run or two.
                continue
            victim, name = lab.path / "victim", names[n % min(len(names), 4)]
            shutil.copytree(run, victim)
            harm(victim / "transcripts" / name)
            yield file, kind, victim, name, whole
            shutil.rmtree(victim)


def transcripts(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "transcripts").iterdir()}


def index(run: Path) -> bytes:
    return next(run.glob("*_index.jsonl")).read_bytes()


@pytest.mark.ci
def test_damaged_transcripts_are_named_and_written_again_byte_for_byte(
    at_once: AtOnce, lab: Lab, runs: list[tuple[str, Path]]
) -> None:
    wrong: list[str] = []
    for file, kind, victim, name, whole in harmed(runs, lab):
        rows = index(victim)
        has_failed = b'"status": "failed"' in whole[name]
        verified = at_once("verify", "victim")
        merged = at_once("merge", "whole", "victim", "--quiet")
        retried = at_once("retry", "victim", "--quiet") if has_failed else None
        repaired = at_once("repair", "victim")
        # Where nothing is left of a question from a file, only the file has it.
        if file == "questions.yaml" and repaired.returncode == Exit.FAILURES and kind not in SALVAGED:
            assert "FILE --out victim" in repaired.stderr, kind
            repaired = at_once(file, "--out", "victim")
        checks = {
            "verify does not see it": verified.returncode == Exit.FAILURES,
            "verify names no remedy": "mac-run repair victim" in verified.stdout,
            "merge does not refuse it": merged.returncode == Exit.BAD_INPUT,
            "merge does not name it": name in merged.stderr,
            "merge names no remedy": "mac-run repair victim" in merged.stderr,
            "merge has written": not (lab.path / "whole").exists(),
            "retry names no remedy": retried is None or "mac-run repair victim" in retried.stderr,
            "repair failed": repaired.returncode == Exit.OK,
            "repair does not name it": name.removesuffix(".json") in repaired.stderr,
            "other bytes": transcripts(victim) == whole,
            "another index": index(victim) == rows,
            "nothing was set aside": kind == "deleted" or any((victim / "damaged").iterdir()),
            "not verified": at_once("verify", "victim").returncode == Exit.OK,
        }
        wrong += [f"{file}, {name}, {kind}: {what}" for what, holds in checks.items() if not holds]
    assert not wrong, "\n".join(wrong)


@pytest.mark.ci
def test_resume_sees_what_is_gone_or_of_another_kind_or_size_and_asks_no_engine(
    at_once: AtOnce, lab: Lab, runs: list[tuple[str, Path]]
) -> None:
    wrong: list[str] = []
    for file, kind, victim, name, whole in harmed(runs[:2], lab):
        before = RunDir(path=victim).hashes() if kind not in SEEN_BY_SIZE | {"swapped"} else {}
        asked = len(RunDir(path=victim).events("EVENT_INFER_START"))
        resumed = at_once(file, "--out", "victim")
        checks = {
            "it failed": resumed.returncode == Exit.OK,
            "an engine was asked": len(RunDir(path=victim).events("EVENT_INFER_START")) == asked,
            "a byte of a finished run changed": not before or RunDir(path=victim).hashes() == before,
            "other bytes": kind not in SEEN_BY_SIZE or transcripts(victim) == whole,
            "it was not told": kind not in SEEN_BY_SIZE or name.removesuffix(".json") in resumed.stderr,
        }
        wrong += [f"{file}, {name}, {kind}: {what}" for what, holds in checks.items() if not holds]
    assert not wrong, "\n".join(wrong)


@pytest.mark.ci
def test_conversation_whose_journal_is_gone_too_is_told_and_played_again(
    at_once: AtOnce, lab: Lab, runs: list[tuple[str, Path]]
) -> None:
    file, run = runs[0]
    whole = RunDir(path=run).transcripts
    flip(run / "transcripts/games-000001.json", 900, 1)
    shutil.rmtree(run / "journal")

    repaired = at_once("repair", "runs/games")

    assert repaired.returncode == Exit.FAILURES
    assert "games-000000: taken over" in repaired.stderr
    assert "games-000001: open again" in repaired.stderr
    assert "--out runs/games" in repaired.stderr
    assert at_once(file).returncode == Exit.OK
    assert RunDir(path=run).transcripts == whole
    assert (run / "damaged/games-000001.json").exists()
    lab.verified(run)


def test_repair_of_a_sound_run_changes_no_byte(at_once: AtOnce, finished: Lab) -> None:
    before = finished.run_dir().hashes()

    process = at_once("repair", "runs/small")

    assert process.returncode == Exit.OK
    assert "nothing to repair" in process.stderr
    assert finished.run_dir().hashes() == before


def test_an_experiment_file_called_grid_beside_a_run_makes_it_no_combination(at_once: AtOnce, finished: Lab) -> None:
    run = finished.run_dir().path
    (run.parent / "grid.yaml").write_text("_grid: {sweep: {seed: [1, 2]}}\n")
    flip_somewhere(next((run / "transcripts").iterdir()), bit=0)

    process = at_once("repair", str(run))

    assert process.returncode == Exit.OK
    assert "up to date" not in process.stderr


@pytest.mark.ci
def test_failed_attempts_are_written_again_too(at_once: AtOnce, lab: Lab) -> None:
    moody = Moody(lambda received: received.number in (9, 16))
    with in_a_thread(OpenaiServer(script=moody)) as server:
        lab.write(talk(server.url))
        at_once("talk.yaml", "--quiet")
        moody.refuses = lambda _received: False
        assert at_once("retry", "runs/talk", "--quiet").returncode == Exit.OK
    run = lab.path / "runs/talk"
    whole = {path.name: path.read_bytes() for path in (run / "attempts").iterdir()}
    assert whole
    for harm in (HARMS["byte"], HARMS["deleted"], HARMS["a pipe"]):
        for name in whole:
            harm(run / "attempts" / name)
        merged = at_once("merge", "whole", "runs/talk", "--quiet")
        assert merged.returncode == Exit.OK
        assert all(name in merged.stderr for name in whole)
        assert at_once("repair", "runs/talk").returncode == Exit.OK
        assert {path.name: path.read_bytes() for path in (run / "attempts").iterdir()} == whole
        lab.verified(run)
        assert at_once("repair", "whole").returncode == Exit.OK
        lab.verified(lab.path / "whole")
        shutil.rmtree(lab.path / "whole")


@pytest.mark.ci
def test_repair_of_a_grid_repairs_its_combinations(at_once: AtOnce, lab: Lab) -> None:
    file = lab.write(experiment("lot", conversations=1, _grid={"sweep": {"seed": [1, 2]}}))
    assert at_once(file, "--quiet").returncode == Exit.OK
    found = sorted(lab.path.glob("runs/lot/*/transcripts/*.json"))
    whole = [path.read_bytes() for path in found]
    for path in found:
        flip(path, 700, 4)

    assert at_once("repair", "runs/lot").returncode == Exit.OK

    assert [path.read_bytes() for path in found] == whole
    lab.verified(lab.path / "runs/lot")


def test_show_warns_of_a_transcript_that_is_not_what_was_acknowledged(at_once: AtOnce, finished: Lab) -> None:
    path = finished.path / "runs/small/transcripts/small-000001.json"
    assert "warning" not in at_once("show", "runs/small", "1").stderr
    path.write_bytes(path.read_bytes().replace(b'"timing"', b'"Timing"', 1))

    process = at_once("show", "runs/small", "1")

    assert process.returncode == Exit.OK
    assert process.stdout
    assert "small-000001.json is" in process.stderr
    assert "repair runs/small" in process.stderr
    replaced_by_pipe(path)
    process = at_once("show", "runs/small", "1")
    assert process.returncode == Exit.BAD_INPUT
    assert "a regular file" in process.stderr
    assert "repair runs/small" in process.stderr
