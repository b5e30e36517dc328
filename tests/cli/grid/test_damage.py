"""Damage in the directory of a grid: each verb says so, and the command of the grid mends what it can."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from mac_runner.cli.process import Exit
from mac_runner.errors import StoreError
from mac_runner.store import session
from mac_runner.viewer.testing import RunSource
from tests.cli.lab import AtOnce, Lab, RunDir, experiment
from tests.kit import stale_files

EXPERIMENT, SEGMENT = "experiments/seed-1.yaml", "journal/seed-1/000001.jsonl"
FIRST, SECOND = "transcripts/small-seed-1-000000.json", "transcripts/small-seed-2-000000.json"
DAMAGE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "settings gone": (lambda grid: (grid / EXPERIMENT).unlink(), "no combination of the grid has such a conversation"),
    "segment gone": (lambda grid: (grid / SEGMENT).unlink(), "the journal has no ending"),
    "segment cut": (lambda grid: cut(grid / SEGMENT), "the journal has no ending"),
    "journal gone": (lambda grid: shutil.rmtree((grid / SEGMENT).parent), "the journal has no ending"),
    "transcript gone": (lambda grid: (grid / FIRST).unlink(), "its transcript is not there"),
    "transcript in the place of another": (
        lambda grid: (grid / FIRST).replace(grid / SECOND),
        "its transcript is not what was acknowledged",
    ),
}
REFUSED: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "record gone": (lambda grid: (grid / "grid.yaml").unlink(), "small"),
    "record cut": (lambda grid: cut(grid / "grid.yaml"), "grid.yaml cannot be read"),
    "settings cut": (lambda grid: cut(grid / EXPERIMENT), f"{EXPERIMENT} cannot be read"),
}
MENDED = "settings cut"
"""What the command of the grid writes again; of the others it cannot know what there was."""


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory in which a grid of two was played to its end; not to be changed."""
    lab = Lab(path=tmp_path_factory.mktemp("grid"))
    lab.play(lab.write({**experiment(conversations=2), "_grid": {"sweep": {"seed": [1, 2]}}}))
    return lab.path


@pytest.mark.ci
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_one_combination_is_found_and_mended_by_the_command_of_the_grid(
    lab: Lab, run: RunDir, at_once: AtOnce, damage: str
) -> None:
    harm, words = DAMAGE[damage]
    made = ("experiments", "transcripts", "small_index.jsonl")
    whole = {path: path.read_bytes() for name in made for path in files_of(run.path / name)}
    harm(run.path)

    assert words in at_once("verify runs/small").ends(Exit.FAILURES).stdout
    at_once("small.yaml --quiet").done()

    assert {path: path.read_bytes() for name in made for path in files_of(run.path / name)} == whole
    assert stale_files(run.path) == []
    lab.verified(run.path)


@pytest.mark.ci
@pytest.mark.parametrize("segment", ["journal/000001.jsonl", SEGMENT])
def test_damaged_line_of_a_journal_is_told_by_every_reader_of_its_accounts(
    lab: Lab, run: RunDir, at_once: AtOnce, segment: str
) -> None:
    """What it said of engines and times is not in them."""
    path, told = run.path / segment, "the journal has 1 damaged line, which"
    data = path.read_bytes()
    at = data.rindex(b'"kind":"checkpoint"') - 5
    path.write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])

    at_once("show runs/small --tables").done(told)
    assert told in at_once("status runs/small --json").done().stdout
    at_once("report runs/small --out report.html").done(told=told)
    assert told in (lab.path / "report.html").read_text()
    assert told in repr(RunSource(run.path).run("").facts)


@pytest.mark.ci
@pytest.mark.parametrize("damage", REFUSED)
def test_record_of_a_grid_that_cannot_be_read_is_refused_by_name_and_nothing_changes(
    lab: Lab, run: RunDir, at_once: AtOnce, damage: str
) -> None:
    harm, words = REFUSED[damage]
    harm(run.path)

    with lab.unchanged():
        for verb in ("verify runs/small", "status runs/small", "show runs/small", "verify runs/small --repair"):
            at_once(verb).ends(Exit.BAD_INPUT, words)
        if damage != MENDED:
            at_once("small.yaml").ends(Exit.BAD_INPUT, words)
    if damage == MENDED:
        # Its second line still says whose settings they are.
        at_once("small.yaml --quiet").done()
        lab.verified(run.path)


@pytest.mark.ci
def test_repair_sets_a_transcript_aside_that_was_renamed_to_one_of_another_combination(
    lab: Lab, run: RunDir, at_once: AtOnce
) -> None:
    whole = run.path.joinpath(FIRST).read_bytes()
    run.path.joinpath(FIRST).rename(run.path / "transcripts/small-seed-2-000007.json")

    assert "small-seed-2-000007.json: it was never acknowledged" in at_once("verify runs/small").ends(1).stdout
    at_once("verify runs/small --repair").done()

    assert run.path.joinpath("damaged/small-seed-2-000007.json").read_bytes() == whole
    assert run.path.joinpath(FIRST).read_bytes() == whole
    lab.verified(run.path)


@pytest.mark.ci
def test_command_of_the_grid_ends_leases_that_workers_left_when_all_had_ended(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> NoReturn:
        raise StoreError("cannot write: no space left on device")

    file = lab.write({**experiment(conversations=2), "_grid": {"sweep": {"seed": [1, 2]}}})
    with monkeypatch.context() as broken:
        broken.setattr(session, "end_leases", refuse)
        at_once(f"{file} --shard auto/2 --out shared --quiet").ends(Exit.STORAGE_FAILED)
    assert [*(lab.path / "shared/leases").glob("*.json")]

    at_once(f"{file} --out shared --quiet").done()

    assert not [*(lab.path / "shared/leases").glob("*.json")]
    at_once(f"{file} --shard auto/2 --out shared").done(told="nothing to run")
    assert stale_files(lab.path / "shared") == []
    lab.verified(lab.path / "shared")


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]
