"""Every page opens: served, light and dark, wide and narrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.browser.conftest import Served
from tests.browser.screens import WIDTHS, Scheme, Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_run_page_opens(watch: Watch, served: Served, games: Path, scheme: Scheme, width: int) -> None:
    page = watch.open(served(games), scheme=scheme, width=width)

    page.get_by_text("games").first.wait_for()


AT_FIRST_SIGHT: Final = """
new MutationObserver((_, observer) => {
  if (!document.body?.innerText || location.hash) return;
  observer.disconnect();
  location.hash = "#/c/1";
}).observe(document, {childList: true, subtree: true});
"""


def test_place_that_changes_as_soon_as_something_is_drawn_is_followed(
    watch: Watch, served: Served, games: Path
) -> None:
    page = watch.open()
    page.add_init_script(AT_FIRST_SIGHT)
    page.goto(served(games))

    page.get_by_text("Conversation 1").first.wait_for()


TROUBLES: Final = (
    "console.error('no')",
    "setTimeout(() => { throw new Error('no') })",
    "fetch('http://127.0.0.1:9/').catch(() => 0)",
    "document.body.insertAdjacentHTML('beforeend', '<img src=http://example.invalid/x.png>')",
    "document.body.insertAdjacentHTML('beforeend', '<p style=\"color:red\">x</p>')",
    "alert('no')",
    "window.open('about:blank')",
    "document.head.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))",
)


def test_every_trouble_of_a_page_is_noticed(browser: Browser, served: Served, games: Path) -> None:
    """The watch itself."""
    watch = Watch(browser)
    page = watch.open(served(games))
    page.get_by_text("games").first.wait_for()
    for script in TROUBLES:
        watch.troubles.clear()
        page.evaluate(f"() => {{ {script}; return new Promise((done) => setTimeout(done, 50)) }}")
        assert watch.troubles, script

    with pytest.raises(AssertionError, match="in the browser"):
        watch.close()
