"""Two conversations beside each other, and the forks of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.reading import goto
from tests.browser.screens import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_forks_of_a_turn_are_arms_with_a_chance_and_open_beside_their_parent(page: Page, at_fork: str) -> None:
    goto(page, at_fork, "#/forks")
    page.locator(".arms tbody tr").first.wait_for()
    draws = page.locator(".arms .draws a")
    assert draws.count() == 2
    draws.last.click()

    page.locator("table.compared").wait_for()
    page.get_by_text("From here on they differ").wait_for()


def test_equal_events_are_folded_and_unfold(page: Page, at_fork: str) -> None:
    goto(page, at_fork, "#/forks")
    page.locator(".arms .draws a").last.click()
    page.get_by_text("From here on they differ").wait_for()
    before = page.locator(".compared tr.is-equal").count()
    page.get_by_role("button", name="equal events").click()

    page.wait_for_function(f"document.querySelectorAll('.compared tr.is-equal').length > {before}")
    for row in page.locator(".compared tr.is-equal").all():
        left, right = row.locator(".event-text").all_inner_texts()
        assert left == right


def test_turn_of_either_side_opens(page: Page, at_fork: str) -> None:
    goto(page, at_fork, "#/forks")
    page.locator(".arms .draws a").last.click()
    page.get_by_text("From here on they differ").wait_for()
    differing = page.locator(".compared tr.differs")
    for side in (0, 1):
        differing.locator(f"td:nth-child({side + 1}) .when a").first.click()
        page.get_by_role("complementary", name="Turn").get_by_role("tablist").wait_for()
        page.locator("td.is-current").first.wait_for()


def test_conversations_of_different_seeds_are_refused_in_words(watch: Watch, page: Page, at_games: str) -> None:
    watch.allow("40[04]")
    goto(page, at_games, "#/compare/0/1")

    assert "seed" in page.get_by_role("alert").inner_text()


def test_run_without_forks_says_how_to_make_one(page: Page, at_games: str) -> None:
    goto(page, at_games, "#/forks/0")

    page.get_by_text("mac-run fork").wait_for()
