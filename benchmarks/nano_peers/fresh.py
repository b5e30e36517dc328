"""nano alone in fresh processes: how long it takes to start, and whether its memory grows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds from the start of a process until nano is imported, until an engine is ready, and of processor time."""

    import_s: float
    ready_s: float
    processor_s: float


def measure_start(directory: Path, num_threads: int, count: int) -> Start:
    """The quickest of `count`."""
    starts = list[Start]()
    for _ in range(count):
        began_s = time.monotonic()
        starts.append(Start(**_run("start", str(directory), str(num_threads), str(began_s))))
    return min(starts, key=lambda start: start.ready_s)


def measure_memory(directory: Path, num_threads: int, rounds: int) -> list[float]:
    """Resident megabytes after each of many rounds of requests, whose cache is full after the first."""
    return [float(each) for each in _run("memory", str(directory), str(num_threads), str(rounds))["rss_mb"]]


def _run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.nano_peers.fresh_child", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nano failed in a fresh process:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
