"""What the documents say of the tests is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


def _names(path: Path) -> set[str]:
    """The functions, classes and variables of a module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    missing = [
        f"{file}::{name}"
        for file, name in NAMED.findall(page.read_text())
        if not (ROOT / file).exists() or name not in _names(ROOT / file)
    ]

    assert missing == []


def test_every_row_of_the_promises_names_its_test() -> None:
    """A table whose third column is `tests` is one of promises."""
    _, *tables = (ROOT / "docs" / "reliability.md").read_text().split("| tests |\n")
    rows = [row for table in tables for row in table.split("\n\n")[0].splitlines()[1:] if row.startswith("|")]

    assert len(rows) > 15
    assert [row for row in rows if not NAMED.search(row)] == []
