"""What is made of the record of a run is written again by its command, and nobody takes it for the record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from mac_runner.runs.testing import run_tables
from mac_runner.store import Disk, without_timing
from mac_runner.store.testing import encode_json
from mac_runner.viewer.testing import RunSource
from tests.attacks.mutation import places
from tests.cli.lab import AtOnce, Lab, RunDir, experiment
from tests.faults.tier import SCALE
from tests.kit import stale_files

DAMAGE: Mapping[str, Callable[[Path], object]] = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "altered": lambda path: path.write_bytes(path.read_bytes().replace(b"2", b"3")),
}
MADE = ("grid.csv", "grid.parquet", "summary.json", "summaries/seed-1.json", "small_index.jsonl", "task_manifest.json")
INDEX, MANIFEST, SUMMARY = "small_index.jsonl", "task_manifest.json", "summary.json"


@pytest.fixture
def grid(lab: Lab, at_once: AtOnce) -> Path:
    """A grid of two combinations, played to its end."""
    at_once({**experiment(conversations=2), "_grid": {"sweep": {"seed": [1, 2]}}}, "--quiet").done()
    return lab.run_dir().path


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [SUMMARY, INDEX, MANIFEST])
def test_damaged_file_of_a_run_is_written_again_by_its_command(
    finished: Lab, at_once: AtOnce, name: str, damage: str
) -> None:
    run = finished.run_dir().path
    whole = (run / name).read_bytes()
    DAMAGE[damage](run / name)

    at_once("small.yaml --quiet").done()

    if name == MANIFEST:
        assert without_timing(json.loads((run / name).read_bytes())) == without_timing(json.loads(whole))
    else:
        assert (run / name).read_bytes() == whole
    finished.verified(run)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_of_a_grid_are_written_again_by_its_command(grid: Path, at_once: AtOnce, damage: str) -> None:
    paths = [grid / name for name in MADE]
    whole = {path: path.read_bytes() for path in paths if path.exists()}
    assert {path.name for path in whole} >= {"grid.csv", SUMMARY}
    for path in whole:
        DAMAGE[damage](path)

    at_once("verify runs/small").done()
    at_once("small.yaml --quiet").done()

    found = {path: path.read_bytes() for path in whole}
    for each in (found, whole):
        each[grid / MANIFEST] = encode_json(without_timing(json.loads(each[grid / MANIFEST])))
    assert found == whole
    assert stale_files(grid) == []


def test_command_of_a_grid_that_is_over_reads_its_manifest_and_its_index_once(
    grid: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()

    def chunks(disk: Disk, path: Path, start: int = 0) -> Iterator[bytes]:
        reads[str(path.resolve().relative_to(grid.resolve()))] += 1
        return plain(disk, path, start)

    plain = Disk.chunks
    monkeypatch.setattr(Disk, "chunks", chunks)
    at_once("small.yaml --quiet").done()

    assert reads[MANIFEST] == reads[INDEX] == 1


def test_number_altered_in_the_summary_of_a_combination_does_not_reach_the_table(grid: Path, at_once: AtOnce) -> None:
    table = (grid / "grid.csv").read_bytes()
    one = RunDir(path=grid / "seed-1")
    summary = one.summary
    altered = {**summary, "conversations": {"planned": 2, "finished": 77, "failed": 0}}
    one.layout.summary.write_text(json.dumps(altered))
    (grid / "grid.csv").unlink()

    at_once("small.yaml --quiet").done()

    assert (grid / "grid.csv").read_bytes() == table


def shown(run: Path, at_once: AtOnce) -> list[object]:
    """What the verbs say of a run, and what its pages show."""
    verbs = ("status runs/small --json", "show runs/small", "show runs/small 0", "verify runs/small")
    said = [at_once(verb).done().stdout for verb in verbs]
    at_once("report runs/small --out report.html --json report.json").done()
    source = RunSource(run)
    return [*said, json.loads(Path("report.json").read_bytes()), run_tables(run), source.run("")]


@pytest.mark.ci
@pytest.mark.parametrize("name", [SUMMARY, INDEX])
def test_what_is_altered_in_a_derived_file_is_shown_by_no_verb_and_no_page(
    finished: Lab, at_once: AtOnce, name: str
) -> None:
    """Every number of it is another one, and every word."""
    run = finished.run_dir().path
    expected = shown(run, at_once)
    lines = (run / name).read_bytes().splitlines() if name == INDEX else [(run / name).read_bytes()]
    altered = []
    for line in lines:
        content = json.loads(line)
        for holder, key in places(content):
            value = holder[key]
            if isinstance(value, int | float):
                holder[key] = value + 1000
            elif isinstance(value, str) and key != "task_id":
                holder[key] = f"{value} altered"
        altered.append(json.dumps(content))
    (run / name).write_text("\n".join(altered))

    assert shown(run, at_once) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"experiment_name": "small"', '"experiment_name": "large"'),
        ('"planned":2', '"planned":3'),
        ('"task_id": "small-000001"', '"task_id": "small-000002"'),
        ('"format": 1', '"format": 2'),
    ],
)
def test_manifest_of_other_tasks_than_were_planned_is_refused_and_written_again(
    finished: Lab, at_once: AtOnce, old: str, new: str
) -> None:
    """It alone says what was planned once."""
    run = finished.run_dir()
    path = run.path / MANIFEST
    path.write_text(path.read_text().replace(old, new))

    for verb in ("status", "show", "verify"):
        at_once(f"{verb} runs/small").refused(MANIFEST)
    at_once("small.yaml --quiet").done()
    finished.verified(run.path)


@pytest.mark.ci
def test_broken_lines_of_an_event_log_trouble_no_reader(finished: Lab, at_once: AtOnce) -> None:
    run = finished.run_dir().path
    path, dice = run / "events.jsonl", Random(3)
    lines = path.read_bytes().splitlines()
    odd: tuple[bytes, ...] = (
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\0",
        b'"EVENT_INFER_DONE"',
        b'["EVENT_INFER_DONE"]',
        b"[" * 100_000,
    )
    odd += tuple(b'{"event":"%s"}' % name for name in {json.loads(line)["event"].encode() for line in lines})
    for _ in range(5 * SCALE):
        broken = [line[: dice.randrange(len(line))] if dice.random() < 0.2 else line for line in lines]
        for bad in odd:
            broken.insert(dice.randrange(len(broken)), bad)
        path.write_bytes(b"\n".join(broken))

        at_once("verify runs/small").done()
        at_once("status runs/small").done()
        at_once("show runs/small 0 --turns").done()
        source = RunSource(run)
        assert source.run("").done == 2
        assert source.conversation("", "0", "").note == ""
