"""What a reader of a long run waits for: `mac-run view` until the first rows are answered, and until all are.

python -m benchmarks.view_start --rows 100000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.tables import multiply, play, print_line
from mac_runner.store.layout import MANIFEST
from mac_runner.store.manifest import decode_manifest
from tests.cli.lab import MAC_RUN, ROOT, environ
from tests.viewer.served import Served

PAUSE_S = 2.0
"""A page asks for the head of a run so often while it is read."""


def cpu_s(process: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--games", type=int, default=20)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--run", type=Path, help="a run directory in place of one that is made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = arguments.run or Path(place) / "run"
        if arguments.run is None:
            play(run, arguments.games)
            multiply(run, arguments.rows)
            # A run that ends writes its summary last.
            (run / "summary.json").touch()
        print_line("journal, MB", sum(path.stat().st_size for path in (run / "journal").iterdir()) / 1e6)
        measure(run)


def measure(run: Path) -> None:
    """Serve a run and ask as a page does."""
    known = next(iter(decode_manifest([(run / MANIFEST).read_bytes()], MANIFEST).planned))
    begun_s = time.perf_counter()
    with subprocess.Popen(
        [*MAC_RUN, "view", str(run), "--no-open"],
        cwd=ROOT,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            viewer = Served(server.stdout.readline().strip())
            started_s, started_cpu_s = time.perf_counter(), cpu_s(server.pid)
            print_line("start of the server, s", started_s - begun_s)

            def answered(name: str, value: Any) -> None:
                took_s, used_s = time.perf_counter() - started_s, cpu_s(server.pid) - started_cpu_s
                print_line(f"{name}, s", took_s)
                print_line(f"{name}, CPU s", used_s)
                print_line(f"{name}, rows", value)

            viewer.json("/api/run")
            answered("first head", 0)
            answered("first rows", viewer.json("/api/index")["rows"])
            asked_s = time.perf_counter()
            viewer.json(f"/api/c/{known}")
            print_line("a conversation meanwhile, s", time.perf_counter() - asked_s)
            while viewer.json("/api/run").get("is_reading"):
                time.sleep(PAUSE_S)
            answered("all read", 0)
            whole = viewer.get("/api/index", "Accept-Encoding: gzip")
            answered("all rows", whole.json["rows"])
            print_line("all rows, bytes", len(whole.body))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
