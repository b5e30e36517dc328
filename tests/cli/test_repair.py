"""Failed conversations are retried and damaged transcripts written again: both end as if nothing had happened."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NoReturn

import pytest

from mac_runner.cli.process import Exit
from mac_runner.clock import SystemClock
from mac_runner.environments.discussion.testing import DiscussionConversation
from mac_runner.runs import ExperimentSet, Player
from mac_runner.store import open_run, read_run
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir, discussion, experiment, render_other_prompts, served
from tests.cli.test_discussion import moderated
from tests.faults.tier import SCALE
from tests.sim.behaviour import Behaviour, Received, Say, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

SAY = Say("It cannot be known.")


@pytest.fixture
def moody(asked: Lab) -> Iterator[OpenaiServer]:
    """A server that refuses two of its first requests; and questions in the working directory."""

    def script(received: Received) -> Behaviour:
        return failure(400, "not today") if received.number in (9, 16) and not received.is_canary else SAY

    with in_a_thread(OpenaiServer(script=script)) as server:
        yield server


def talk(server: OpenaiServer, **more: Any) -> JsonObject:
    """Six discussions over a server."""
    return discussion(served(server.url), conversations=6, **more)


def questions(server: OpenaiServer, **more: Any) -> JsonObject:
    """The same about questions of a file."""
    return talk(server, discussion={"questions": ["q.jsonl"]}, **more)


@pytest.mark.parametrize("about", [talk, questions])
def test_retry_of_failed_conversations_ends_like_a_run_that_never_failed(
    lab: Lab, at_once: AtOnce, moody: OpenaiServer, about: Callable[[OpenaiServer], JsonObject]
) -> None:
    """Also without the file of its questions."""
    at_once(about(moody)).ends(Exit.FAILURES)
    run = lab.run_dir("talk")
    failed = run.statuses["failed"]
    at_once("talk.yaml --out undisturbed").done()
    (lab.path / "q.jsonl").unlink()
    before = moody.requests

    at_once("retry runs/talk").done()
    told = f"{failed}: {failed} finished, 0 failed; {failed} failed attempts before"
    at_once("show runs/talk --tables talk").done(told)

    assert moody.requests - before < failed * 4
    assert run.statuses == {"finished": 6}
    assert run.transcripts == lab.dir("undisturbed").transcripts
    retried = {"conversations": failed, "finished": failed, "failed": 0, "failed_attempts": failed}
    assert run.summary["retried"] == retried
    assert len(list((run.path / "attempts").iterdir())) == failed
    lab.verified(run.path)


def test_retry_that_fails_again_says_so_and_keeps_both_attempts(lab: Lab, at_once: AtOnce) -> None:
    def refusing(got: Received) -> Behaviour:
        return failure(400, "not today") if got.number >= 9 and not got.is_canary else SAY

    run = lab.run_dir("talk")
    with in_a_thread(OpenaiServer(script=refusing)) as server:
        at_once(talk(server))
        first = run.statuses["failed"]
        told = f"{first}: 0 finished, {first} failed; {first} failed attempts before"
        at_once("retry runs/talk").ends(Exit.FAILURES)
        at_once("show runs/talk --tables talk").done(told)

    assert run.statuses["failed"] == first
    lab.verified(run.path)


def test_run_in_which_all_is_well_is_left_as_it_is(finished: Lab, at_once: AtOnce) -> None:
    with finished.run_dir().unchanged():
        at_once("retry runs/small").done(told="nothing to retry")
        at_once("verify runs/small --repair").done(told="nothing to repair")


def test_interrupted_retry_of_questions_from_a_file_is_brought_to_its_end(
    lab: Lab, at_once: AtOnce, moody: OpenaiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(questions(moody), "--quiet").ends(Exit.FAILURES)
    run = lab.run_dir("talk")
    failed = run.statuses["failed"]
    with monkeypatch.context() as patch:
        patch.setattr(Player, "play", _interrupted_once_open)
        at_once("retry runs/talk").ends(Exit.INTERRUPTED)
    assert len(read_run(run.path).under_retry()) == failed

    at_once("retry runs/talk").done()

    assert run.statuses == {"finished": 6}
    lab.verified(run.path)


@pytest.mark.ci
def test_failed_discussions_of_a_combination_are_retried(lab: Lab, at_once: AtOnce, moody: OpenaiServer) -> None:
    at_once(questions(moody, _grid={"sweep": {"seed": [1, 2]}}), "--quiet").ends(Exit.FAILURES)
    for slug in ("seed-1", "seed-2"):
        at_once(f"retry runs/talk/{slug} --quiet").done()
    at_once("talk.yaml --quiet").done()

    lab.verified(lab.path / "runs/talk")


@pytest.mark.ci
@pytest.mark.parametrize("about", [talk, questions])
def test_retry_that_cannot_be_begun_moves_nothing(
    lab: Lab,
    at_once: AtOnce,
    moody: OpenaiServer,
    monkeypatch: pytest.MonkeyPatch,
    about: Callable[[OpenaiServer], JsonObject],
) -> None:
    at_once(about(moody), "--quiet").ends(Exit.FAILURES)
    run = lab.run_dir("talk")
    with monkeypatch.context() as patch, run.unchanged():
        render_other_prompts(patch, DiscussionConversation)
        at_once("retry runs/talk").refused("other prompts")

    failed = [path for path in run.path.glob("transcripts/*") if b'"status": "failed"' in path.read_bytes()]
    for path in failed:
        path.write_bytes(path.read_bytes()[:-5])
    with run.unchanged():
        at_once("retry runs/talk").refused("verify runs/talk --repair`", *(path.name for path in failed))
    at_once("verify runs/talk --repair").done()
    lab.verified(run.path)


def _interrupted_once_open(_player: Player, chosen: ExperimentSet, *, is_retried: Callable[[str], bool]) -> NoReturn:
    (setup,) = chosen.setups
    with open_run(
        setup.invocation,
        clock=SystemClock(),
        is_retried=is_retried,
    ):
        pass
    raise KeyboardInterrupt


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
def runs(lab: Lab, at_once: AtOnce, moody: OpenaiServer) -> list[tuple[str, Path]]:
    """Runs with their files: of games, of questions from a file, and of discussions with some failures."""
    at_once(experiment("games"), "--quiet").done()
    at_once({**moderated(), "name": "questions"}, "--quiet").done()
    at_once(talk(moody), "--quiet").ends(Exit.FAILURES)
    return [(f"{name}.yaml", lab.path / "runs" / name) for name in ("games", "questions", "talk")]


def harmed(runs: list[tuple[str, Path]], lab: Lab) -> Iterator[tuple[str, str, RunDir, str, dict[str, bytes]]]:
    """File, kind of damage, the damaged copy of its run, the transcript that was harmed, and all as they were."""
    for place, (file, run) in enumerate(runs):
        whole = transcripts(run)
        # Failed conversations first: of these there are few.
        names = sorted(whole, key=lambda name: (b'"status": "failed"' not in whole[name], name))
        for n, (kind, harm) in enumerate(HARMS.items()):
            if SCALE == 1 and (n + place) % 3:  # By day each kind is met by one run.
                continue
            victim, name = lab.dir("victim"), names[n % min(len(names), 4)]
            shutil.copytree(run, victim.path)
            harm(victim.path / "transcripts" / name)
            yield file, kind, victim, name, whole
            shutil.rmtree(victim.path)


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
        rows = index(victim.path)
        has_failed = b'"status": "failed"' in whole[name]
        verified = at_once("verify victim")
        merged = at_once("merge whole victim --quiet")
        retried = at_once("retry victim --quiet") if has_failed else None
        repaired = at_once("verify victim --repair")
        # Where nothing is left of a question from a file, only the file has it.
        if file == "questions.yaml" and repaired.returncode == Exit.FAILURES and kind not in SALVAGED:
            assert "FILE --out victim" in repaired.stderr, kind
            repaired = at_once(file, "--out", "victim")
        checks = {
            "verify does not see it": verified.returncode == Exit.FAILURES,
            "verify names no remedy": "mac-run verify victim --repair" in verified.stdout,
            "merge does not refuse it": merged.returncode == Exit.BAD_INPUT,
            "merge does not name it": name in merged.stderr,
            "merge names no remedy": "mac-run verify victim --repair" in merged.stderr,
            "merge has written": not (lab.path / "whole").exists(),
            "retry names no remedy": retried is None or "mac-run verify victim --repair" in retried.stderr,
            "repair failed": repaired.returncode == Exit.OK,
            "repair does not name it": name.removesuffix(".json") in repaired.stderr,
            "other bytes": transcripts(victim.path) == whole,
            "another index": index(victim.path) == rows,
            "nothing was set aside": kind == "deleted" or any((victim.path / "damaged").iterdir()),
            "not verified": at_once("verify victim").returncode == Exit.OK,
        }
        wrong += [f"{file}, {name}, {kind}: {what}" for what, holds in checks.items() if not holds]
    assert not wrong, "\n".join(wrong)


@pytest.mark.ci
def test_resume_sees_what_is_gone_or_of_another_kind_or_size_and_asks_no_engine(
    at_once: AtOnce, lab: Lab, runs: list[tuple[str, Path]]
) -> None:
    wrong: list[str] = []
    for file, kind, victim, name, whole in harmed(runs[:2], lab):
        before = victim.hashes() if kind not in SEEN_BY_SIZE | {"swapped"} else {}
        asked = len(victim.events("EVENT_INFER_START"))
        resumed = at_once(file, "--out", "victim")
        checks = {
            "it failed": resumed.returncode == Exit.OK,
            "an engine was asked": len(victim.events("EVENT_INFER_START")) == asked,
            "a byte of a finished run changed": not before or victim.hashes() == before,
            "other bytes": kind not in SEEN_BY_SIZE or transcripts(victim.path) == whole,
            "it was not told": kind not in SEEN_BY_SIZE or name.removesuffix(".json") in resumed.stderr,
        }
        wrong += [f"{file}, {name}, {kind}: {what}" for what, holds in checks.items() if not holds]
    assert not wrong, "\n".join(wrong)


@pytest.mark.ci
def test_conversation_whose_journal_is_gone_too_is_told_and_played_again(
    at_once: AtOnce, lab: Lab, runs: list[tuple[str, Path]]
) -> None:
    run = lab.run_dir("games")
    whole = run.transcripts
    flip(run.path / "transcripts/games-000001.json", 900, 1)
    shutil.rmtree(run.path / "journal")

    at_once("verify runs/games --repair").ends(
        Exit.FAILURES, "games-000000: taken over", "games-000001: open again", "--out runs/games"
    )
    at_once("games.yaml").done()

    assert run.transcripts == whole
    assert (run.path / "damaged/games-000001.json").exists()
    lab.verified(run.path)


def test_an_experiment_file_called_grid_beside_a_run_makes_it_no_combination(at_once: AtOnce, finished: Lab) -> None:
    run = finished.run_dir().path
    (run.parent / "grid.yaml").write_text("_grid: {sweep: {seed: [1, 2]}}\n")
    flip_somewhere(next((run / "transcripts").iterdir()), bit=0)

    assert "up to date" not in at_once("verify runs/small --repair").done().stderr


@pytest.mark.ci
def test_failed_attempts_are_written_again_too(at_once: AtOnce, lab: Lab, moody: OpenaiServer) -> None:
    at_once(talk(moody), "--quiet").ends(Exit.FAILURES)
    at_once("retry runs/talk --quiet").done()
    attempts = lab.path / "runs/talk/attempts"
    whole = {path.name: path.read_bytes() for path in attempts.iterdir()}
    assert whole
    for harm in (HARMS["byte"], HARMS["deleted"], HARMS["a pipe"]):
        for name in whole:
            harm(attempts / name)
        at_once("merge whole runs/talk --quiet").done(told=[*whole])
        at_once("verify runs/talk --repair").done()
        assert {path.name: path.read_bytes() for path in attempts.iterdir()} == whole
        lab.verified(attempts.parent)
        at_once("verify whole --repair").done()
        lab.verified(lab.path / "whole")
        shutil.rmtree(lab.path / "whole")


@pytest.mark.ci
def test_repair_of_a_grid_repairs_its_combinations(at_once: AtOnce, lab: Lab) -> None:
    at_once(experiment("lot", conversations=1, _grid={"sweep": {"seed": [1, 2]}}), "--quiet").done()
    found = sorted(lab.path.glob("runs/lot/*/transcripts/*.json"))
    whole = [path.read_bytes() for path in found]
    for path in found:
        flip(path, 700, 4)

    at_once("verify runs/lot --repair").done()

    assert [path.read_bytes() for path in found] == whole
    lab.verified(lab.path / "runs/lot")


def test_show_warns_of_a_transcript_that_is_not_what_was_acknowledged(at_once: AtOnce, finished: Lab) -> None:
    path = finished.path / "runs/small/transcripts/small-000001.json"
    assert "warning" not in at_once("show runs/small 1").stderr
    path.write_bytes(path.read_bytes().replace(b'"timing"', b'"Timing"', 1))

    process = at_once("show runs/small 1").done(told=("small-000001.json is", "verify runs/small --repair"))

    assert process.stdout
    replaced_by_pipe(path)
    at_once("show runs/small 1").refused("a regular file", "verify runs/small --repair")
