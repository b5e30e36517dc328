"""What a page must show, read from the transcript itself; and how tests go to a place of the pages."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

EVENTS = "li.event"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A transcript of a run, as its file has it."""

    content: dict[str, Any]

    @property
    def index(self) -> int:
        """Its number in the run."""
        return int(self.content["task"]["index"])

    @property
    def seats(self) -> list[str]:
        """The names of the agents."""
        return [str(agent["agent_id"]) for agent in self.content["task"]["agents"]]

    @property
    def answers(self) -> dict[str, list[str | None]]:
        """Of a discussion: the answers of each participant by round."""
        return dict(self.content["outcome"]["answers"])

    def texts(self, seat: str = "") -> list[str]:
        """The texts of its events, or of those that a seat saw, each in one line."""
        events = self.content["record"]["events"]
        return [
            one_line(event["text"])
            for event in events
            if not seat or event["audience"] == "all" or seat in event["audience"]
        ]

    def turn(self, place: int) -> tuple[str, str, str]:
        """The key, the agent and the reply of a turn by its place."""
        turn = self.content["turns"][place]
        return str(turn["turn"]), str(turn["agent"]), str(turn["reply"]["text"])


def recorded(run: Path) -> list[Recorded]:
    """The transcripts of a run in order."""
    return [Recorded(json.loads(path.read_bytes())) for path in sorted((run / "transcripts").glob("*.json"))]


def one_line(text: str) -> str:
    """The text with every stretch of white space as one blank."""
    return re.sub(r"\s+", " ", text).strip()


def goto(page: Page, url: str, place: str) -> None:
    """Open the pages at `url`, then the place such as `#/c/0`."""
    page.goto(url)
    page.goto(url.partition("?")[0] + place)


def shown(page: Page) -> list[str]:
    """The texts of the events on the page."""
    page.locator(EVENTS).first.wait_for()
    return [one_line(text) for text in page.locator(".event-text").all_inner_texts()]


def current(page: Page, place: int) -> None:
    """Wait until an event is the current one."""
    page.locator(f"#e{place}[aria-current=true]").wait_for()


def is_on_screen(page: Page, place: int) -> bool:
    """Whether an event is in the window."""
    box = page.locator(f"#e{place}").bounding_box()
    size = page.viewport_size
    return box is not None and size is not None and box["y"] > 0 and box["y"] + box["height"] < size["height"]
