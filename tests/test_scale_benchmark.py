"""The benchmark of scale can be run from anywhere, and ends with its row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "scale.py"


def test_scale_benchmark_ends_with_its_row(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--conversations", "60"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    assert process.returncode == 0, process.stderr
    row = json.loads(process.stdout.splitlines()[-1])
    assert (row["conversations"], row["turns"]) == (60, 360)
    measured = {"bookkeeping_us_per_conversation", "bookkeeping_us_per_turn", "scheduler_us_per_turn", "peak_rss_mb"}
    assert all(row[key] > 0 for key in measured | {"resume_to_first_request_s", "finished_again_s"})
