"""The examples of docs/python.md work as the page has them and print what it says, and it names what is public."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mac_runner

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


def _blocks() -> Iterator[tuple[str, str]]:
    return ((code, printed) for code, printed in BLOCK.findall(PAGE.read_text(encoding="utf-8")))


def test_every_example_runs_in_its_order_and_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a notebook: in one namespace, with `await` at the top level."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}

    async def notebook() -> None:
        for code, printed in _blocks():
            result = eval(compile(code, "python.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
            if inspect.isawaitable(result):
                await result
            assert capsys.readouterr().out == printed, code

    asyncio.run(notebook())


def test_page_names_every_public_name() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert [name for name in mac_runner.__all__ if f"`{name}`" not in page] == []
