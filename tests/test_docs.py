"""What the documents say of the tests is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])


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


def test_every_promise_names_its_test() -> None:
    """A promise is an item that begins in bold."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    promises = re.findall(r"^- \*\*.*(?:\n  .*)*", page, re.MULTILINE)

    assert len(promises) > 60
    assert [promise for promise in promises if not NAMED.search(promise)] == []


def test_lines_of_a_page_are_short_enough_to_read() -> None:
    """100 characters, but for what cannot be broken: a command, a link, a test's name, a line of a file."""
    for page in PAGES:
        is_code = False
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            is_code ^= line.startswith("```")
            words = line.split()
            is_breakable = len(words) > 1 and max(map(len, words)) < 70
            assert is_code or len(line) <= 100 or not is_breakable, f"{page.name}:{number}: {line}"
