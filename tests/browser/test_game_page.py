"""The page of a conversation: what it shows, of whom, and how it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from mac_runner.types import JsonObject
from tests.browser.conftest import Served
from tests.browser.reading import EVENTS, current, goto, is_on_screen, recorded, shown
from tests.browser.screens import Watch
from tests.cli.lab import Lab, scripted

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

_LONG_GAME = """\
from mac_runner import Ask, game

@game
def long(table):
    for number in range(5000):
        table.tell(f"Announcement {number}.", when=f"Day {number // 1000}")
    yield [Ask(name, "Say something.") for name in table.agents]
    return {}
"""


def _panel(page: Page) -> Locator:
    """The panel of a turn."""
    return page.get_by_role("complementary", name="Turn")


def _turn(key: str) -> str:
    return quote(key, safe="")


def test_every_event_is_on_the_page_in_order(page: Page, games: Path, at_games: str) -> None:
    goto(page, at_games, "#/c/0")

    assert shown(page) == recorded(games)[0].texts()


def test_page_of_a_seat_has_what_the_seat_saw_and_the_server_sends_nothing_else(
    page: Page, games: Path, at_games: str
) -> None:
    game = recorded(games)[0]
    url = at_games
    bodies: list[str] = []
    page.on("response", lambda response: bodies.append(response.text()) if "/api/c/" in response.url else None)

    for seat in game.seats[:3]:
        goto(page, url, f"#/c/0?seat={quote(seat)}")
        page.get_by_text(f"As {seat} saw it.").wait_for()
        assert shown(page) == game.texts(seat)
        unseen = set(game.texts()) - set(game.texts(seat))
        assert len(unseen) > 10
        assert len(bodies) == 1
        assert not [text for text in unseen if json.dumps(text, ensure_ascii=False)[1:-1] in bodies[0]]
        assert page.locator(".chip, .truth, .area").count() == 0
        bodies.clear()


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


def test_keys_go_through_events_and_phases(page: Page, at_games: str) -> None:
    goto(page, at_games, "#/c/0")
    page.locator(EVENTS).first.wait_for()
    for key, place in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("p", 0)):
        page.keyboard.press(key)
        current(page, place)

    page.keyboard.press("n")
    page.locator(f"{EVENTS}[aria-current=true]:not(#e0)").wait_for()
    first = page.locator(".phase").nth(1).locator(EVENTS).first.get_attribute("id")
    assert page.locator(f"{EVENTS}[aria-current=true]").get_attribute("id") == first


def test_keys_go_through_seats_and_conversations_and_to_the_search(page: Page, at_games: str) -> None:
    goto(page, at_games, "#/c/0")
    page.locator(EVENTS).first.wait_for()
    page.keyboard.press("s")
    page.locator(".seat-banner").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("the sun rises")
    page.wait_for_function("document.querySelectorAll('li.event').length < 20")
    assert {text.casefold() for text in shown(page)} == {"the sun rises."}

    page.locator("h1").click()
    page.keyboard.press("]")
    page.get_by_role("heading", name="Conversation 1").wait_for()
    page.keyboard.press("[")
    page.get_by_role("heading", name="Conversation 0").wait_for()
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


def test_command_that_draws_a_turn_again_is_copied(page: Page, games: Path, at_games: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    key, _, _ = recorded(games)[1].turn(9)
    goto(page, at_games, f"#/c/1?t={_turn(key)}")
    _panel(page).get_by_role("button", name="Copy: Draw again").click()
    _panel(page).get_by_text("copied").wait_for()

    words = page.evaluate("navigator.clipboard.readText()").split()
    assert words[:2] == ["mac-run", "fork"]
    assert words[3:7] == ["1", "--turn", key, "--out"]


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


def test_conversation_that_is_not_there_is_an_error_with_a_way_out(watch: Watch, page: Page, at_games: str) -> None:
    watch.allow("404")
    goto(page, at_games, "#/c/99")
    page.get_by_role("alert").wait_for()

    page.get_by_role("link", name="Go to the run").click()
    page.wait_for_url("**/#/")


@pytest.fixture(scope="module")
def long(played: Lab) -> Path:
    """A conversation of five thousand events."""
    (played.path / "long.py").write_text(_LONG_GAME)
    content: JsonObject = {
        "experiment_metadata": {"experiment_name": "long"},
        "conversation_config": {"environment": "./long.py:long", "conversations": 1},
        "model_definitions": {"m": scripted("random")},
        "agent_definitions": [{"agent_id": "Abel", "role": "player", "model": "m"}],
    }
    played.done(played.write(content), "--quiet")
    return played.path / "runs" / "long"


def test_five_thousand_events_are_windowed_and_reached_by_link_key_scroll_and_search(
    page: Page, served: Served, long: Path
) -> None:
    goto(page, served(long), "#/c/0?e=3321")
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
