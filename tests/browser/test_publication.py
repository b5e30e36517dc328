"""A publication: the same pages by double click and from a plain static host, and nothing in it that was left out."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import Published
from tests.browser.screens import Watch


def data_of(folder: Path) -> dict[str, str]:
    """Each piece of data of a publication by name, as text."""
    found = {}
    for file in sorted(folder.rglob("data/**/*.js")):
        match = re.fullmatch(r'__mac_data\("([^"]+)","([^"]+)"\);\n', file.read_text())
        assert match is not None, file
        found[match[1]] = gzip.decompress(base64.b64decode(match[2])).decode("ascii")
    return found


@pytest.mark.parametrize("way", ["double click", "host"])
def test_publication_opens(
    watch: Watch, published: Published, host: Callable[[Path], str], games: Path, way: str
) -> None:
    folder = published(games)
    url = host(folder) if way == "host" else f"{folder.as_uri()}/index.html"

    page = watch.open(url)
    page.get_by_text("games").first.wait_for()
    page.goto(f"{url}#/c/1")
    page.get_by_text("Dorothea").first.wait_for()
