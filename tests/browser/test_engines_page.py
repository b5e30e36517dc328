"""The page of the engines: what each did over the time of the run."""

from __future__ import annotations

import re

from mac_runner.view_model import EnginesPage
from tests.browser.made_up import engines_of, made_up_run, run_of
from tests.browser.screens import Watch
from tests.patience import LIMIT_S

QUESTIONS = (
    "How many slots were in use?",
    "How many tokens came back per second?",
    "How many replies came back per second?",
    "When were requests sent again?",
    "How long did a reply take?",
)


def test_each_engine_answers_each_question_in_a_chart_and_in_words(watch: Watch) -> None:
    with made_up_run(run_of(10), engines=engines_of()) as made:
        page = watch.open(f"{made.url}#/engines")
        for model in ("townsfolk", "mafiosi"):
            engine = page.get_by_role("region", name=model)
            for question in QUESTIONS:
                engine.get_by_role("img", name=question).wait_for()
            assert engine.get_by_text("1.26 s / 2.48 s").is_visible()
            assert engine.get_by_text("71 %").is_visible()


def test_the_numbers_of_a_chart_are_in_a_table_too(watch: Watch) -> None:
    engines = engines_of(60)
    with made_up_run(run_of(10), engines=engines) as made:
        page = watch.open(f"{made.url}#/engines")
        page.get_by_text("As a table").first.click()
        rows = page.locator("details table").first.locator("tbody tr")

        assert rows.count() == 60
        first = engines.engines[0]
        assert rows.nth(20).locator("td").all_inner_texts()[1:] == [
            str(first.done[20]),
            str(first.tokens[20]),
            str(first.retries[20]),
        ]


def test_a_second_session_is_marked(watch: Watch) -> None:
    with made_up_run(run_of(10), engines=engines_of()) as made:
        page = watch.open(f"{made.url}#/engines")

        page.get_by_text(re.compile("20 min at work in 2 sessions")).wait_for()
        assert page.locator(".mark title", has_text="Session 2 begins").count() == 8


def test_the_charts_follow_a_run_at_work(watch: Watch) -> None:
    with made_up_run(run_of(10, planned=20, is_live=True), engines=engines_of(60)) as made:
        page = watch.open(f"{made.url}#/engines")
        page.get_by_text("5 min at work").wait_for()
        assert made.followed.wait(LIMIT_S)
        made.push("engines", engines_of(120))

        page.get_by_text("10 min at work").wait_for()


def test_a_run_without_requests_says_so(watch: Watch) -> None:
    with made_up_run(run_of(0, planned=3), engines=EnginesPage(1.0, 0.0, (), ())) as made:
        page = watch.open(f"{made.url}#/engines")

        page.get_by_text("No request has been sent yet.").wait_for()


def test_the_engines_of_real_games_are_shown(watch: Watch, at_games: str) -> None:
    page = watch.open(at_games)
    page.get_by_role("link", name="Engines").first.click()

    page.get_by_role("img", name="How many slots were in use?").wait_for()
