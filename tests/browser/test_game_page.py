"""The pages of conversations: what they show, of whom, and how they are read, served or published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.browser.conftest import Published
from tests.browser.screens import EVENTS, Watch, current, goto, is_on_screen, recorded, shown

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def _panel(page: Page) -> Locator:
    """The panel of a turn."""
    return page.get_by_role("complementary", name="Turn")


def _turn(key: str) -> str:
    return quote(key, safe="")


def test_every_event_is_on_the_page_in_order(page: Page, games: Path, at_games: str) -> None:
    goto(page, at_games, "#/c/0")

    assert shown(page) == recorded(games)[0].texts()


def test_page_of_a_seat_has_what_the_seat_saw_and_asks_for_nothing_else(page: Page, games: Path, at_games: str) -> None:
    game = recorded(games)[0]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/c/" in request.url else None)

    for seat in game.seats[:3]:
        with page.expect_response(lambda response: "/api/c/0?" in response.url) as answered:
            goto(page, at_games, f"#/c/0?seat={quote(seat)}")
        page.get_by_text(f"As {seat} saw it.").wait_for()
        body = answered.value.text()
        assert shown(page) == game.texts(seat)
        unseen = set(game.texts()) - set(game.texts(seat))
        assert len(unseen) > 10
        assert not [text for text in unseen if json.dumps(text, ensure_ascii=False)[1:-1] in body]
        assert page.locator(".chip, .truth, .area").count() == 0
        for key in "ji":
            page.keyboard.press(key)
        assert [url for url in asked if f"seat={quote(seat)}" not in url] == []
        assert len([url for url in asked if "/api/c/0?" in url]) == 1
        asked.clear()


def test_deep_link_comes_back_after_a_reload_and_back_goes_one_step_back(page: Page, at_games: str) -> None:
    goto(page, at_games, "#/c/1?e=60")
    current(page, 60)
    assert is_on_screen(page, 60)

    page.locator("#e61 .place").click()
    current(page, 61)
    where = page.url
    page.reload()
    current(page, 61)
    assert page.url == where
    page.go_back()
    current(page, 60)


def test_keys_go_through_events_phases_seats_and_conversations_and_to_the_search(page: Page, at_games: str) -> None:
    goto(page, at_games, "#/c/0")
    page.locator(EVENTS).first.wait_for()
    for key, place in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("p", 0)):
        page.keyboard.press(key)
        current(page, place)
    page.keyboard.press("n")
    page.locator(f"{EVENTS}[aria-current=true]:not(#e0)").wait_for()
    first = page.locator(".phase").nth(1).locator(EVENTS).first.get_attribute("id")
    assert page.locator(f"{EVENTS}[aria-current=true]").get_attribute("id") == first

    page.keyboard.press("s")
    page.locator(".seat-banner").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("the sun rises")
    page.wait_for_function("document.querySelectorAll('li.event').length < 20")
    assert {text.casefold() for text in shown(page)} == {"the sun rises."}

    page.locator("h1").click()
    for key, link, number in (("]", "1 →", 1), ("[", "← 0", 0)):
        page.get_by_role("link", name=link).wait_for()
        page.keyboard.press(key)
        page.get_by_role("heading", name=f"Conversation {number}").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("next event").wait_for()


def test_turn_opens_with_its_reply_its_prompt_and_what_is_new_in_it(page: Page, games: Path, at_games: str) -> None:
    key, agent, reply = recorded(games)[0].turn(60)
    goto(page, at_games, f"#/c/0?t={_turn(key)}")
    panel = _panel(page)
    panel.get_by_role("heading", name=key).wait_for()
    assert reply in panel.inner_text()
    assert agent in panel.locator(".numbers").inner_text()

    panel.get_by_role("tab", name="Prompt", exact=True).click()
    whole = panel.get_by_role("tabpanel").inner_text()
    assert "Town of Salem" in whole
    panel.get_by_role("tab", name="New in the prompt").click()
    assert panel.locator("ins").count() > 0
    assert all(text.strip() in whole for text in panel.locator("ins").all_inner_texts()[:3])
    folded = len(panel.get_by_role("tabpanel").inner_text())
    panel.get_by_role("button", name="unchanged characters").first.click()
    assert len(panel.get_by_role("tabpanel").inner_text()) > folded

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.get_by_role("button", name="Copy: Draw again").click()
    panel.get_by_text("copied").wait_for()
    words = page.evaluate("navigator.clipboard.readText()").split()
    assert words[:2] == ["mac-run", "fork"]
    assert words[3:7] == ["0", "--turn", key, "--out"]


def test_turn_of_another_seat_is_refused_on_the_page_of_a_seat(
    watch: Watch, page: Page, games: Path, at_games: str
) -> None:
    watch.allow("40[034]")
    game = recorded(games)[0]
    key, agent, _ = game.turn(60)
    other = next(seat for seat in game.seats if seat != agent)
    goto(page, at_games, f"#/c/0?seat={other}&t={_turn(key)}")

    _panel(page).locator(".bad").wait_for()
    assert _panel(page).get_by_role("tab").count() == 0


def test_notes_can_be_hidden_and_the_link_keeps_it(page: Page, at_games: str) -> None:
    goto(page, at_games, "#/c/0")
    page.locator(".chip, .truth").first.wait_for()
    for box in page.locator(".toolbar .toggle input").all():
        box.uncheck()
    page.wait_for_function("!document.querySelector('.chip, .truth')")

    page.reload()
    page.locator(EVENTS).first.wait_for()
    assert page.locator(".chip, .truth").count() == 0


def test_matrices_link_to_their_events_and_lists_sort(page: Page, at_games: str) -> None:
    goto(page, at_games, "#/c/0?v=tables")
    table = page.locator(".table-view.list table").first
    table.locator("button.sort").first.click()
    table.locator("th[aria-sort=ascending]").wait_for()
    heads = table.locator("tbody th").all_inner_texts()
    assert heads == sorted(heads)

    page.locator(".table-view.matrix td a").first.click()
    page.locator(f"{EVENTS}[aria-current=true]").wait_for()


def test_environment_of_a_plugin_has_a_page_without_code_of_its_own(page: Page, village: Path, at_village: str) -> None:
    game = recorded(village)[0]
    goto(page, at_village, "#/c/0")
    assert shown(page) == game.texts()
    assert page.locator(".roster li").count() == len(game.seats)

    page.locator(f"{EVENTS}.has-turn .event-text").first.click()
    _panel(page).get_by_role("tab", name="Prompt", exact=True).click()
    assert "--trust" in _panel(page).get_by_role("tabpanel").inner_text()


def test_failed_conversation_says_why(page: Page, broken: Path, at_broken: str) -> None:
    failed = next(one for one in recorded(broken) if one.content["status"] == "failed")
    goto(page, at_broken, f"#/c/{failed.index}")

    page.get_by_role("alert").get_by_text("the game has a bug").wait_for()
    assert page.locator(".status-failed").inner_text() == "failed"


def test_what_is_not_there_is_said_in_words_with_a_way_out(watch: Watch, page: Page, at_games: str) -> None:
    watch.allow("40[04]")
    for place, words in {"#/compare/0/1": "seed", "#/forks/0": "mac-run fork", "#/c/99": "no conversation"}.items():
        goto(page, at_games, place)
        page.locator("main").get_by_text(words).first.wait_for()

    page.get_by_role("link", name="Go to the run").click()
    page.wait_for_url("**/#/")


def test_five_thousand_events_are_windowed_and_reached_by_link_key_scroll_and_search(page: Page, at_long: str) -> None:
    goto(page, at_long, "#/c/0?e=3321")
    current(page, 3321)
    page.wait_for_function("document.querySelectorAll('li.event').length > 40")
    assert is_on_screen(page, 3321)
    assert page.locator(EVENTS).count() < 400

    page.keyboard.press("n")
    current(page, 4000)
    page.mouse.move(700, 600)
    page.mouse.wheel(0, -1_000_000)
    page.locator("#e0").wait_for()
    assert page.locator(EVENTS).count() < 400
    page.get_by_role("searchbox").fill("announcement 2718.")
    page.locator("#e2718").wait_for()
    assert shown(page) == ["Announcement 2718."]


def test_forks_of_a_turn_open_beside_their_parent_with_equal_events_folded(page: Page, at_fork: str) -> None:
    goto(page, at_fork, "#/forks")
    page.locator(".arms tbody tr").first.wait_for()
    draws = page.locator(".arms .draws a")
    assert draws.count() == 2
    draws.last.click()
    page.locator("table.compared").wait_for()
    page.get_by_text("From here on they differ").wait_for()

    folded = page.locator(".compared tr.is-equal").count()
    page.get_by_role("button", name="equal events").click()
    page.wait_for_function(f"document.querySelectorAll('.compared tr.is-equal').length > {folded}")
    for row in page.locator(".compared tr.is-equal").all():
        left, right = row.locator(".event-text").all_inner_texts()
        assert left == right

    for side in (1, 2):
        page.locator(f".compared tr.differs td:nth-child({side}) .when a").first.click()
        _panel(page).get_by_role("tablist").wait_for()
        page.locator("td.is-current").first.wait_for()


@pytest.fixture
def talk(talks: Path) -> Path:
    """A combination of the grid."""
    return talks / sorted(talks.glob("experiments/*.yaml"))[0].stem


def test_stances_stand_by_round_with_verdicts_in_words_and_open_their_events(
    page: Page, talk: Path, at_talks: str
) -> None:
    goto(page, at_talks, f"#/r/{talk.name}/c/0")
    table = page.locator(".table-view.rounds table")
    table.wait_for()

    answers = recorded(talk)[0].answers
    rows = table.locator("tbody tr")
    assert rows.count() >= len(answers)
    for name, given in answers.items():
        row = rows.filter(has=page.get_by_role("rowheader", name=name))
        shown = [cell.strip()[:1] for cell in row.locator("td").all_inner_texts()]
        assert shown == [answer or shown[place] for place, answer in enumerate(given)], name
    words = {text.strip() for text in table.locator("td .verdict .hidden-text").all_text_contents()}
    assert words
    assert words <= {"right", "wrong", "biased"}

    table.locator("td a").first.click()
    page.locator(f"{EVENTS}[aria-current=true]").wait_for()


def test_arrows_name_who_changed_after_reading_whom(page: Page, talk: Path, at_talks: str) -> None:
    for number in range(4):
        goto(page, at_talks, f"#/r/{talk.name}/c/{number}")
        page.get_by_role("heading", name=f"Conversation {number}").wait_for()
        if page.locator(".arrow").count():
            break
    arrows = page.locator(".arrow").count()
    assert arrows > 0, "no discussion of the run has a change that counts"

    page.get_by_text("after reading another").click()
    assert page.locator(".arrow-list li").count() == arrows


def test_flow_counts_every_step_of_every_participant_once_and_follows_a_filter(
    page: Page, talk: Path, at_talks: str
) -> None:
    goto(page, at_talks, f"#/r/{talk.name}/flow")
    page.locator(".alluvial .band").first.wait_for()
    page.get_by_text("As a table").click()
    cells = page.locator(".flow details td.num")
    cells.first.wait_for()
    counts = [int(text) for text in cells.all_inner_texts()]

    given = [answers for each in recorded(talk) for answers in each.answers.values()]
    assert sum(counts) == sum(len(answers) - 1 for answers in given)
    rounds = max(len(answers) for answers in recorded(talk)[0].answers.values())
    assert page.locator(".alluvial .round-label").count() == rounds

    page.get_by_text("4 conversations").wait_for()
    page.get_by_role("searchbox").fill("number<1")
    page.keyboard.press("Enter")
    page.get_by_text("1 conversation").wait_for()
    page.reload()
    page.get_by_text("1 conversation").wait_for()


@pytest.mark.parametrize("way", ["double click", "host"])
def test_publication_opens(
    watch: Watch, published: Published, host: Callable[[Path], str], games: Path, way: str
) -> None:
    folder = published(games)
    url = host(folder) if way == "host" else f"{folder.as_uri()}/index.html"

    page = watch.open(url)
    page.get_by_text("2 of 2 ended").first.wait_for()
    page.get_by_role("link", name="Engines").first.click()
    page.get_by_text("How many requests were in flight?").first.wait_for()
    page.go_back()
    page.get_by_text("2 of 2 ended").first.wait_for()


def test_link_into_a_publication_leads_to_the_same_screen(watch: Watch, published: Published, games: Path) -> None:
    place = f"{published(games).as_uri()}/index.html#/c/1?seat=Obadiah&e=3"
    page = watch.open(place)
    page.get_by_text("As Obadiah saw it").first.wait_for()
    page.get_by_role("link", name="← 0").wait_for()
    shown = page.locator("main").inner_text()

    page.reload()

    page.get_by_text("As Obadiah saw it").first.wait_for()
    page.get_by_role("link", name="← 0").wait_for()
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

    goto(page, at_fork, "#/c/1")
    pager = page.get_by_role("navigation", name="Conversations").get_by_role("link")
    expect(pager).to_have_text(["← 0"])
    parent = page.get_by_text("Fork of").inner_text().split()[2]
    goto(page, at_fork.partition("?")[0], f"#/c/{parent}")
    page.get_by_role("heading", name=parent).wait_for()
    expect(pager).to_have_count(0)
