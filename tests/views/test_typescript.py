"""The contract of the pages, as Python and TypeScript have it."""

from __future__ import annotations

from pathlib import Path

from mac_runner.views.typescript import typescript

MODEL = Path(__file__).parents[2] / "viewer" / "src" / "model.ts"


def test_pages_are_compiled_against_the_structs_that_python_sends() -> None:
    committed = MODEL.read_text(encoding="utf-8")

    assert committed == typescript(), (
        "run: python -m mac_runner.views.typescript viewer/src/model.ts; then build viewer/"
    )
