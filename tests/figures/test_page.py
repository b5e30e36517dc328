from __future__ import annotations

from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.figures.testing import (
    ROWS_MAX,
    DataColumn,
    Method,
    Value,
    cell_text,
    methods_text,
    report_html,
    report_json,
)
from tests.figures.reports import HOSTILE, Found, figure, hostile_report, report


@pytest.mark.ci
def test_hostile_texts_are_shown_and_never_obeyed() -> None:
    page = Found(report_html(hostile_report()))

    assert {"script", "img", "iframe", "object", "base", "link", "form"}.isdisjoint(page.tags)
    assert page.tags.count("style") == 1
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("style", "src", "srcset")]
    links = [value for name, value in page.attributes if name == "href"]
    assert all(link.startswith("#") for link in links)
    assert "<script>alert(1)</script>" in page.text
    assert "\\u202egnp\\x00\\ud800" in page.text
    assert "{{ 7*7 }}" in page.text
    assert not {"\u202e", "\x00"} & set(page.text)
    assert HOSTILE not in page.text


def test_ids_are_unique_and_links_lead_to_them() -> None:
    page = Found(report_html(report(figure("one"), figure("two"), figure("three"))))

    assert len(page.ids) == len(set(page.ids))
    assert {value.removeprefix("#") for name, value in page.attributes if name == "href"} <= set(page.ids)
    used = {value[5:-1] for _, value in page.attributes if value.startswith("url(#")}
    assert used <= set(page.ids)


def test_equal_reports_are_equal_bytes() -> None:
    assert report_html(report(figure(), figure("other"))) == report_html(report(figure(), figure("other")))


def test_figure_has_its_numbers_and_its_source(snapshot: SnapshotAssertion) -> None:
    page = report_html(report(figure(count=2)))

    shown = ("Data:", "<td>", "n\u00a0=")
    assert [line.strip() for line in page.splitlines() if any(part in line for part in shown)] == snapshot
    assert "/schema/vega-lite" in page


def test_rows_beyond_the_bound_are_said_to_be_left_out() -> None:
    many = figure(count=ROWS_MAX + 7)
    table = replace(many, spec=None)

    assert "7 more rows" in report_html(report(table))
    sections = report_json(report(table))["sections"]
    assert isinstance(sections, list)
    assert str(sections[0]).count("'who'") == ROWS_MAX + 7 + 1


def test_wide_table_of_few_rows_is_turned() -> None:
    columns = tuple(DataColumn(name=f"c{place}", title=f"head {place}") for place in range(9))
    wide = replace(figure(count=0), spec=None, columns=columns, rows=({f"c{place}": "x" for place in range(9)},))

    page = report_html(report(wide))

    assert ">head 0</th>" in page
    assert page.count("<td>head ") == 8


def test_values_are_printed_by_their_kind() -> None:
    printed = {
        ("rate", 0.1234): "12.3%",
        ("score", -0.5): "-0.500",
        ("count", 12345.0): "12,345",
        ("number", 0.123456): "0.1235",
        ("number", 123456.7): "123,457",
        ("number", None): "–",
        ("word", True): "yes",
    }

    for (kind, value), expected in printed.items():
        assert cell_text(DataColumn(name="x", title="x", kind=kind), value) == expected  # type: ignore[arg-type]


def test_same_method_of_several_figures_is_said_once(snapshot: SnapshotAssertion) -> None:
    found = methods_text(
        (
            Method(statement="Resampled", unit="game", n=20, resamples=9999, seed=1),
            Method(statement="Resampled", unit="game", n=5, resamples=9999, seed=1),
            Method(statement="Counted."),
        )
    )

    assert found == snapshot


def test_conversations_are_links_into_the_published_run_alone() -> None:
    column = DataColumn(name="such_as", title="such as", kind="conversations")
    rows: tuple[dict[str, Value], ...] = (
        {"such_as": "3, 17", "slug": ""},
        {"such_as": "4", "slug": "a b"},
        {"such_as": "5", "slug": None},
    )
    made = report(replace(figure(), columns=(column,), rows=rows, spec=None))

    links = {value for _, value in Found(report_html(replace(made, viewer="out/index.html"))).attributes}

    assert {f"out/index.html#/{to}" for to in ("c/3", "c/17", "r/a%20b/c/4")} <= links
    assert not any(value.endswith("c/5") for value in links)
    assert "#/c/" not in report_html(made)
