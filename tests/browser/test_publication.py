"""A publication: the same pages by double click and from a plain static host, and nothing in it that was left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import Published
from tests.browser.screens import Watch


@pytest.mark.parametrize("way", ["double click", "host"])
def test_publication_opens(
    watch: Watch, published: Published, host: Callable[[Path], str], games: Path, way: str
) -> None:
    folder = published(games)
    url = host(folder) if way == "host" else f"{folder.as_uri()}/index.html"

    page = watch.open(url)
    page.get_by_text("2 of 2 ended").first.wait_for()
    page.get_by_role("link", name="Engines").first.click()
    page.get_by_text("How many slots were in use?").first.wait_for()
    page.go_back()
    page.get_by_text("2 of 2 ended").first.wait_for()


def test_link_into_a_publication_leads_to_the_same_screen(watch: Watch, published: Published, games: Path) -> None:
    place = f"{published(games).as_uri()}/index.html#/c/1?seat=Obadiah&e=3"
    page = watch.open(place)
    page.get_by_text("As Obadiah saw it").first.wait_for()
    shown = page.locator("main").inner_text()

    page.reload()

    page.get_by_text("As Obadiah saw it").first.wait_for()
    assert page.locator("main").inner_text() == shown
    assert page.url == place


def test_conversation_that_is_not_in_a_sample_says_so(watch: Watch, published: Published, games: Path) -> None:
    folder = published(games, "--sample", "1")
    left_out = 1 if (folder / "data" / "0" / "c0" / "0.js").exists() else 0
    page = watch.open(f"{folder.as_uri()}/index.html#/c/{left_out}")

    page.get_by_text(f"Conversation {left_out} was not published").first.wait_for()
