"""The report in a real browser: with and without JavaScript it is the same page, and asks for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.figures.testing import report_html
from tests.browser.screens import WIDTHS, Watch
from tests.cli.lab import Lab
from tests.figures.reports import hostile_report


@pytest.fixture(scope="session")
def report_of_games(played: Lab, games: Path) -> Path:
    """The report of two games of Town of Salem."""
    played.done("report", str(games), "--out", "games.report.html")
    return played.path / "games.report.html"


def test_page_has_no_trouble_and_no_text_leaves_it(watch: Watch, report_of_games: Path) -> None:
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            page = watch.open(report_of_games.as_uri(), scheme="light" if scheme == "light" else "dark", width=width)

            assert page.locator("figure").count() > 5
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{scheme}, {width} pixels: the page is {overflow} pixels too wide"


def test_page_is_the_same_without_javascript(watch: Watch, report_of_games: Path) -> None:
    context = watch.browser.new_context(java_script_enabled=False)
    watch.contexts.append(context)
    page = context.new_page()
    page.goto(report_of_games.as_uri())

    page.locator("summary").first.click()

    assert page.locator("details[open]").count() >= 1
    assert page.locator("svg text").count() > 10


def test_hostile_report_runs_nothing(watch: Watch, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_text(report_html(hostile_report()), encoding="utf-8", errors="backslashreplace")

    page = watch.open(file.as_uri())

    assert page.locator("script, img, iframe, [onerror]").count() == 0
    assert "alert(1)" in page.locator("h1").inner_text()
