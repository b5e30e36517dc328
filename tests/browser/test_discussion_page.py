"""The page of a discussion, and the flow of stances over many."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.reading import EVENTS, Recorded, goto, recorded

if TYPE_CHECKING:
    from playwright.sync_api import Page


def _combination(talks: Path) -> Path:
    """A combination of the grid."""
    return next(path for path in sorted(talks.iterdir()) if (path / "transcripts").is_dir())


def _first(run: Path) -> Recorded:
    """The first discussion."""
    return recorded(run)[0]


def test_stances_stand_by_round_each_with_its_verdict_in_words(page: Page, talks: Path, at_talks: str) -> None:
    run = _combination(talks)
    goto(page, at_talks, f"#/r/{run.name}/c/0")
    table = page.locator(".table-view.rounds table")
    table.wait_for()

    answers = _first(run).answers
    rows = table.locator("tbody tr")
    assert rows.count() >= len(answers)
    for name, given in answers.items():
        row = rows.filter(has=page.get_by_role("rowheader", name=name))
        shown = [cell.strip()[:1] for cell in row.locator("td").all_inner_texts()]
        assert shown == [answer or shown[place] for place, answer in enumerate(given)], name
    verdicts = table.locator("td .verdict")
    assert verdicts.count() > 0
    words = {text.strip() for text in verdicts.locator(".hidden-text").all_text_contents()}
    assert words <= {"right", "wrong", "biased"}


def test_stance_opens_the_event_in_which_it_was_said(page: Page, talks: Path, at_talks: str) -> None:
    goto(page, at_talks, f"#/r/{_combination(talks).name}/c/0")
    page.locator(".table-view.rounds td a").first.click()

    page.locator(f"{EVENTS}[aria-current=true]").wait_for()


def test_arrows_name_who_changed_after_reading_whom(page: Page, talks: Path, at_talks: str) -> None:
    run = _combination(talks)
    url = at_talks
    for number in range(4):
        goto(page, url, f"#/r/{run.name}/c/{number}")
        page.get_by_role("heading", name=f"Conversation {number}").wait_for()
        if page.locator(".arrow").count():
            break
    arrows = page.locator(".arrow").count()
    assert arrows > 0, "no discussion of the run has a change that counts"

    page.get_by_text("after reading another").click()
    assert page.locator(".arrow-list li").count() == arrows


def test_flow_counts_every_step_of_every_participant_once(page: Page, talks: Path, at_talks: str) -> None:
    run = _combination(talks)
    goto(page, at_talks, f"#/r/{run.name}/flow")
    page.locator(".alluvial .band").first.wait_for()
    page.get_by_text("As a table").click()
    counts = [int(text) for text in page.locator(".flow details td.num").all_inner_texts()]
    rounds = page.locator(".alluvial .round-label").count()

    assert sum(counts) == sum(len(given) - 1 for talk in recorded(run) for given in talk.answers.values())
    assert rounds == max(len(given) for given in _first(run).answers.values())


def test_flow_is_of_the_conversations_that_a_filter_chooses(page: Page, talks: Path, at_talks: str) -> None:
    goto(page, at_talks, f"#/r/{_combination(talks).name}/flow")
    page.get_by_text("4 conversations").wait_for()
    page.get_by_role("searchbox").fill("number<1")
    page.keyboard.press("Enter")

    page.get_by_text("1 conversation").wait_for()
    page.reload()
    page.get_by_text("1 conversation").wait_for()
