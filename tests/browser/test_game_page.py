"""The page of a conversation: what it shows, of whom, and how it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from mac_runner.types import JsonObject
from tests.browser.conftest import Served
from tests.browser.screens import Watch
from tests.cli.lab import Lab, scripted

if TYPE_CHECKING:
    from playwright.sync_api import Page, Response

_LONG_GAME = """\
from mac_runner import Ask, game

@game
def long(table):
    for number in range(5000):
        table.tell(f"Announcement {number}.", when=f"Day {number // 1000}")
    yield [Ask(name, "Say something.") for name in table.agents]
    return {}
"""
_EVENTS = "li.event"


def _goto(page: Page, url: str, place: str) -> None:
    """Opens the place `place`, such as `#/c/0`, of the pages at `url`."""
    page.goto(url)
    page.goto(url.partition("?")[0] + place)


def _texts(page: Page) -> list[str]:
    return [text.replace("\n", " ") for text in page.locator(".event-text").all_inner_texts()]


def _transcript(run: Path, number: int) -> JsonObject:
    (path,) = sorted((run / "transcripts").glob(f"*{number:06d}.json"))
    content: JsonObject = json.loads(path.read_bytes())
    return content


def _events(transcript: JsonObject, seat: str = "") -> list[str]:
    """The texts of the events of a transcript, or those that a seat saw."""
    record = transcript["record"]
    assert isinstance(record, dict)
    return [
        event["text"].replace("\n\n", " ").replace("\n", " ")  # type: ignore[index, union-attr, call-overload]
        for event in record["events"]  # type: ignore[union-attr]
        if not seat or event["audience"] == "all" or seat in event["audience"]  # type: ignore[index, operator, call-overload]
    ]


def _current(page: Page) -> int:
    """The number of the current event."""
    return int((page.locator(f"{_EVENTS}[aria-current=true]").get_attribute("id") or "e-1").removeprefix("e"))


def test_every_event_is_on_the_page_in_order(page: Page, served: Served, games: Path) -> None:
    _goto(page, served(games), "#/c/0")
    page.locator(_EVENTS).first.wait_for()

    assert _texts(page) == _events(_transcript(games, 0))


def test_page_of_a_seat_has_what_the_seat_saw_and_the_server_sends_nothing_else(
    page: Page, served: Served, games: Path
) -> None:
    url = served(games)
    transcript = _transcript(games, 0)
    seats = [agent["agent_id"] for agent in transcript["task"]["agents"]]  # type: ignore[index, call-overload, union-attr]
    _goto(page, url, "#/c/0")
    page.locator(_EVENTS).first.wait_for()
    page.goto(f"{url.partition('?')[0]}#/engines")
    bodies: list[str] = []

    def keep(response: Response) -> None:
        if "/api/c/" in response.url:
            bodies.append(response.text())

    page.on("response", keep)
    for seat in seats[:3]:
        bodies.clear()
        _goto(page, url, f"#/c/0?seat={quote(str(seat))}")
        page.get_by_text(f"As {seat} saw it.").wait_for()
        assert _texts(page) == _events(transcript, str(seat))
        unseen = set(_events(transcript)) - set(_events(transcript, str(seat)))
        assert unseen and not [text for text in unseen if any(json.dumps(text)[1:-1] in body for body in bodies)]


def test_deep_link_comes_back_after_a_reload_and_the_back_button_goes_one_step_back(
    page: Page, served: Served, games: Path
) -> None:
    _goto(page, served(games), "#/c/1?e=60&seat=")
    page.locator("#e60[aria-current=true]").wait_for()
    assert page.locator("#e60").evaluate("(row) => row.getBoundingClientRect().bottom < innerHeight")

    page.locator("#e61 .place").click()
    page.locator("#e61[aria-current=true]").wait_for()
    where = page.url
    page.reload()
    page.locator("#e61[aria-current=true]").wait_for()
    assert page.url == where
    page.go_back()
    page.locator("#e60[aria-current=true]").wait_for()


def test_keys_go_through_events_phases_seats_and_conversations(page: Page, served: Served, games: Path) -> None:
    _goto(page, served(games), "#/c/0")
    page.locator(_EVENTS).first.wait_for()
    page.locator("main").press("j")
    page.keyboard.press("j")
    page.locator("#e1[aria-current=true]").wait_for()
    page.keyboard.press("k")
    page.locator("#e0[aria-current=true]").wait_for()
    page.keyboard.press("n")
    page.locator(f"{_EVENTS}[aria-current=true]:not(#e0)").wait_for()
    assert _current(page) > 1
    page.keyboard.press("p")
    page.locator("#e0[aria-current=true]").wait_for()

    page.keyboard.press("s")
    page.locator(".seat-banner").wait_for()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("sun rises")
    page.wait_for_function("document.querySelectorAll('li.event').length < 20")
    assert all("sun rises" in text for text in _texts(page))
    page.locator("h1").click()
    page.keyboard.press("]")
    page.get_by_role("heading", name="Conversation 1").wait_for()
    page.keyboard.press("[")
    page.get_by_role("heading", name="Conversation 0").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("next event").wait_for()


def test_turn_of_an_event_opens_with_its_reply_prompt_and_what_is_new_in_it(
    page: Page, served: Served, games: Path
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    _goto(page, served(games), "#/c/0")
    turn = _late_turn(_transcript(games, 0))
    page.locator(_EVENTS).first.wait_for()
    _goto(page, page.url, f"#/c/0?t={quote(str(turn['turn']), safe='')}")

    panel = page.get_by_role("complementary", name="Turn")
    panel.get_by_role("heading", name=str(turn["turn"])).wait_for()
    assert str(turn["reply"]["text"]) in panel.inner_text()  # type: ignore[index, call-overload]
    panel.get_by_role("tab", name="Prompt", exact=True).click()
    assert "Town of Salem" in panel.get_by_role("tabpanel").inner_text()
    panel.get_by_role("tab", name="New in the prompt").click()
    assert panel.locator("ins").count() > 0
    panel.get_by_role("button", name="unchanged characters").first.click()
    panel.get_by_role("button", name="Copy: Draw again").click()
    panel.get_by_text("copied").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command.startswith(f"mac-run fork {games} 0 --turn {turn['turn']} --out ") or " 0 --turn " in command


def test_turn_of_another_seat_is_refused_on_a_page_of_a_seat(
    watch: Watch, page: Page, served: Served, games: Path
) -> None:
    watch.allow("40[034]")
    transcript = _transcript(games, 0)
    turn = _late_turn(transcript)
    seats = [agent["agent_id"] for agent in transcript["task"]["agents"]]  # type: ignore[index, call-overload, union-attr]
    other = next(seat for seat in seats if seat != turn["agent"])
    _goto(page, served(games), f"#/c/0?seat={other}&t={quote(str(turn['turn']), safe='')}")

    panel = page.get_by_role("complementary", name="Turn")
    panel.locator(".bad").wait_for()
    assert str(turn["reply"]["text"]) not in page.content()  # type: ignore[index, call-overload]


def test_notes_and_thoughts_can_be_hidden_and_the_link_keeps_it(page: Page, served: Served, games: Path) -> None:
    _goto(page, served(games), "#/c/0")
    page.locator(".chip, .truth").first.wait_for()
    for box in page.locator(".toolbar .toggle input").all():
        box.uncheck()

    page.wait_for_function("document.querySelectorAll('.chip, .truth, .feed .thought').length === 0")
    page.reload()
    page.locator(_EVENTS).first.wait_for()
    assert page.locator(".chip, .truth, .feed .thought").count() == 0


def test_tables_link_to_their_events_and_lists_sort(page: Page, served: Served, games: Path) -> None:
    _goto(page, served(games), "#/c/0?v=tables")
    page.locator(".table-view.matrix td a").first.wait_for()
    table = page.locator(".table-view.list table").first
    table.locator("button.sort").first.click()
    heads = table.locator("tbody th").all_inner_texts()
    assert table.locator("th[aria-sort=ascending]").count() == 1
    assert heads == sorted(heads)

    page.locator(".table-view.matrix td a").first.click()
    page.locator(f"{_EVENTS}[aria-current=true]").wait_for()


def test_environment_of_a_plugin_has_a_page_without_code_of_its_own(
    page: Page, served: Served, village: Path
) -> None:
    transcript = _transcript(village, 0)
    _goto(page, served(village), "#/c/0")
    page.locator(_EVENTS).first.wait_for()
    assert _texts(page) == _events(transcript)
    assert page.locator(".roster tbody tr").count() == 7

    page.locator(f"{_EVENTS}.has-turn .event-text").first.click()
    panel = page.get_by_role("complementary", name="Turn")
    panel.get_by_role("tab", name="Prompt", exact=True).click()
    assert "--trust" in panel.get_by_role("tabpanel").inner_text()


def test_failed_conversation_says_why(page: Page, served: Served, broken: Path) -> None:
    failed = next(
        json.loads(path.read_bytes())
        for path in sorted((broken / "transcripts").glob("*.json"))
        if json.loads(path.read_bytes())["status"] == "failed"
    )
    _goto(page, served(broken), f"#/c/{failed['task']['index']}")

    page.get_by_role("alert").get_by_text("the game has a bug").wait_for()
    assert page.locator(".status-failed").inner_text() == "failed"


def test_conversation_that_is_not_there_is_an_error_with_a_way_out(
    watch: Watch, page: Page, served: Served, games: Path
) -> None:
    watch.allow("404")
    _goto(page, served(games), "#/c/99")
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


def test_five_thousand_events_are_windowed_and_reached_by_link_key_and_search(
    page: Page, served: Served, long: Path
) -> None:
    _goto(page, served(long), "#/c/0?e=4321")
    page.locator("#e4321[aria-current=true]").wait_for()
    assert page.locator("#e4321").evaluate(
        "(row) => { const box = row.getBoundingClientRect(); return box.top > 0 && box.bottom < innerHeight }"
    )
    assert page.locator(_EVENTS).count() < 400

    page.keyboard.press("n")
    page.wait_for_function("document.getElementById('e5000') ?? document.getElementById('e4999')")
    page.evaluate("scrollTo(0, 0)")
    page.locator("#e0").wait_for()
    assert page.locator(_EVENTS).count() < 400
    page.get_by_role("searchbox").fill("announcement 2718.")
    page.locator("#e2718").wait_for()
    assert _texts(page) == ["Announcement 2718."]
