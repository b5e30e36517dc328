"""The benchmark of the orchestrator can be run from anywhere, and ends with its row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "orchestrator.py"


def test_orchestrator_benchmark_ends_with_its_row(tmp_path: Path) -> None:
    flags = ["--conversations", "6", "--slots", "4", "--latency-ms", "5"]
    process = subprocess.run(
        [sys.executable, str(SCRIPT), *flags], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )

    assert process.returncode == 0, process.stderr
    row = json.loads(process.stdout.splitlines()[-1])
    assert 0 < row["slot_utilisation"] <= 1
    assert 0 < row["bare_slot_utilisation"] <= 1
    assert row["wall_over_bound"] > 0.9
    assert min(row["client_cpu_ms_per_request"], row["backend_cpu_ms_per_request"]) > 0
