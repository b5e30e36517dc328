"""The backend of docs/engines.md and the metrics of docs/metrics.md work as the pages have them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def written(place: Path, text: str, *names: str) -> None:
    """Write the blocks of code of a page to files."""
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", text, re.DOTALL)
    for name, block in zip(names, blocks, strict=True):
        (place / name).write_text(block, encoding="utf-8")


def mac_run(place: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mac_runner", *args]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


def test_a_class_of_the_page_is_a_backend(tmp_path: Path) -> None:
    _, after = (DOCS / "engines.md").read_text(encoding="utf-8").split("\n## A backend of your own\n")
    written(tmp_path, after.split("\n## Add a backend\n")[0], "parrot.py", "polly.yaml")
    done = mac_run(tmp_path, "polly.yaml")

    assert done.returncode == 0, done.stderr
    assert "5 finished, 0 failed, of 5 planned" in done.stdout


def test_the_functions_of_the_page_are_metrics(tmp_path: Path) -> None:
    written(tmp_path, (DOCS / "metrics.md").read_text(encoding="utf-8"), "metrics.py", "counted.yaml")
    done = mac_run(tmp_path, "counted.yaml")
    summary = json.loads((tmp_path / "runs" / "counted" / "summary.json").read_text())
    listed = mac_run(tmp_path, "show", "runs/counted", "--where", "words.all>=1")
    again = mac_run(tmp_path, "metrics", "runs/counted", "./metrics.py:words")

    assert done.returncode == 0, done.stderr
    assert set(summary["metrics"]) == {"is_short", "words.all", "words.most"}
    assert "rate" in summary["metrics"]["is_short"]
    assert len(listed.stdout.splitlines()) == 6
    assert "words.most" in again.stdout
