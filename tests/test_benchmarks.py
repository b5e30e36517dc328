"""The benchmarks can be run from anywhere, and end with their rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.cli.lab import ROOT
from tests.patience import run

pytestmark = pytest.mark.ci


def row_of(name: str, place: Path, *flags: str) -> Any:
    """The last line that a benchmark prints."""
    script = str(ROOT / "benchmarks" / f"{name}.py")
    process = run([sys.executable, script, *flags], cwd=place, stdout=PIPE, stderr=PIPE)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_orchestrator_benchmark_ends_with_its_row(tmp_path: Path) -> None:
    row = row_of("orchestrator", tmp_path, "--conversations", "6", "--slots", "4", "--latency-ms", "5")

    assert 0 < row["slot_utilisation"] <= 1
    assert 0 < row["bare_slot_utilisation"] <= 1
    assert row["wall_over_bound"] > 0.9
    assert min(row["client_cpu_ms_per_request"], row["backend_cpu_ms_per_request"]) > 0


def test_scale_benchmark_ends_with_its_row(tmp_path: Path) -> None:
    row = row_of("scale", tmp_path, "--conversations", "60")

    assert (row["conversations"], row["turns"]) == (60, 360)
    measured = {"bookkeeping_us_per_conversation", "bookkeeping_us_per_turn", "scheduler_us_per_turn", "peak_rss_mb"}
    assert all(row[key] > 0 for key in measured | {"resume_to_first_request_s", "finished_again_s"})
