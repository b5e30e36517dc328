"""axe-core finds nothing to mend on any page, light and dark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from tests.browser.conftest import Published
from tests.browser.screens import REQUIRED, SCHEMES, Watch
from tests.cli.lab import ROOT

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


@pytest.mark.parametrize("kind", PLACES)
def test_pages_have_no_barriers(
    request: pytest.FixtureRequest, watch: Watch, published: Published, axe: str, kind: str
) -> None:
    run: Path = request.getfixturevalue(kind)
    # Its policy refuses axe-core, as it should: here alone it is set aside.
    page = watch.open(f"{published(run).as_uri()}/index.html", bypass_csp=True)
    page.evaluate(axe)
    found, names = [], named(run)
    for place in PLACES[kind]:
        page.evaluate("(place) => { window.location.hash = place }", place.format(**names))
        page.locator("main :is(h1, h2)").first.wait_for()
        page.wait_for_function("() => !document.querySelector('main')?.textContent.includes('Loading')")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            found += [f"{place}, {scheme}: {one}" for one in page.evaluate(_RUN)]
    assert found == [], "\n".join(found)


def named(run: Path) -> dict[str, str]:
    """The names that places need."""
    slugs = [path.name for path in sorted(run.iterdir()) if (path / "transcripts").is_dir()]
    return {
        "slug": slugs[0] if slugs else "",
        "other": slugs[-1] if slugs else "",
        "seat": "Dorothea",
        "turn": "0%2FDorothea%2F0%2F0",
    }
