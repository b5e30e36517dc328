"""A publication: the same pages by double click and from a plain static host, and nothing in it that was left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Published
from tests.browser.reading import goto
from tests.browser.screens import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Page


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


def test_keys_lead_from_one_published_conversation_to_the_next(
    watch: Watch, published: Published, village: Path
) -> None:
    from playwright.sync_api import expect

    folder = published(village, "--sample", "2")
    numbers = sorted(int(path.stem) for path in (folder / "data" / "0" / "c0").iterdir())
    assert len(numbers) == 2
    page = watch.open(f"{folder.as_uri()}/index.html#/c/{numbers[0]}")
    pager = page.get_by_role("navigation", name="Conversations").get_by_role("link")

    expect(pager).to_have_text([f"{numbers[1]} →"])
    page.keyboard.press("]")
    page.wait_for_url(f"**/index.html#/c/{numbers[1]}")
    expect(pager).to_have_text([f"← {numbers[0]}"])
    page.keyboard.press("]")
    page.keyboard.press("[")
    page.wait_for_url(f"**/index.html#/c/{numbers[0]}")


def test_parent_of_a_fork_has_no_neighbours_among_the_forks(page: Page, at_fork: str) -> None:
    from playwright.sync_api import expect

    url = at_fork
    goto(page, url, "#/c/1")
    pager = page.get_by_role("navigation", name="Conversations").get_by_role("link")
    expect(pager).to_have_text(["← 0"])
    parent = page.get_by_text("Fork of").inner_text().split()[2]
    goto(page, url.partition("?")[0], f"#/c/{parent}")
    page.get_by_role("heading", name=parent).wait_for()
    expect(pager).to_have_count(0)


def test_page_of_a_seat_asks_for_nothing_else_of_the_conversation(page: Page, at_games: str) -> None:
    url = at_games
    page.goto(url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    goto(page, url, "#/c/1?seat=Obadiah&e=3")
    page.get_by_text("As Obadiah saw it").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("i")

    of_it = [one for one in asked if "/api/c/" in one]
    assert of_it
    assert [one for one in of_it if "seat=Obadiah" not in one] == []
