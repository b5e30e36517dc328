"""docs/data.md: what it lists is declared, and what its queries print is what they answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.data_page import PAGE, answer, play, queries, with_lists, without_times


def test_the_lists_of_columns_are_those_that_are_declared() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert with_lists(page) == page, "write them anew: python -m tests.data.data_page"


@pytest.mark.ci
def test_each_query_answers_what_the_page_shows(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    asked = queries(page)
    play(page, tmp_path)

    assert len(asked) == 10
    for match in asked:
        assert match["output"], "write it anew: python -m tests.data.data_page"
        assert without_times(answer(match["query"], tmp_path)) == without_times(match["output"]), match["query"]
