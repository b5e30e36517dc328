"""`mac-run export --format parquet|jsonl`: parts that follow a run, survive a kill and are never stale."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.clock import SystemClock
from mac_runner.data import parts
from mac_runner.environments.town_of_salem.testing import Game
from mac_runner.errors import ConfigError, StoreError
from mac_runner.runs.testing import Exported, ExportRequest, export, exported, followed, open_run, repair_all
from mac_runner.store import Disk
from mac_runner.store.testing import StagedFile
from mac_runner.types import Reply, Turn
from tests.cli.lab import AtOnce, Lab, experiment, refusals, scripted
from tests.patience import ended, wait_for


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of two conversations."""
    monkeypatch.setattr(parts, "PART_CONVERSATIONS", 2)


def asked_for(lab: Lab, to: str, **more: Any) -> ExportRequest:
    return ExportRequest(
        directories=[lab.run_dir().path], to=lab.path / to, **{"formats": ("parquet", "jsonl"), **more}
    )


def files(directory: Path) -> dict[str, bytes]:
    """Every exported file by its name."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def rows_of(query: str) -> list[Any]:
    """What DuckDB answers."""
    found = duckdb.sql(query)
    assert found is not None
    return found.fetchall()


@pytest.fixture(scope="module")
def straight(played: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an export of that run writes that nothing disturbs, in parts of two conversations."""
    lab = Lab(path=tmp_path_factory.mktemp("straight"))
    shutil.copytree(played, lab.path, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_CONVERSATIONS", 2)
        [*exported(asked_for(lab, "tables"))]
    return files(lab.path / "tables")


def table_of(directory: Path, table: str, part: int = 0) -> list[dict[str, Any]]:
    """The rows of a part."""
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(directory / table / f"part-{part:06d}.parquet").to_pylist()
    return rows


def written(made: list[Exported], table: str = "turns") -> int:
    return sum(each.written for each in made if each.path.parent.name == table)


@pytest.mark.ci
def test_the_sums_of_the_tables_are_those_of_the_summary(lab: Lab, at_once: AtOnce) -> None:
    models = {"good": scripted(), "odd": scripted("random")}
    lab.write(experiment(conversations=4, models=models))
    assert at_once("small.yaml", "--quiet").returncode == 0

    assert at_once("export", "runs/small", "--to", "tables", "--format", "parquet").returncode == 0

    summary = lab.run_dir().summary
    tables = lab.path / "tables"

    def asked(text: str) -> Any:
        places = {name: f"'{tables}/{name}/*.parquet'" for name in os.listdir(tables)}
        (row,) = rows_of(text.format(**places))
        return row

    tokens = summary["tokens"]
    assert isinstance(tokens, dict)
    assert asked("select count(*), sum(prompt_tokens), sum(completion_tokens) from {turns}") == (
        summary["turns"],
        tokens["prompt"],
        tokens["completion"],
    )
    assert asked("select sum(turns), sum(corrections), sum(defaults), sum(prompt_tokens) from {conversations}") == (
        summary["turns"],
        summary["corrections"],
        summary["defaults"],
        tokens["prompt"],
    )
    assert asked("select count(*) from {turns} where receipt = 'correction'") == (summary["corrections"],)
    index: list[Any] = [*lab.run_dir().index]
    wins = Counter(player["faction"] for row in index for player in row["outcome"]["players"] if player["won"])
    assert dict(rows_of(f"select faction, count(*) from '{tables}/agents/*.parquet' where won group by all")) == wins
    schema = json.loads((tables / "_schema.json").read_text())
    for name, declared in schema["tables"].items():
        if (tables / name).exists():
            (part,) = (tables / name).iterdir()
            assert pyarrow.parquet.read_schema(part).names == [*declared["columns"]]


@pytest.mark.ci
def test_a_second_export_writes_only_what_has_changed(lab: Lab, at_once: AtOnce, small_parts: None) -> None:
    lab.write(experiment(conversations=5))
    assert at_once("small.yaml", "--limit", "3", "--quiet").returncode == 0

    first = [*exported(asked_for(lab, "tables"))]
    again = [*exported(asked_for(lab, "tables"))]
    before = files(lab.path / "tables")
    assert at_once("small.yaml", "--quiet").returncode == 0
    more = [*exported(asked_for(lab, "tables"))]
    straight = [*exported(asked_for(lab, "straight"))]

    assert (written(first), written(again), written(more), written(straight)) == (4, 0, 4, 6)
    after = files(lab.path / "tables")
    assert after == files(lab.path / "straight")
    assert {name for name, data in before.items() if after[name] == data} >= {
        "turns/part-000000.parquet",
        "turns/part-000000.jsonl",
    }
    assert [each.rows for each in more] == [each.rows for each in straight]


class FullDisk(Disk):
    """A disk that has no room for the replies."""

    def stage(self, path: Path) -> StagedFile:
        staged = super().stage(path)
        return _Full(self, staged._file, path) if path.name == "turns.csv" else staged


class _Full(StagedFile):
    def append(self, data: bytes) -> None:
        raise StoreError("no room")


def test_a_csv_export_that_found_the_disk_full_can_be_made_again(finished: Lab) -> None:
    with pytest.raises(StoreError):
        [*exported(asked_for(finished, "tables", formats=("csv",), disk=FullDisk()))]

    assert files(finished.path / "tables") == {}
    assert [*exported(asked_for(finished, "tables", formats=("csv",)))]


def test_a_part_that_was_removed_or_altered_is_written_again(finished: Lab) -> None:
    assert [*exported(asked_for(finished, "tables"))]
    whole = files(finished.path / "tables")
    (finished.path / "tables/turns/part-000000.parquet").unlink()
    (finished.path / "tables/agents/part-000000.jsonl").write_text("")
    (finished.path / "tables/events/part-000000.parquet").write_text("altered")

    again = [*exported(asked_for(finished, "tables"))]

    assert [written(again, table) for table in ("turns", "agents", "events", "claims")] == [1, 1, 1, 0]
    assert files(finished.path / "tables") == whole


@pytest.mark.ci
@pytest.mark.parametrize("moment", [0, 11, 23])
def test_an_export_that_is_cut_short_leaves_no_half_file_and_the_next_one_goes_on(
    finished: Lab, small_parts: None, straight: dict[str, bytes], moment: int
) -> None:
    class CutShort(Disk):
        left = moment

        def rename(self, source: Path, target: Path) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            super().rename(source, target)

    with pytest.raises(KeyboardInterrupt):
        [*exported(asked_for(finished, "tables", disk=CutShort()))]
    for name, data in files(finished.path / "tables").items():
        assert not Path(name).name.startswith(".tmp-")
        if name.endswith(".parquet"):
            pyarrow.parquet.read_table(finished.path / "tables" / name)
        elif name.endswith(".jsonl"):
            assert data.endswith(b"\n") or not data

    [*exported(asked_for(finished, "tables"))]

    assert files(finished.path / "tables") == straight


@pytest.mark.ci
def test_an_export_that_is_killed_is_swept_up_by_the_next(finished: Lab) -> None:
    place = finished.path / "tables" / "turns"
    process = finished.start("export", "runs/small", "--to", "tables", "--format", "parquet")
    wait_for(lambda: place.exists() and any(place.iterdir()), "the first file")
    process.send_signal(signal.SIGKILL)
    process.wait()

    finished.done("export", "runs/small", "--to", "tables", "--format", "parquet", "--jobs", "2")

    [*exported(asked_for(finished, "straight", formats=("parquet",)))]
    assert files(finished.path / "tables") == files(finished.path / "straight")


@pytest.mark.ci
def test_a_conversation_that_is_played_again_replaces_its_rows(lab: Lab, at_once: AtOnce, small_parts: None) -> None:
    lab.write(experiment(conversations=4))
    receive = Game.receive

    def refuse(self: Game, turn: Turn, reply: Reply) -> Any:
        if turn.round == 3 and self._task.index == 2:
            raise RuntimeError("not today")
        return receive(self, turn, reply)

    patch = pytest.MonkeyPatch()
    patch.setattr(Game, "receive", refuse)
    try:
        assert at_once("small.yaml", "--quiet").returncode == 1
    finally:
        patch.undo()
    failed = [*exported(asked_for(lab, "tables"))]
    assert open_run(lab.run_dir().path).conversation(2).status == "failed"

    assert at_once("retry", "runs/small", "--quiet").returncode == 0
    retried = [*exported(asked_for(lab, "tables"))]

    assert (written(failed), written(retried)) == (4, 2)
    [*exported(asked_for(lab, "straight"))]
    assert files(lab.path / "tables") == files(lab.path / "straight")
    rows = [row for part in (0, 1) for row in table_of(lab.path / "tables", "conversations", part)]
    assert [row["attempts"] for row in rows] == [1, 1, 2, 1]


@pytest.mark.ci
def test_a_transcript_that_is_damaged_stops_the_export_and_is_exported_once_it_is_repaired(
    finished: Lab, at_once: AtOnce
) -> None:
    path = finished.run_dir().path / "transcripts" / "small-000001.json"
    path.write_text(path.read_text().replace("Night", "Knight", 1))

    process = at_once("export", "runs/small", "--to", "tables", "--format", "parquet")

    assert process.returncode == 2
    assert "small-000001.json" in process.stderr
    assert not [name for name in files(finished.path / "tables") if name.endswith(".parquet")]
    [*repair_all(finished.run_dir().path, SystemClock())]
    [*exported(asked_for(finished, "tables"))]
    assert len(table_of(finished.path / "tables", "conversations")) == 2


@pytest.mark.ci
def test_a_followed_export_equals_one_that_is_made_at_the_end(lab: Lab, at_once: AtOnce, small_parts: None) -> None:
    lab.write(experiment(conversations=7))
    assert at_once("small.yaml", "--quiet", "--limit", "3").returncode == 0
    running = lab.start_held(1, "small.yaml", "--quiet")

    def sleep(_delay_s: float) -> None:
        running.send_signal(signal.SIGTERM)
        assert ended(running)[0] == 3
        assert at_once("small.yaml", "--quiet").returncode == 0

    looked = [*followed(asked_for(lab, "tables"), sleep)]

    assert [*dict.fromkeys(each.ended for each in looked)] == [3, 7]
    [*exported(asked_for(lab, "straight"))]
    assert files(lab.path / "tables") == files(lab.path / "straight")


@pytest.mark.ci
def test_following_a_run_that_has_ended_ends_and_an_interrupt_ends_it_cleanly(finished: Lab, at_once: AtOnce) -> None:
    done = at_once("export", "runs/small", "--to", "tables", "--format", "parquet", "--follow")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 conversations" in done.stdout

    running = finished.start_held(1, finished.write(experiment("slow")), "--quiet")
    following = finished.start("export", "runs/slow", "--to", "slow", "--format", "parquet", "--follow")
    wait_for(lambda: (finished.path / "slow").exists(), "the first look")
    following.send_signal(signal.SIGINT)

    code, _, err = ended(following)
    assert (code, len(err.splitlines())) == (3, 1), err
    running.send_signal(signal.SIGKILL)


def test_flags_that_would_do_nothing_are_refused(finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    flags = ("--follow", "--jobs 2", "--format parquet --tables turns,nope")

    assert refusals(at_once, [("export", "runs/small", "--to", "tables", *more.split()) for more in flags]) == snapshot
    assert not (finished.path / "tables").exists()


def test_a_directory_with_the_export_of_another_run_is_refused(finished: Lab, at_once: AtOnce) -> None:
    finished.write(experiment("other", conversations=1))
    assert at_once("other.yaml", "--quiet").returncode == 0
    export(finished.run_dir().path, finished.path / "tables")

    with pytest.raises(ConfigError, match=r"export of \['small'\]"):
        export(finished.run_dir("other").path, finished.path / "tables")


@pytest.mark.ci
def test_a_grid_is_exported_with_a_part_for_each_combination(lab: Lab, at_once: AtOnce) -> None:
    lab.write(experiment(conversations=1, _grid={"sweep": {"game.lobby": ["classic-7", "classic-10"]}}))
    assert at_once("small.yaml", "--quiet").returncode == 0

    made = export(lab.path / "runs" / "small", lab.path / "tables", tables=["agents"], format=["parquet"])

    names = [path.name for path in sorted((lab.path / "tables" / "agents").iterdir())]
    assert [name.split("-part")[0].endswith("000000.parquet") for name in names] == [True, True]
    assert all(name.startswith("part-lobby-classic-") for name in names)
    table = pyarrow.parquet.read_table(lab.path / "tables" / "agents")
    assert Counter(table.column("game.lobby").to_pylist()) == {"classic-7": 7, "classic-10": 10}
    assert made[0].rows == table.num_rows == 17
    declared = json.loads((lab.path / "tables" / "_schema.json").read_text())["tables"]["agents"]["key"]
    for one in (table, open_run(lab.path / "runs" / "small").agents(["won"])):
        assert one.schema.metadata[b"mac_runner.key"].decode().split(",") == declared
