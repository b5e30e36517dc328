"""What the documents say is so, their links lead somewhere, and they build as a site. Nothing is fetched."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.pages import DOCS, PAGES, ROOT

LINKING = sorted([*PAGES, *(page for folder in ("examples", "experiments") for page in (ROOT / folder).rglob("*.md"))])
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\(\s*<?([^()\s>]+)>?\s*\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
FOREIGN = ("http://", "https://", "mailto:")


def _names(path: Path) -> set[str]:
    """The functions, classes and variables of a module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_every_test_that_a_page_names_exists() -> None:
    missing = [
        f"{page.name}: {file}::{name}"
        for page in PAGES
        for file, name in NAMED.findall(page.read_text())
        if not (ROOT / file).exists() or name not in _names(ROOT / file)
    ]

    assert missing == []


def test_every_promise_names_its_test() -> None:
    """A promise is an item that begins in bold."""
    page = (DOCS / "reliability.md").read_text()
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


@cache
def prose(page: Path) -> str:
    """Without its code, in which brackets mean something else."""
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("](", ""), FENCE.sub("", page.read_text("utf-8")))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as code hosts and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        number = next(number for number in range(99) if (slug if number == 0 else f"{slug}-{number}") not in found)
        found.add(slug if number == 0 else f"{slug}-{number}")
    return found


def dead(page: Path) -> Iterator[str]:
    for target in LINK.findall(prose(page)):
        if target.startswith(FOREIGN):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            yield f"{page.name}: {target}: there is no such file"
        elif anchor and (other.suffix != ".md" or anchor not in anchors(other)):
            yield f"{page.name}: {target}: there is no such heading"


def test_every_link_of_a_page_leads_to_a_file_and_a_heading() -> None:
    assert [fault for page in LINKING for fault in dead(page)] == []


@pytest.mark.ci
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site"))
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert built.returncode == 0, built.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        # Links may lead elsewhere; what a page loads comes with it.
        loaded = (
            r"<(?:(?:script|img)[^>]+src|link[^>]+rel=\"?(?:stylesheet|preconnect)\"?[^>]+href)=\"?(https?:[^\"> ]+)"
        )
        assert re.findall(loaded, page.read_text("utf-8")) == [], page.name


def test_every_page_of_the_project_is_in_the_order_of_the_site() -> None:
    listed = set(re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))

    assert listed == {page.name for page in DOCS.glob("*.md")}
