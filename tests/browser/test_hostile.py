"""Hostile texts and names of a foreign run: nothing of them runs, no request leaves, all is shown as text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest

from tests.browser.conftest import Published, Served
from tests.browser.hostile import NAMES, SEATS, TEXTS, play_hostile, renamed, with_texts
from tests.browser.screens import Watch
from tests.cli.lab import Lab

if TYPE_CHECKING:
    from playwright.sync_api import Page

SEEN: Final = [NAMES.get(name, name) for name in SEATS]
ESCAPES: Final = {
    "bidi": r"safe \u202e desrever \u2066 isolate \u2069 \u200f mark",
    "control": r"nul \x00 bell \x07 escape \x1b[31m delete \x7f line\u2028separator",
    "surrogate": r"half \ud83d alone \udc00 here",
    "table": r"\x01 \x010 \x0199 \x01__proto__",
}
"""What is shown of texts with characters that are not visible."""
SHOWN: Final = {name: ESCAPES.get(name, text) for name, text in TEXTS.items() if name != "long"}
FOREIGN: Final = "img, iframe, object, embed, video, audio, base, link[href*='evil'], style, svg[onload], #bold"
PLACES: Final = (
    *("#/c/0?v=tables", "#/engines", "#/flow", "#/forks/0", "#/compare/0/0", "#/c/%3Cimg%20src=x%20onerror=alert()%3E"),
    *(f"#/c/0?seat={quote(seat, safe='')}" for seat in SEEN),
    *(f"#/c/0?t={quote(f'{n}/{SEEN[n % 5]}/0/0', safe='')}" for n in (0, 1, 3, 4, 9)),
)
WAYS: Final = ("served", "double click", "host", "one page")


@pytest.fixture(scope="session")
def foreign(played: Lab) -> Path:
    """The hostile run with names that no experiment file may have."""
    return with_texts(renamed(play_hostile(played), played.path / "foreign"))


@pytest.fixture
def address(
    served: Served, published: Published, host: Callable[[Path], str], foreign: Path, played: Lab
) -> Callable[[str], str]:
    """The address of the pages of the hostile run, in each way."""

    def find(way: str) -> str:
        if way == "served":
            return served(foreign)
        if way == "one page":
            page = played.path / "foreign.html"
            if not page.exists():
                played.done("show", str(foreign), "0", "--html", str(page))
            return page.as_uri()
        folder = published(foreign)
        return host(folder) if way == "host" else f"{folder.as_uri()}/index.html"

    return find


@pytest.mark.parametrize("way", WAYS)
def test_hostile_texts_are_shown_and_never_run(watch: Watch, address: Callable[[str], str], way: str) -> None:
    # Some places name what is not there: a server's answer to that is in the console.
    watch.allow(r"status of 40[04] .*/api/")
    page = watch.open(address(way))
    page.locator("main").get_by_text(NAMES["oddname"]).first.wait_for()
    check_harmless(page)
    go(page, "#/c/0")
    page.locator("main").get_by_text("mmmmmmmm").first.wait_for()

    shown = page.locator("main").text_content() or ""

    missing = [name for name, text in {**SHOWN, **dict(zip(SEEN, SEEN, strict=True))}.items() if text not in shown]
    assert not missing, missing
    check_harmless(page)
    for place in PLACES:
        go(page, place)
        page.locator("main :is(h1, h2, table, li, p)").first.wait_for()
        check_harmless(page)


def go(page: Page, place: str) -> None:
    page.evaluate("(place) => { window.location.hash = place }", place)


def check_harmless(page: Page) -> None:
    """Nothing ran, and nothing but elements of ours is there."""
    found = page.evaluate(
        "(foreign) => ({ ran: window.ran ?? 0, foreign: [...document.body.querySelectorAll(foreign)].map((one) =>"
        " one.outerHTML.slice(0, 200)), links: [...document.querySelectorAll('a[href]')].map((one) => one.protocol),"
        " polluted: [{}.ran, {}.prototype].some((one) => one !== undefined) })",
        FOREIGN,
    )
    assert found["ran"] == 0
    assert found["foreign"] == []
    assert set(found["links"]) <= {"http:", "file:"}
    assert not found["polluted"]
