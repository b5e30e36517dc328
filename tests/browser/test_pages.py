"""Every page opens: served, light and dark, wide and narrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.browser.screens import WIDTHS, Scheme, Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_run_page_opens(watch: Watch, games: Path, scheme: Scheme, width: int, at_games: str) -> None:
    page = watch.open(at_games, scheme=scheme, width=width)

    page.get_by_text("games").first.wait_for()


AT_FIRST_SIGHT: Final = """
new MutationObserver((_, observer) => {
  if (!document.body?.innerText || location.hash) return;
  observer.disconnect();
  location.hash = "#/c/1";
}).observe(document, {childList: true, subtree: true});
"""


def test_place_that_changes_as_soon_as_something_is_drawn_is_followed(watch: Watch, at_games: str) -> None:
    page = watch.open()
    page.add_init_script(AT_FIRST_SIGHT)
    page.goto(at_games)

    page.get_by_text("Conversation 1").first.wait_for()


TROUBLES: Final = {
    "console.error('no')": "console error: no",
    "setTimeout(() => { throw new Error('no') })": "page error",
    "fetch('http://127.0.0.1:9/').catch(() => 0)": "CSP: connect-src",
    "document.body.insertAdjacentHTML('beforeend', '<img src=http://example.invalid/x.png>')": "CSP: img-src",
    "document.body.insertAdjacentHTML('beforeend', '<p style=\"color:red\">x</p>')": "CSP: style-src",
    "alert('no')": "dialog",
    "window.open('about:blank')": "another page",
    "document.head.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))": (
        "CSP: script-src"
    ),
}
"""What a page may never do, and what is noted of it."""


def test_every_trouble_of_a_page_is_noticed(browser: Browser, games: Path, at_games: str) -> None:
    """The watch itself."""
    watch = Watch(browser)
    page = watch.open(at_games)
    page.get_by_text("games").first.wait_for()
    for script, noted in TROUBLES.items():
        page.evaluate(f"() => {{ {script} }}")
        while not any(noted in trouble for trouble in watch.troubles):
            page.wait_for_timeout(10)  # It comes when the browser has the time.

    with pytest.raises(AssertionError, match="in the browser"):
        watch.close()
