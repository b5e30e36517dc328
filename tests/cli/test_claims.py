"""Whatever a run directory claims is derived again by `verify`: any of it altered is found, and told with its place."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.runs.testing import check_tables, summary_of
from mac_runner.store import System, VerifyReport, read_grid, verify_run
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, RunDir, experiment
from tests.faults.tier import one_in


def checked(run: Path) -> VerifyReport:
    """What is found in a run directory, its transcripts taken for what they are."""
    return verify_run(run, rebuild=lambda transcript: transcript, summarise=summary_of)


def wrong_in(run: Path) -> list[str]:
    return [finding.text for finding in checked(run).findings]


def checked_tables(directory: Path) -> VerifyReport:
    grid = read_grid(directory)
    assert grid is not None
    return check_tables(directory, grid)


def wrong_tables(directory: Path) -> list[str]:
    return [finding.text for finding in checked_tables(directory).findings]


def alterations(value: JsonValue, path: str = "") -> Iterator[tuple[str, Callable[[JsonValue], JsonValue]]]:
    """For each leaf of a JSON value its key path, and what alters that leaf alone."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            for where, alter in alterations(inner, key if not path else f"{path}.{key}"):
                yield where, lambda whole, k=key, a=alter: {**whole, k: a(whole[k])}  # type: ignore[misc]
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            for where, alter in alterations(inner, f"{path}[{place}]"):
                yield (
                    where,
                    lambda whole, p=place, a=alter: [*whole[:p], a(whole[p]), *whole[p + 1 :]],  # type: ignore[misc]
                )
    else:
        yield path, altered


def altered(value: JsonValue) -> JsonValue:
    match value:
        case bool() | None:
            return "other"
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case _:
            return ["other"]


def encoded(value: JsonValue) -> str:
    return json.dumps(value, indent=2)


@pytest.fixture
def grid(lab: Lab, at_once: AtOnce) -> Path:
    """A grid of two combinations, played to its end."""
    at_once({**experiment(conversations=2), "_grid": {"sweep": {"seed": [1, 2]}}}, "--quiet").done()
    return lab.run_dir().path


@pytest.mark.ci
def test_any_value_of_a_summary_altered_is_found_with_its_place_and_both_values(finished: Lab) -> None:
    path = finished.run_dir().path / "summary.json"
    summary = json.loads(path.read_bytes())
    assert checked(path.parent).findings == ()

    every = dict(alterations(summary))
    together = {where: alter for where, alter in every.items() if where.startswith("measures.")}
    alone = [where for where in every if where not in together]
    assert len(alone) > 90
    missed = []
    for where in one_in(8, alone):
        path.write_text(encoded(every[where](summary)))
        texts = wrong_in(path.parent)
        # The sessions it names decide what everything else should be.
        if not any(text.startswith(f"summary.json: {where} is ") and ", expected " in text for text in texts):
            missed.append((where, texts))
    assert missed == []

    # There are thousands of these: all at once.
    for alter in together.values():
        summary = alter(summary)
    path.write_text(encoded(summary))
    texts = wrong_in(path.parent)
    found = {text.partition(" is ")[0] for text in texts if ", expected " in text}
    assert len(together) > 500
    assert [where for where in together if f"summary.json: {where}" not in found] == []


@pytest.mark.ci
def test_key_taken_from_a_summary_or_put_into_it_is_found(finished: Lab) -> None:
    path = finished.run_dir().path / "summary.json"
    summary = json.loads(path.read_bytes())
    path.write_text(encoded({**{key: value for key, value in summary.items() if key != "turns"}, "extra": 1}))

    texts = wrong_in(path.parent)

    assert [re.sub("summary.json: | is|, expected|;.*", "", text) for text in texts] == [
        f"turns missing {summary['turns']}",
        "extra 1 missing",
    ]


def test_altered_summary_is_damage_and_written_again_as_the_command_says(finished: Lab, at_once: AtOnce) -> None:
    path = finished.run_dir().path / "summary.json"
    whole = path.read_bytes()
    summary = json.loads(whole)
    path.write_text(encoded({**summary, "turns": 1}))

    line = f"- mismatched: summary.json: turns is 1, expected {summary['turns']}; remove it and run the same command"
    at_once("verify runs/small").ends(Exit.FAILURES, printed=line)
    path.unlink()
    at_once("small.yaml --quiet").done()

    assert json.loads(path.read_bytes())["turns"] == summary["turns"]
    at_once("verify runs/small").done()


def test_summary_of_an_earlier_session_is_right_where_the_later_ones_were_killed(
    finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    """Whatever they ended, and however many more they planned."""
    path = finished.run_dir().path
    earlier = (path / "summary.json").read_bytes()
    at_once("small.yaml --quiet --set conversation_config.conversations=4").done()
    (path / "summary.json").write_bytes(earlier)

    found = checked(path)
    (path / "summary.json").write_bytes(earlier.replace(b'"finished": 2', b'"finished": 4', 1))
    wrong = checked(path)

    assert found.findings == ()
    assert found.notes == snapshot
    assert wrong.findings[0].text.startswith("summary.json: conversations.")


def test_any_status_count_and_index_of_the_manifest_altered_is_found(finished: Lab) -> None:
    path = finished.run_dir().path / "task_manifest.json"
    manifest = json.loads(path.read_bytes())

    missed = []
    for where, alter in alterations(manifest):
        if where.startswith("counts") or where.endswith(("status", "index", "task_id")):
            path.write_text(encoded(alter(manifest)))
            if not any("task_manifest.json" in finding.text for finding in checked(path.parent).findings):
                missed.append(where)
    assert missed == []


@pytest.mark.ci
def test_what_the_event_log_and_the_journal_both_tell_is_compared(finished: Lab) -> None:
    path = finished.run_dir().path / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)

    def first(name: str) -> int:
        return next(place for place, line in enumerate(lines) if name.encode() in line)

    def with_line(place: int, line: bytes) -> bytes:
        return b"".join([*lines[:place], line, *lines[place + 1 :]])

    def edited(name: str, **fields: JsonValue) -> bytes:
        place = first(name)
        return with_line(place, json.dumps({**json.loads(lines[place]), **fields}).encode() + b"\n")

    done, ended = "EVENT_INFER_DONE", "EVENT_CONVERSATION_DONE"
    start = lines[first("EVENT_INFER_START")]
    wrong = {
        "tokens_out 99999": edited(done, tokens_out=99999),
        'finish_reason "lengt"': edited(done, finish_reason="lengt"),
        "the journal has no such reply": edited(done, turn="99/Nobody/0/0"),
        "no such ending": edited(ended, task="small-000077"),
        "turns 1,": edited(ended, turns=1).replace(b"}", b" }"),
        'status "failed"': edited(ended, status="failed"),
        "Expected `float`, got `str` - at `$.elapsed_s`": edited(done, elapsed_s="now"),
        "no run writes an event 'EVENT_PARTY'": edited(done, event="EVENT_PARTY"),
        "it is not an event": with_line(5, lines[5].replace(b'":', b'"', 1)),
        "line at offset 0: it is not an event": with_line(0, lines[0][:40] + b"\n"),
        "offset 0: it is not an event": with_line(0, lines[0].replace(b"EVENT", b"E\xffENT", 1)),
        "no such reply": with_line(first(done), start + lines[first(done)].replace(b"small-000000", b"small-000009")),
    }
    legal = {
        "missing lines": b"".join(lines[::3]),
        "a torn end": b"".join(lines)[:-30],
        "zeros of a power cut": b"".join(lines[:-3]) + b"\0" * 700 + b"\n" + lines[-1],
        "no log": b"",
    }

    assert checked(path.parent).findings == ()
    missed = []
    for text, data in wrong.items():
        path.write_bytes(data)
        found = wrong_in(path.parent)
        if not any(text.rstrip(",") in line and line.startswith("events.jsonl: the line at offset") for line in found):
            missed.append((text, found))
    assert missed == []
    for name, data in legal.items():
        path.write_bytes(data)
        assert checked(path.parent).findings == (), name


@pytest.mark.ci
def test_number_altered_in_the_summary_of_a_combination_does_not_reach_the_table(grid: Path, at_once: AtOnce) -> None:
    table = (grid / "grid.csv").read_bytes()
    slug = next(grid.glob("seed-1*"))
    summary = RunDir(path=slug).summary
    conversations: JsonObject = {"planned": 2, "finished": 77, "failed": 0}
    (slug / "summary.json").write_text(encoded({**summary, "conversations": conversations}))

    at_once("verify runs/small").ends(Exit.FAILURES, printed=("conversations.finished is 77,", "what the combinations"))
    (grid / "grid.csv").unlink()
    at_once("small.yaml --quiet").done()

    assert (grid / "grid.csv").read_bytes() == table


@pytest.mark.ci
def test_any_cell_of_a_table_altered_is_found_with_its_line_and_column(grid: Path) -> None:
    path = grid / "grid.csv"
    whole = path.read_bytes()
    rows = [*csv.reader(io.StringIO(whole.decode(), newline=""))]
    assert checked_tables(grid).findings == ()

    missed = []
    cells = [(line, place) for place in range(len(rows[0])) for line in range(1, len(rows))]
    for line, place in one_in(10, cells):
        name = rows[0][place]
        changed = [list(row) for row in rows]
        changed[line][place] += "1"
        out = io.StringIO()
        csv.writer(out, lineterminator="\r\n").writerows(changed)
        path.write_text(out.getvalue(), newline="")
        texts = wrong_tables(grid)
        if not any(text.startswith(f"grid.csv: line {line + 1}, column {name}: is ") for text in texts):
            missed.append((line, name, texts))
    assert missed == []
    for data in (b"", b"\xff", whole.split(b"\r\n")[0], whole + whole.split(b"\r\n")[1]):
        path.write_bytes(data)
        assert not checked_tables(grid).ok, data
    path.unlink()
    assert "grid.csv is" in str(checked_tables(grid).findings)


@pytest.mark.ci
def test_any_value_of_the_summary_of_a_grid_altered_is_found(grid: Path) -> None:
    path = grid / "summary.json"
    summary = json.loads(path.read_bytes())

    missed = []
    for where, alter in one_in(10, alterations(summary)):
        path.write_text(encoded(alter(summary)))
        texts = wrong_tables(grid)
        if not any(text.startswith("summary.json: ") and " is " in text for text in texts):
            missed.append(where)
    assert missed == []


@pytest.mark.ci
def test_parquet_that_holds_other_numbers_is_found(grid: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = grid / "grid.parquet"
    table = parquet.read_table(path)
    place = table.column_names.index("turns")
    parquet.write_table(table.set_column(place, "turns", pyarrow.array([1, 2])), path)
    altered_cells = wrong_tables(grid)
    path.write_bytes(b"PAR1")

    turns = table.column("turns").to_pylist()
    assert altered_cells[0].startswith("grid.parquet: line 2, ")
    assert f"'1', expected '{turns[0]}'" in altered_cells[0]
    assert len(altered_cells) == 2
    assert "grid.parquet cannot" in checked_tables(grid).findings[0].text


@pytest.mark.ci
def test_tables_are_right_as_of_when_they_were_written(
    grid: Path, at_once: AtOnce, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """A combination that was resumed by itself, or a session killed before its tables, is not damage."""
    kept = {name: (grid / name).read_bytes() for name in ("grid.csv", "grid.parquet", "summary.json")}
    shutil.copytree(grid, tmp_path / "alone")
    more = "--set=conversation_config.conversations=3"
    slug = next((tmp_path / "alone").glob("seed-1*"))
    at_once(slug / "experiment.yaml", "--out", slug, more, "--quiet").done()
    at_once("small.yaml", more, "--quiet").done()
    assert checked_tables(grid).findings == ()
    for name, data in kept.items():
        (grid / name).write_bytes(data)

    killed, played_on = checked_tables(grid), checked_tables(tmp_path / "alone")
    (tmp_path / "alone/grid.csv").write_bytes(kept["grid.csv"].replace(b",2,", b",3,", 1))
    wrong = checked_tables(tmp_path / "alone")

    assert (killed.findings, played_on.findings) == ((), ())
    assert (*killed.notes, *played_on.notes) == snapshot
    assert wrong.findings[0].text.startswith("grid.csv: line 2, ")


@pytest.mark.ci
def test_tables_that_are_written_while_they_are_read_are_read_again(
    grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: (grid / name).read_bytes() for name in ("grid.csv", "grid.parquet", "summary.json")}
    for name in files:
        (grid / name).unlink()
    exists = System.exists

    def ending(system: System, path: Path) -> bool:
        found = exists(system, path)
        if path.name == "grid.csv" and not found:
            for name, data in files.items():
                (grid / name).write_bytes(data)
        return found

    monkeypatch.setattr(System, "exists", ending)

    assert wrong_tables(grid) == []
