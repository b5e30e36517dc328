"""What flat tables cost: flattening a game, the size of the files, and the rows of a large index.

python -m benchmarks.tables --games 20 --rows 100000
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mac_runner.runs.export import ExportRequest, exported
from mac_runner.runs.view import open_run
from mac_runner.store import read_run
from mac_runner.store.journal import done_frame, session_frame
from mac_runner.types import JsonObject
from tests.cli.lab import MAC_RUN, ROOT, environ


def play(directory: Path, games: int) -> None:
    """Play games of the example experiment."""
    import subprocess

    command = [*MAC_RUN, "experiments/tos_100games.yaml", "--limit", str(games), "--out", str(directory), "--quiet"]
    subprocess.run(command, cwd=ROOT, env=environ(), check=True, stdout=subprocess.DEVNULL)


def size_bytes(directory: Path) -> int:
    """How large the files of a directory are."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def multiply(directory: Path, rows: int) -> None:
    """Make the journal say that so many conversations have ended, with the rows of those that have."""
    contents = read_run(directory)
    known = [*contents.rows()]

    def frames() -> Iterator[bytes]:
        yield session_frame(1, started_at="2026-01-01T00:00:00.000Z")
        for index in range(rows):
            row: JsonObject = known[index % len(known)]
            # Those of the manifest have ended, as it says.
            yield done_frame(row if index < len(known) else {**row, "index": index, "task_id": f"copy-{index:06d}"})

    segment = contents.layout.segment(1)
    segment.write_bytes(b"".join(frames()))


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--games", type=int, default=20)
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run, tables = Path(place) / "run", Path(place) / "tables"
        play(run, arguments.games)
        begun_s = time.process_time()
        found = [*exported(ExportRequest(directories=[run], to=tables, formats=["parquet"]))]
        took_s = time.process_time() - begun_s
        transcripts = size_bytes(run / "transcripts") / arguments.games
        print_line("flattening and writing, ms a game", took_s / arguments.games * 1e3)
        print_line("transcripts, bytes a game", transcripts)
        for each in found:
            print_line(f"{each.path.parent.name}, bytes a game", size_bytes(each.path.parent) / arguments.games)
        print_line("all tables, bytes a game", size_bytes(tables) / arguments.games)
        multiply(run, arguments.rows)
        begun_s = time.process_time()
        view = open_run(run)
        opened_s = time.process_time() - begun_s
        table = view.conversations()
        print_line(f"opening a run of {table.num_rows:,}, s", opened_s)
        print_line("the table of its conversations, s", time.process_time() - begun_s - opened_s)
        print_line("peak memory, MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def print_line(name: str, value: float) -> None:
    """Print a figure."""
    sys.stdout.write(f"{json.dumps(name)}: {value:,.1f}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
