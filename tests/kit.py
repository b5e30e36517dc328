"""What the tests of several rooms build: index rows, summaries of them, experiments as mappings, runs on the disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from rich.cells import cell_len

import mac_runner
from mac_runner.clock import SystemClock
from mac_runner.printable import printable
from mac_runner.reports import GridRow, Totals, grid_tables, summarise, summary_tables
from mac_runner.reports.testing import drawn
from mac_runner.results import Table
from mac_runner.runs.summary import summary_of as summary_of_run
from mac_runner.store import Disk, Run, has_run, is_grid, read_grid, read_run
from mac_runner.store.testing import decode_frame, decode_manifest, encode_frame, encode_json, entry, parse_row
from mac_runner.types import JsonObject, JsonValue

T = TypeVar("T")


def known(value: T | None) -> T:
    """What there must be."""
    assert value is not None
    return value


def copied(source: Path, to: Path) -> Path:
    """A copy of a file or a folder that may be changed, also where the checkout may not."""
    if source.is_file():
        return Path(shutil.copyfile(source, to / source.name if to.is_dir() else to))
    to.mkdir(parents=True, exist_ok=True)
    for child in source.iterdir():
        copied(child, to / child.name)
    return to


def render_summary(summary: JsonObject, *, width: int = 100) -> str:
    """The tables of a run as text."""
    return drawn(summary_tables(summary), width=width, has_style=False)


def render_grid(summary: JsonObject, rows: list[GridRow], *, width: int = 400) -> str:
    """The tables of a grid as text."""
    return drawn(grid_tables(summary, rows), width=width, has_style=False)


def unreadable(parts: Iterable[Table | str], width: int) -> list[str]:
    """What is not whole in tables of this width: names, words, and lines that are longer."""
    found = []
    for part in parts:
        lines = drawn([part], width=width, has_style=False).splitlines()
        found += [line for line in lines if cell_len(line) > width]
        if isinstance(part, Table):
            words = {word for line in lines for word in line.split()}
            names = (printable(row[0]) for row in part.rows)
            found += [name for name in names if cell_len(name) <= width and not _begins_a_line(name, lines)]
            cells = (printable(cell) for row in part.rows for cell in row)
            found += [
                word for cell in cells for word in cell.split() if word not in words and cell_len(word) < width - 4
            ]
    return found


def _begins_a_line(name: str, lines: list[str]) -> bool:
    return any(line.startswith(name.rstrip()) for line in lines)


def game_player(**known: JsonValue) -> JsonObject:
    """A player of the outcome of a game: a Sheriff of the Town who lost and lived, but for what is known."""
    return {
        "agent": "Abel",
        "definition": "d",
        "model": "m",
        "seat": 0,
        "role": "sheriff",
        "final_role": "sheriff",
        "faction": "town",
        "won": False,
        "alive": True,
        "death": None,
        "died_on_day": None,
        "measures": {},
        **known,
    }


def index_row(index: int, outcome: JsonValue = None, *, failure: str | None = None) -> JsonObject:
    """A row of an index as the store writes it, of ten turns."""
    return {
        "task_id": f"task-{index:03}",
        "index": index,
        "status": "finished" if failure is None else "failed",
        "failure": failure,
        "counts": {
            "turns": 10,
            "corrections": 2,
            "defaults": 1,
            "tokens": {"prompt": 100, "completion": 20, "timing": {"cached": 50}},
        },
        "outcome": outcome if failure is None else None,
    }


def summary_of(rows: Iterable[JsonObject], accounting: JsonObject | None = None, *, planned: int | None = None) -> Any:
    """The summary of a run `demo` with these rows."""
    found = [*rows]
    count = len(found) if planned is None else planned
    return summarise(totals_of(found), experiment_name="demo", planned=count, accounting=accounting or {})


def totals_of(rows: Iterable[JsonObject]) -> Totals:
    """What is added up over index rows."""
    totals = Totals()
    for row in rows:
        totals.add(parse_row(row))
    return totals


def own_game(game: str, *, name: str = "small", conversations: int = 2) -> JsonObject:
    """An experiment in which Abel and Cain play a game of its own, by chance."""
    return {
        "experiment_metadata": {"experiment_name": name},
        "conversation_config": {"environment": game, "conversations": conversations},
        "model_definitions": {"m": {"backend": "scripted", "scripted_config": {"policy": "random"}}},
        "agent_definitions": [{"agent_id": seat, "role": "player", "model": "m"} for seat in ("Abel", "Cain")],
    }


def written(file: Path, content: JsonObject) -> Path:
    """An experiment as a file. JSON is YAML."""
    file.write_text(json.dumps(content))
    return file


def played(content: JsonObject | Path, directory: Path, **more: Any) -> Path:
    """The directory of a run that was played in this process, which takes milliseconds."""
    mac_runner.run(content, out=directory, progress=False, **more)
    return directory


def undigested(config: Path) -> str:
    """The text of a YAML file of a run directory without its digest, as earlier versions wrote it: it may be edited."""
    return re.sub(r"# Digest of its values: .*\n", "", config.read_text())


def acknowledge(run: Path) -> Path:
    """Acknowledge the transcripts of a run as they are now, as a run that wrote them would have."""
    for segment in (run / "journal").iterdir():
        records = [known(decode_frame(line)) for line in segment.read_bytes().splitlines()]
        for record in records:
            if record["kind"] == "done":
                row = entry(record, "row", dict)
                data = (run / entry(row, "transcript", str)).read_bytes()
                row["sha256"], row["size_bytes"] = hashlib.sha256(data).hexdigest(), len(data)
        segment.write_bytes(b"".join(map(encode_frame, records)))
    return run


class StridingClock(SystemClock):
    """Sleeps for no time; between two looks at it so many seconds pass."""

    def __init__(self, stride_s: float) -> None:
        self._stride_s = stride_s
        self._now_s = 0.0
        self.slept_s: list[float] = []

    def monotonic_s(self) -> float:
        self._now_s += self._stride_s
        return self._now_s

    async def sleep(self, delay_s: float) -> None:
        self.slept_s.append(delay_s)
        await asyncio.sleep(0)


def stale_files(directory: Path, *, disk: Disk | None = None) -> list[str]:
    """The files of a run, or of a grid, that are not what the journals make of them.

    The run has ended: index, manifest and summary are those of all its sessions.
    """
    grid = read_grid(directory, disk=disk) if is_grid(directory, disk=disk) else None
    if grid is None:
        contents = read_run(directory, disk=disk)
        layout = contents.layout
        return _stale([contents], [{}]) if layout.grid is None else stale_files(layout.grid, disk=disk)
    begun = [known for known in grid.entries if has_run(directory / known.slug, disk=disk)]
    runs = [read_run(directory / known.slug, disk=disk) for known in begun]
    return _stale(runs, [{"combination": known.slug, "values": dict(known.values)} for known in begun], grid.name)


def _stale(runs: list[Run], marks: list[JsonObject], grid: str | None = None) -> list[str]:
    """`marks` are what the rows of each run have more in the index."""
    disk, first = runs[0].disk, runs[0].layout
    index_path = first.index if grid is None else first.index.with_name(f"{grid}_index.jsonl")
    index = b"".join(disk.chunks(index_path)).splitlines(keepends=True)
    rows = [encode_json({**row, **mark}) + b"\n" for run, mark in zip(runs, marks, strict=True) for row in run.rows()]
    manifest = decode_manifest(disk.chunks(first.manifest), str(first.manifest))
    statuses = {task_id: "pending" for run in runs for task_id in run.planned()}
    statuses |= {task_id: ending.status for run in runs for task_id, ending in run.state.endings.items()}
    is_right = {index_path: sorted(index) == sorted(rows), first.manifest: manifest.statuses == statuses}
    for run in runs:
        path = run.layout.summary
        summary = json.loads(disk.read(path)) if disk.exists(path) else {}
        # A toy has an empty one, and one of an earlier session says so.
        is_right[path] = summary.get("sessions") != len(run.state.sessions) or summary == summary_of_run(run)
    return [str(path) for path, is_so in is_right.items() if not is_so]
