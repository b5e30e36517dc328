"""The environment of docs/environments.md works as the page has it, and nothing but its registry line names it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "environments.md"
REGISTERED = "from mac_runner import registry\nregistry.ENVIRONMENTS['coin'] = 'coin'\n"
COMMAND = "from mac_runner.__main__ import main\nmain()\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the files of the page; what starts there finds its line in the registry."""
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, text in zip(("coin.yaml", "coin.py", "test_coin.py"), blocks, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(REGISTERED, encoding="utf-8")
    (tmp_path / "mac_run.py").write_text(REGISTERED + COMMAND, encoding="utf-8")
    return tmp_path


def at(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=place, capture_output=True, text=True, check=False)


def test_its_results_are_in_the_summary_and_printed(place: Path) -> None:
    done = at(place, "mac_run.py", "coin.yaml")
    summary = json.loads((place / "runs" / "coin" / "summary.json").read_text())

    assert done.returncode == 0, done.stderr
    assert summary["conversations"]["finished"] == 20
    assert summary["coin"]["n"] == 2 * 3 * 20
    assert summary["coin"]["rate"] == round(summary["coin"]["right"] / summary["coin"]["n"], 4)
    assert "calls of the coin" in done.stdout
    assert f"{summary['coin']['rate']:.1%}" in done.stdout


def test_it_is_shown_verified_and_compared_over_a_grid(place: Path) -> None:
    with (place / "coin.yaml").open("a") as file:
        file.write("_grid: {sweep: {coin.rounds: [1, 4]}}\n")
    played = at(place, "mac_run.py", "coin.yaml")
    header, *rows = (place / "runs" / "coin" / "grid.csv").read_text().splitlines()
    runs = sorted(path.parent for path in place.glob("runs/coin/*/summary.json"))
    shown = at(place, "mac_run.py", "show", str(runs[0]), "0")

    assert played.returncode == 0, played.stderr
    assert "coin.right.rate" in header.split(",")
    assert len(rows) == len(runs) == 2
    assert "Toss 1" in shown.stdout
    assert "calls" in shown.stdout
    assert at(place, "mac_run.py", "verify", "runs/coin").returncode == 0


def test_it_keeps_the_contract(place: Path) -> None:
    tried = at(place, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_coin.py")

    assert tried.returncode == 0, tried.stdout
