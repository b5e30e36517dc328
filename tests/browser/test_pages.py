"""Every page: it opens, follows its run, has no barriers, and runs nothing of hostile texts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest

from mac_runner.figures.testing import report_html
from tests.browser.conftest import Published, Served
from tests.browser.runs import NAMES, SEATS, TEXTS
from tests.browser.screens import PATIENCE_MS, REQUIRED, SCHEMES, WIDTHS, Watch
from tests.cli.lab import ROOT, Lab
from tests.figures.reports import hostile_report
from tests.patience import LIMIT_S, wait_for
from tests.viewer.served import engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_run_page_opens_light_and_dark_wide_and_narrow(watch: Watch, at_games: str) -> None:
    for scheme, width in product(SCHEMES, WIDTHS):
        watch.open(at_games, scheme=scheme, width=width).get_by_text("games").first.wait_for()


AT_FIRST_SIGHT: Final = """
new MutationObserver((_, observer) => {
  if (!document.body?.innerText || location.hash) return;
  observer.disconnect();
  location.hash = "#/c/1";
}).observe(document, {childList: true, subtree: true});
"""


def test_place_that_changes_as_soon_as_something_is_drawn_is_followed(watch: Watch, at_games: str) -> None:
    page = watch.open()
    page.add_init_script(AT_FIRST_SIGHT)
    page.goto(at_games)

    page.get_by_text("Conversation 1").first.wait_for()


TROUBLES: Final = {
    "console.error('no')": "console error: no",
    "setTimeout(() => { throw new Error('no') })": "page error",
    "fetch('http://127.0.0.1:9/').catch(() => 0)": "CSP: connect-src",
    "document.body.insertAdjacentHTML('beforeend', '<img src=http://example.invalid/x.png>')": "CSP: img-src",
    "document.body.insertAdjacentHTML('beforeend', '<p style=\"color:red\">x</p>')": "CSP: style-src",
    "alert('no')": "dialog",
    "window.open('about:blank')": "another page",
    "document.head.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))": (
        "CSP: script-src"
    ),
}
"""What a page may never do, and what is noted of it."""


def test_every_trouble_of_a_page_is_noticed(browser: Browser, games: Path, at_games: str) -> None:
    """The watch itself."""
    watch = Watch(browser)
    page = watch.open(at_games)
    page.get_by_text("games").first.wait_for()
    for script, noted in TROUBLES.items():
        page.evaluate(f"() => {{ {script} }}")
        while not any(noted in trouble for trouble in watch.troubles):
            page.wait_for_timeout(10)  # It comes when the browser has the time.

    with pytest.raises(AssertionError, match="in the browser"):
        watch.close()


CONVERSATIONS = 4


def test_page_follows_a_run_that_is_killed_and_resumed(watch: Watch, served: Served, tmp_path: Path) -> None:
    lab, run = Lab(path=tmp_path), tmp_path / "runs" / "live"
    try:
        with engine() as held:
            file = lab.write(held.experiment("live", CONVERSATIONS))
            process = lab.start(file, "--quiet")
            wait_for(lambda: len([*run.glob("transcripts/*.json")]) >= 1, "a conversation that ended")
            page = watch.open(served(run))
            page.get_by_text(f"1 of {CONVERSATIONS} ended").first.wait_for()
            page.evaluate("() => { window.stays = 'the same page' }")
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=LIMIT_S)

            held.goes_on = True
            lab.done(file, "--quiet")

        page.get_by_text(f"{CONVERSATIONS} of {CONVERSATIONS} ended").first.wait_for()
        go(page, f"#/c/{CONVERSATIONS - 1}")
        page.get_by_text(f"Conversation {CONVERSATIONS - 1}").first.wait_for()
        assert page.evaluate("() => window.stays") == "the same page"
    finally:
        lab.close()


@pytest.fixture(scope="session")
def report_of_games(played: Lab, games: Path) -> Path:
    """The report of two games of Town of Salem."""
    played.done("report", str(games), "--out", "games.report.html")
    return played.path / "games.report.html"


def test_page_has_no_trouble_and_no_text_leaves_it(watch: Watch, report_of_games: Path) -> None:
    for scheme, width in product(SCHEMES, WIDTHS):
        page = watch.open(report_of_games.as_uri(), scheme=scheme, width=width)

        assert page.locator("figure").count() > 5
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{scheme}, {width} pixels: the page is {overflow} pixels too wide"


def test_page_is_the_same_without_javascript(watch: Watch, report_of_games: Path) -> None:
    context = watch.browser.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE_MS)
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


PLACES: Final = {
    "games": ("#/", "#/c/0", "#/c/0?v=tables", "#/c/0?seat={seat}", "#/c/0?t={turn}", "#/engines"),
    "talks": ("#/", "#/r/{slug}", "#/r/{slug}/c/0", "#/r/{slug}/flow", "#/r/{slug}/compare/0/0?other={other}"),
    "village": ("#/c/0",),
    "broken": ("#/",),
    "fork": ("#/forks/0", "#/compare/0/1"),
}
_RUN: Final = """
() => axe.run(document, { resultTypes: ["violations"], preload: false }).then((done) => done.violations.map((one) =>
  `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(" ; ")}`))
"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The text of axe-core, which npm installs beside the sources of the pages."""
    path = Path(os.environ.get("MAC_RUNNER_AXE", ROOT / "viewer" / "node_modules" / "axe-core" / "axe.min.js"))
    if not path.is_file() and os.environ.get(REQUIRED) != "1":
        pytest.skip(f"axe-core is not installed ({path}): run npm ci in viewer/")
    return path.read_text()


def _names(run: Path) -> Mapping[str, str]:
    """What places of a run name."""
    slugs = [path.name for path in sorted(run.iterdir()) if (path / "transcripts").is_dir()] or [""]
    return {"slug": slugs[0], "other": slugs[-1], "seat": "Dorothea", "turn": "0%2FDorothea%2F0%2F0"}


@pytest.mark.parametrize("kind", PLACES)
def test_pages_have_no_barriers(
    request: pytest.FixtureRequest, watch: Watch, published: Published, axe: str, kind: str
) -> None:
    run: Path = request.getfixturevalue(kind)
    # Its policy refuses axe-core, as it should: here alone it is set aside.
    page = watch.open(f"{published(run).as_uri()}/index.html", bypass_csp=True)
    page.evaluate(axe)
    found = []
    for place in PLACES[kind]:
        go(page, place.format(**_names(run)))
        page.locator("main :is(h1, h2)").first.wait_for()
        page.wait_for_function("() => !document.querySelector('main')?.textContent.includes('Loading')")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            found += [f"{place}, {scheme}: {one}" for one in page.evaluate(_RUN)]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("kind", PLACES)
def test_pages_fit_a_telephone(request: pytest.FixtureRequest, watch: Watch, published: Published, kind: str) -> None:
    run: Path = request.getfixturevalue(kind)
    page = watch.open(f"{published(run).as_uri()}/index.html", width=400)
    for place in PLACES[kind]:
        go(page, place.format(**_names(run)))
        page.locator("main :is(h1, h2)").first.wait_for()
        page.wait_for_function("() => !document.querySelector('main')?.textContent.includes('Loading')")
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{place}: the page is {overflow} pixels too wide"


SEEN: Final = [NAMES.get(name, name) for name in SEATS]
ESCAPES: Final = {
    "bidi": r"safe \u202e desrever \u2066 isolate \u2069 \u200f mark",
    "control": r"nul \x00 bell \x07 escape \x1b[31m delete \x7f line\u2028separator",
    "surrogate": r"half \ud83d alone \udc00 here",
    "table": r"\x01 \x010 \x0199 \x01__proto__",
}
"""What is shown of texts with characters that are not visible."""
SHOWN: Final = {name: ESCAPES.get(name, text) for name, text in TEXTS.items() if name != "long"}
FOREIGN: Final = "img, iframe, object, embed, video, audio, base, link[href*='evil'], style, svg[onload], #bold"


HOSTILE_PLACES: Final = (
    *("#/c/0?v=tables", "#/engines", "#/flow", "#/forks/0", "#/compare/0/0", "#/c/%3Cimg%20src=x%20onerror=alert()%3E"),
    *(f"#/c/0?seat={quote(seat, safe='')}" for seat in SEEN),
    *(f"#/c/0?t={quote(f'{n}/{SEEN[n % 5]}/0/0', safe='')}" for n in (0, 1, 3, 4, 9)),
)


@pytest.mark.parametrize("way", ["served", "double click", "host", "one page"])
def test_hostile_texts_are_shown_and_never_run(
    watch: Watch,
    host: Callable[[Path], str],
    published: Published,
    played: Lab,
    foreign: Path,
    at_foreign: str,
    way: str,
) -> None:
    folder, alone = published(foreign), played.path / "foreign.html"
    if way == "one page":
        played.done("show", str(foreign), "0", "--html", str(alone))
    double_click, one_page = f"{folder.as_uri()}/index.html", alone.as_uri()
    ways = {"served": at_foreign, "double click": double_click, "host": host(folder), "one page": one_page}
    # Some places name what is not there: a server's answer to that is in the console.
    watch.allow(r"status of 40[04] .*/api/")
    page = watch.open(ways[way])
    page.locator("main").get_by_text(NAMES["oddname"]).first.wait_for()
    check_harmless(page)
    go(page, "#/c/0")
    page.locator("main").get_by_text("mmmmmmmm").first.wait_for()

    shown = page.locator("main").text_content() or ""

    missing = [name for name, text in {**SHOWN, **dict(zip(SEEN, SEEN, strict=True))}.items() if text not in shown]
    assert not missing, missing
    check_harmless(page)
    for place in HOSTILE_PLACES:
        go(page, place)
        page.locator("main :is(h1, h2, table, li, p)").first.wait_for()
        check_harmless(page)


def go(page: Page, place: str) -> None:
    page.evaluate("(place) => { window.location.hash = place }", place)


def check_harmless(page: Page) -> None:
    """Nothing ran, and nothing but elements of ours is there."""
    found = page.evaluate(
        "(foreign) => ({ ran: window.ran ?? 0, foreign: [...document.body.querySelectorAll(foreign)].map((one) =>"
        " one.outerHTML.slice(0, 200)), links: [...document.querySelectorAll('a[href]')].map((one) => one.protocol),"
        " polluted: [{}.ran, {}.prototype].some((one) => one !== undefined) })",
        FOREIGN,
    )
    assert found["ran"] == 0
    assert found["foreign"] == []
    assert set(found["links"]) <= {"http:", "file:"}
    assert not found["polluted"]
