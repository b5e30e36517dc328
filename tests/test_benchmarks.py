"""Every benchmark that needs no engine of its own runs to its end, at its smallest size, and prints its figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Final

import pytest

from tests.patience import run

ROOT: Final = Path(__file__).parents[1]
SMALLEST: Final = {
    "discussion_prefix": ["--discussions=1"],
    "discussion_presets": ["--games=1"],
    "fleet": ["--servers=2", "--slots=2", "--turns=2", "--stall-s=2"],
    "fleet_stress": ["--seconds=3"],
    "fleet_swaps": ["--conversations=8"],
    "forecast": ["--share=0.02"],
    "games": ["--games=4"],
    "games_needed": [],
    "grid": ["--conversations=6", "--kernel-ms=2"],
    "main_job": ["--conversations=2"],
    "orchestrator": ["--conversations=16", "--slots=8"],
    "players": ["--games=2"],
    "prefix_cache": ["--lobby=classic-7"],
    "rules": ["--games=2"],
    "scale": ["--conversations=100"],
    "scheduler": ["--conversations=10", "--in-flight=20"],
    "tables": ["--games=2", "--rows=100"],
    "traces": ["--games=1"],
    "view_start": ["--games=2", "--rows=200"],
}
NEED_MORE: Final = ("learning", "nano_", "ray_", "vllm_")
"""Benchmarks of engines and clusters that this environment may not have."""


def test_every_benchmark_without_an_engine_is_run() -> None:
    found = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if not file.stem.startswith(NEED_MORE)}
    assert found - {"__init__", "house", "machine"} == SMALLEST.keys()


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "options"), SMALLEST.items(), ids=SMALLEST)
def test_benchmark_ends_with_its_figures(name: str, options: Sequence[str]) -> None:
    ended = run([sys.executable, "-m", f"benchmarks.{name}", *options], cwd=ROOT, stdout=PIPE, stderr=PIPE)
    assert ended.returncode == 0, ended.stderr
    assert any(character.isdigit() for character in ended.stdout)
