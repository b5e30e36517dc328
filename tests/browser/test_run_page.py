"""The pages of a run: its list of conversations, however long, its engines, and what a reader does with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mac_runner.view_model import CombinationView, EnginesPage, IndexColumns, NumberColumn, RunPage
from tests.browser.conftest import MakeUp
from tests.browser.made_up import MadeUpRun, engines_of, index_of, rows_of, run_of
from tests.browser.screens import Watch
from tests.kit import known
from tests.patience import LIMIT_S

if TYPE_CHECKING:
    from playwright.sync_api import Page

MANY = 100_000
INDEX_BYTES_MAX = 2_000_000
FIRST_ROWS_MS_MAX = 1000
CHANGE_MS_MAX = 100
SLACK = 2
"""How much slower than the budgets a machine may be that is busy with other tests."""
CHANGES = ("s=-tokens", "s=winner", "s=-open_s", "f=days>5", "f=days>5+winner=town", "f=draw&s=-days", "")
_CHANGE = """async (change) => {
  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  location.hash = `#/?${change}`;
  await drawn();
  await drawn();
}"""


@pytest.fixture
def some(make_up: MakeUp) -> MadeUpRun:
    return make_up(run_of(300, planned=500, is_live=True, failed=3), index_of(300))


@pytest.fixture
def page(some: MadeUpRun, watch: Watch) -> Page:
    """The page of these 300 conversations, which follows their run."""
    page = watch.open(some.url)
    _count(page, "300")
    assert some.followed.wait(LIMIT_S)
    return page


def test_a_hundred_thousand_conversations_are_sent_once_and_few_of_them_drawn(make_up: MakeUp, watch: Watch) -> None:
    made = make_up(run_of(MANY, failed=1000), index_of(MANY))
    page = watch.open(made.url)
    _count(page, "100,000")
    for change in CHANGES:
        page.evaluate(_CHANGE, change)

    assert len(made.answers["/api/index"]) <= INDEX_BYTES_MAX
    assert page.locator(".rows tbody tr").count() < 80


@pytest.mark.nightly
def test_a_hundred_thousand_conversations_are_within_the_budgets(make_up: MakeUp, watch: Watch) -> None:
    """In CPU time of the page's thread: what it takes on a machine that does nothing else."""
    page = watch.open()
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")

    def spent_ms() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return 1000 * next(float(one["value"]) for one in metrics if one["name"] == "ThreadTime")

    changes: dict[str, float] = {}
    page.goto(make_up(run_of(MANY, failed=1000), index_of(MANY)).url)
    _count(page, "100,000")
    first_rows_ms = spent_ms()
    for change in CHANGES:
        before = spent_ms()
        page.evaluate(_CHANGE, change)
        changes[change] = spent_ms() - before

    assert first_rows_ms < FIRST_ROWS_MS_MAX * SLACK
    assert {change: took for change, took in changes.items() if took > CHANGE_MS_MAX * SLACK} == {}


def test_the_list_shows_the_last_of_a_million_rows_when_it_is_scrolled_to_its_end(
    make_up: MakeUp, watch: Watch
) -> None:
    count = 1_000_000
    columns = IndexColumns(0, count, {}, {}, {"number": NumberColumn(tuple(range(count)))})
    page = watch.open(make_up(run_of(count), columns).url)
    _count(page, "1,000,000")
    page.locator(".rows").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")

    page.get_by_role("link", name="999999", exact=True).wait_for()
    assert page.locator(".rows").evaluate("(box) => box.scrollHeight") < 17_000_000


def test_the_list_says_how_much_of_it_was_read_and_keeps_its_filter_meanwhile(make_up: MakeUp, watch: Watch) -> None:
    whole = run_of(600)
    made = make_up(msgspec.structs.replace(whole, is_reading=True), index_of(200))
    page = watch.open(made.url)
    page.get_by_text("reading 200 of 600").wait_for()
    page.get_by_role("searchbox").fill("number>=100")
    _count(page, "100 of 200")
    assert made.followed.wait(LIMIT_S)
    made.push("rows", index_of(600))
    _count(page, "500 of 600")
    made.push("standing", whole)
    page.get_by_text("reading").wait_for(state="detached")

    assert page.get_by_role("searchbox").input_value() == "number>=100"


def test_filters_order_and_columns_are_in_the_address_and_come_back_with_it(page: Page, watch: Watch) -> None:
    page.get_by_role("searchbox").fill("days>5 status=finished")
    _count(page, " of 300")
    page.get_by_role("button", name="turns").click()
    page.get_by_role("button", name="turns").click()
    page.get_by_role("button", name="All columns").click()
    page.get_by_role("columnheader", name="id", exact=True).wait_for()

    other = watch.open(page.url)
    _count(other, " of 300")

    assert _cells(other) == _cells(page)
    assert other.get_by_role("columnheader", name="turns").get_attribute("aria-sort") == "descending"
    assert other.get_by_role("searchbox").input_value() == "days>5 status=finished"


def test_a_chip_adds_its_word_to_the_filter_and_takes_it_away(page: Page) -> None:
    from playwright.sync_api import expect

    chips = page.get_by_role("group", name="Only with this winner")
    town, mafia = (chips.get_by_role("button", name=name) for name in ("town", "mafia"))
    town.click()
    _count(page, " of 300")

    expect(page.get_by_role("searchbox")).to_have_value("winner=town")
    assert all("town" in row[2] for row in _cells(page))
    expect(town).to_have_attribute("aria-pressed", "true")
    mafia.click()
    expect(page.get_by_role("searchbox")).to_have_value("winner=town|mafia")
    town.click()
    mafia.click()
    _count(page, "300")
    expect(page.get_by_role("searchbox")).to_have_value("")


def test_the_histogram_narrows_the_list_by_pointer_and_by_keyboard(page: Page) -> None:
    from playwright.sync_api import expect

    page.get_by_role("slider", name="Least days").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("searchbox")).to_have_value("days>=5 days<=11")
    assert min(int(row[4]) for row in _cells(page)) == 5

    box = known(page.locator(".histogram svg").bounding_box())
    page.mouse.move(box["x"] + 2, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 30)
    page.mouse.up()

    expect(page.get_by_role("searchbox")).to_have_value("days>=3 days<=4")
    assert {row[4] for row in _cells(page)} == {"3", "4"}


FAULTS = {
    "winers=town": "There is no column “winers”.",
    "days>five": "days is a number and “five” is not",
    "winner>town": "winner has no order",
    "lied=perhaps": "lied is yes or no, and “perhaps” is neither",
    "status=open": "status is finished or failed, not “open”",
    "days>": "is compared with nothing",
}


def test_what_is_wrong_with_a_filter_stands_beside_it_and_the_list_stays(page: Page) -> None:
    for text, words in FAULTS.items():
        page.get_by_role("searchbox").fill(text)
        page.locator("#filter-error").get_by_text(words).wait_for()
        _count(page, "300")


FILTERS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "days>5": lambda row: row["days"] is not None and row["days"] > 5,
    "days!=5": lambda row: row["days"] is not None and row["days"] != 5,
    "days=3|4": lambda row: row["days"] in (3, 4),
    "winner=TOWN": lambda row: "town" in row["winner"],
    "winner!=town": lambda row: bool(row["winner"]) and "town" not in row["winner"],
    "ending:out": lambda row: row["ending"] == "out of days",
    'ending="out of days"': lambda row: row["ending"] == "out of days",
    "failed": lambda row: row["status"] == "failed",
    "lied": lambda row: row["lied"] == 1,
    "lied=no": lambda row: row["lied"] == 0,
    "STALE": lambda row: row["ending"] == "stalemate",
    "days<=4 winner=town failed": lambda _row: False,
}


def test_filters_choose_the_rows_that_they_name(page: Page) -> None:
    from playwright.sync_api import expect

    for text, holds in FILTERS.items():
        expected = sum(1 for row in rows_of(300) if holds(row))
        page.get_by_role("searchbox").fill(text)
        page.wait_for_function("(text) => new URLSearchParams(location.hash.split('?')[1]).get('f') === text", arg=text)

        expect(page.locator(".count"), text).to_have_text(f"{expected} of 300")


def test_conversations_that_end_appear_and_the_order_stays(some: MadeUpRun, page: Page) -> None:
    page.evaluate(_CHANGE, "s=-number")
    some.push("touched", [300, 301])
    page.get_by_text("At work:").wait_for()
    some.push("rows", index_of(40, since=300))
    some.push("standing", run_of(340, planned=500, is_live=True, failed=3))
    _count(page, "340")
    page.get_by_text("340 of 500 ended").wait_for()
    page.get_by_text("At work:").wait_for(state="detached")

    assert [row[0] for row in _cells(page)][:3] == ["339", "338", "337"]


def test_rows_that_a_page_missed_are_asked_for_and_another_version_replaces_the_list(
    some: MadeUpRun, page: Page
) -> None:
    page.evaluate(_CHANGE, "s=-number")
    some.answer("/api/index", index_of(20, since=300))
    some.push("rows", index_of(5, since=315))
    _count(page, "320")
    assert some.asked[-1] == "/api/index?since=300&version=0"

    some.push("rows", msgspec.structs.replace(index_of(200), version=1))
    _count(page, "200")
    some.answer("/api/index", msgspec.structs.replace(index_of(250), version=2))
    some.push("rows", msgspec.structs.replace(index_of(10, since=240), version=2))
    _count(page, "250")
    assert [row[0] for row in _cells(page)][:2] == ["249", "248"]


def test_a_run_that_cannot_be_read_for_a_while_keeps_its_page_and_says_why(some: MadeUpRun, page: Page) -> None:
    some.push("trouble", {"error": "runs/a was moved"})
    page.get_by_role("alert").get_by_text("runs/a was moved").wait_for()
    _count(page, "300")
    some.push("trouble", {})

    page.get_by_role("alert").wait_for(state="detached")


def test_keys_move_through_the_list_and_open_a_conversation(page: Page, watch: Watch) -> None:
    watch.allow("404")
    page.keyboard.press("/")
    assert page.get_by_role("searchbox").evaluate("(field) => field === document.activeElement")
    page.keyboard.press("Escape")
    for key in "jjjk":
        page.keyboard.press(key)
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("next row").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")

    page.wait_for_url(re.compile(r"#/c/1$"))


STATES = {
    "no conversation yet": (run_of(0, planned=10, is_live=True), "No conversation has ended yet"),
    "nothing was played": (run_of(0, planned=10), "No conversation has ended in this run"),
    "one conversation": (run_of(1), "1 of 1 ended"),
    "all failed": (run_of(3, failed=3), "3 failed"),
}


def test_each_state_of_a_run_is_said_in_words(make_up: MakeUp, watch: Watch) -> None:
    for name, (run, words) in STATES.items():
        page = watch.open(make_up(run, index_of(run.done)).url)
        page.get_by_text(words).first.wait_for()
        assert page.locator("h1").inner_text() == "tos_100games", name


def test_a_server_that_fails_is_named_in_place_of_the_run(make_up: MakeUp, watch: Watch) -> None:
    watch.allow("404")
    made = make_up(run_of(1))
    del made.answers["/api/run"]

    watch.open(made.url).get_by_role("alert").get_by_text("there is no such page").wait_for()


def test_a_grid_lists_its_combinations_by_any_figure(make_up: MakeUp, watch: Watch) -> None:
    combinations = tuple(
        CombinationView(f"parity-{n}", {"parity": str(n)}, 10, 10 - n, n, {"wins of town": f"0.{5 - n}1 [0.1, 0.6]"})
        for n in range(3)
    )
    grid = RunPage("grid", "runs/grid", "town_of_salem", "", "complete", 30, 27, 3, False, (), (), (), combinations)
    page = watch.open(make_up(grid).url)
    page.get_by_role("button", name="wins of town").click()
    page.wait_for_function("() => location.hash.includes('s=')")
    heads = page.locator(".combinations tbody th").all_inner_texts()
    with page.expect_request("**/api/run?run=parity-1"):
        page.get_by_role("link", name="parity-1").click()
    page.wait_for_url(re.compile(r"#/r/parity-1$"))

    assert heads == ["parity-2", "parity-1", "parity-0"]


def test_the_page_of_real_games_has_the_columns_of_their_environment(watch: Watch, at_games: str) -> None:
    page = watch.open(at_games)
    page.get_by_role("columnheader", name="winner").wait_for()
    page.get_by_role("link", name="1", exact=True).click()

    page.wait_for_url(re.compile(r"#/c/1$"))


def test_two_combinations_stand_side_by_side_by_number(watch: Watch, at_talks: str) -> None:
    page = watch.open(at_talks)
    page.locator(".combinations tbody th").first.wait_for()
    slugs = page.locator(".combinations tbody th").all_inner_texts()
    page.get_by_label("Left").select_option(slugs[0])
    page.get_by_label("Right").select_option(slugs[1])
    page.get_by_text("4 pairs of one seed").wait_for()
    page.get_by_role("link", name="compare").nth(2).click()

    page.wait_for_url(re.compile(rf"#/r/{re.escape(slugs[0])}/compare/2/2\?other={re.escape(slugs[1])}$"))
    page.get_by_role("heading", level=1).wait_for()


def _count(page: Page, text: str) -> None:
    """Waits until the count of the list ends with the text."""
    page.wait_for_function("(text) => document.querySelector('.count')?.textContent.endsWith(text)", arg=text)


def _cells(page: Page) -> list[list[str]]:
    """The texts of the rows that are drawn."""
    found: list[list[str]] = page.locator(".rows tbody tr:not(.space)").evaluate_all(
        "(rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return found


QUESTIONS = (
    "How many requests were in flight?",
    "How many tokens came back per second?",
    "How many replies came back per second?",
    "When were requests sent again?",
    "How long did a reply take?",
)


def test_each_engine_answers_each_question_in_a_chart_in_words_and_in_a_table(make_up: MakeUp, watch: Watch) -> None:
    from playwright.sync_api import expect

    engines = engines_of()
    page = watch.open(f"{make_up(run_of(10), engines=engines).url}#/engines")
    for model in ("townsfolk", "mafiosi"):
        engine = page.get_by_role("region", name=model)
        for question in QUESTIONS:
            engine.get_by_role("img", name=question).wait_for()
        assert engine.get_by_text("1.26 s / 2.48 s").is_visible()
        assert engine.get_by_text("71 %").is_visible()
    page.get_by_text("20 min at work in 2 sessions").wait_for()
    assert page.locator(".mark title", has_text="Session 2 begins").count() == 8

    page.get_by_text("As a table").first.click()
    rows = page.locator("details table").first.locator("tbody tr")
    first = engines.engines[0]
    expect(rows).to_have_count(len(first.done))
    cells = rows.nth(20).locator("td").all_inner_texts()[1:]
    assert cells == [str(column[20]) for column in (first.done, first.tokens, first.retries)]


def test_the_charts_follow_a_run_at_work_from_its_first_request(make_up: MakeUp, watch: Watch) -> None:
    made = make_up(run_of(10, planned=20, is_live=True), engines=EnginesPage(1.0, 0.0, (), ()))
    page = watch.open(f"{made.url}#/engines")
    page.get_by_text("No request has been sent yet.").wait_for()
    assert made.followed.wait(LIMIT_S)
    for bins, words in ((60, "5 min at work"), (120, "10 min at work")):
        made.push("engines", engines_of(bins))
        page.get_by_text(words).wait_for()


def test_the_engines_of_real_games_are_shown(watch: Watch, at_games: str) -> None:
    page = watch.open(at_games)
    page.get_by_role("link", name="Engines").first.click()

    page.get_by_role("img", name="How many requests were in flight?").wait_for()
