"""The documentation: links lead somewhere, and it builds as a site. Nothing is fetched."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "examples", "experiments")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\]\(\s*<?([^()\s>]+)>?\s*\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
FOREIGN = ("http://", "https://", "mailto:")


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
            yield f"{target}: there is no such file"
        elif anchor and (other.suffix != ".md" or anchor not in anchors(other)):
            yield f"{target}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert [*dead(page)] == []


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site"))
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert built.returncode == 0, built.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        # Links may lead elsewhere; what a page loads comes with it.
        loaded = re.findall(r"<(?:script|img)[^>]+src=\"?(https?:[^\"> ]+)", page.read_text("utf-8"))
        styles = re.findall(
            r"<link[^>]+rel=\"?(?:stylesheet|preconnect)\"?[^>]+href=\"?(https?:[^\"> ]+)", page.read_text("utf-8")
        )
        assert loaded + styles == [], page.name


def test_every_page_of_the_project_is_in_the_order_of_the_site() -> None:
    listed = set(re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))

    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")}
