"""Pages in a real Chromium that are watched, and what they must show, read from the transcript itself."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import pytest

from tests.cli.lab import RunDir
from tests.patience import LIMIT_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request

CHROMIUM: Final = "/usr/bin/chromium"
FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
REQUIRED: Final = "MAC_RUNNER_BROWSER_TESTS"
"""Set to 1, a missing playwright is an error: `.ci/viewer` sets it."""
WIDTHS: Final = (1400, 800)
HEIGHT: Final = 900
PATIENCE_MS: Final = 1000 * LIMIT_S

Scheme = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")

_WITHIN: Final = {"data:", "blob:", "about:"}
# A violation is in the console too, but only once for each kind: this notes where it was.
_VIOLATIONS: Final = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. Skips the test where playwright is not installed, or fails it where it must be."""
    try:
        from playwright.sync_api import expect, sync_playwright
    except ImportError:
        if os.environ.get(REQUIRED) == "1":
            raise
        pytest.skip("playwright is not installed: pip install playwright, and Debian's package chromium")
    expect.set_options(timeout=PATIENCE_MS)
    # The end of this block ends the event loop of playwright too: other tests of this process have loops of their own.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield browser
        browser.close()


@dataclass(eq=False)
class Watch:
    """The troubles of the pages that a test opened."""

    browser: Browser
    troubles: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    def open(
        self,
        url: str = "",
        *,
        scheme: Scheme = "light",
        width: int = WIDTHS[0],
        bypass_csp: bool = False,
    ) -> Page:
        """A new page at `url`, with a profile of its own."""
        context = self.browser.new_context(
            viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, bypass_csp=bypass_csp, locale="en-GB"
        )
        self.contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(_VIOLATIONS)
        page = context.new_page()
        self._follow(context, page)
        if url:
            page.goto(url)
        return page

    def allow(self, pattern: str) -> None:
        """Troubles that a test brings about itself, such as the end of a server: a regular expression."""
        self.allowed.append(pattern)

    def close(self) -> None:
        """Close all pages. Raises AssertionError naming the troubles."""
        for context in self.contexts:
            context.close()
        found = [one for one in self.troubles if not any(re.search(pattern, one) for pattern in self.allowed)]
        assert not found, "in the browser:\n" + "\n".join(found[:20])

    def _follow(self, context: BrowserContext, page: Page) -> None:
        origins: set[str] = set()
        context.on("console", self._console)
        context.on("weberror", lambda fault: self._note("page error", str(fault.error)))
        context.on("request", partial(self._request, origins))
        context.on("page", lambda other: self._note("another page", other.url))
        page.on("dialog", self._dialog)
        page.on("download", lambda download: self._note("download", download.url))
        page.on("crash", lambda _page: self._note("crash", page.url))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self._note(f"console {message.type}", f"{message.text} {message.location.get('url', '')}")

    def _dialog(self, dialog: Dialog) -> None:
        self._note("dialog", dialog.message)
        dialog.dismiss()

    def _request(self, origins: set[str], request: Request) -> None:
        parts = urlsplit(request.url)
        if f"{parts.scheme}:" in _WITHIN:
            return
        folder = parts.path.rpartition("/")[0] if parts.scheme == "file" else ""
        origin = f"{parts.scheme}://{parts.netloc}{folder}"
        if not origins and request.is_navigation_request():
            origins.add(origin)
        elif not any(origin.startswith(known) for known in origins):
            self._note("foreign request", request.url)

    def _note(self, what: str, words: str) -> None:
        self.troubles.append(f"{what}: {words:.500}")


@contextmanager
def listening(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server with this handler, in threads of its own, until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = False
    thread = Thread(target=partial(server.serve_forever, poll_interval=0.02), name="static host")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """The address of a plain static host of a folder."""
    with listening(partial(_Quiet, directory=str(folder))) as url:
        yield f"{url}index.html"


class _Quiet(SimpleHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, *_args: object) -> None:
        pass


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
            one_line(one["text"]) for one in events if not seat or one["audience"] == "all" or seat in one["audience"]
        ]

    def turn(self, place: int) -> tuple[str, str, str]:
        """The key, the agent and the reply of a turn by its place."""
        turn = self.content["turns"][place]
        return str(turn["turn"]), str(turn["agent"]), str(turn["reply"]["text"])


def recorded(run: Path) -> list[Recorded]:
    """The transcripts of a run in order."""
    return [Recorded(json.loads(path.read_bytes())) for path in RunDir(path=run).transcript_files()]


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
