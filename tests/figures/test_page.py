"""The page of a report, and the figures that every run has."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.figures.testing import (
    ROWS_MAX,
    DataColumn,
    Method,
    RunData,
    Study,
    Value,
    cell_text,
    classes,
    colours_of,
    comparison_sections,
    cost_figures,
    dashes_of,
    endings_figure,
    engine_figures,
    failed_figure,
    forest,
    length_figures,
    methods_text,
    outcome_sections,
    report_html,
    report_json,
    shapes_of,
    svg_of,
    ticks_of,
)
from mac_runner.reports.testing import TEXTS_MAX, cost_of, models_of
from mac_runner.results import section
from mac_runner.types import JsonObject
from mac_runner.views.testing import EngineClock
from tests.figures.reports import HOSTILE, Found, figure, hostile_report, report, run
from tests.kit import index_row as row
from tests.kit import known, summary_of


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


def test_ids_are_unique_links_lead_to_them_and_equal_reports_are_equal_bytes() -> None:
    html = report_html(report(figure("one"), figure("two"), figure("three")))
    page = Found(html)

    assert len(page.ids) == len(set(page.ids))
    assert {value.removeprefix("#") for name, value in page.attributes if name == "href"} <= set(page.ids)
    assert {value[5:-1] for _, value in page.attributes if value.startswith("url(#")} <= set(page.ids)
    assert report_html(report(figure("one"), figure("two"), figure("three"))) == html


def test_figure_has_its_numbers_and_its_source(snapshot: SnapshotAssertion) -> None:
    page = report_html(report(figure(count=2)))

    shown = ("Data:", "<td>", "n\u00a0=")
    assert [line.strip() for line in page.splitlines() if any(part in line for part in shown)] == snapshot
    assert "/schema/vega-lite" in page


def test_rows_beyond_the_bound_are_said_to_be_left_out_and_a_wide_table_of_few_rows_is_turned() -> None:
    long = replace(figure(count=ROWS_MAX + 7), spec=None)
    columns = tuple(DataColumn(name=f"c{place}", title=f"head {place}") for place in range(9))
    wide = replace(figure(count=0), spec=None, columns=columns, rows=({f"c{place}": "x" for place in range(9)},))

    assert "7 more rows" in report_html(report(long))
    sections: Any = report_json(report(long))["sections"]
    assert str(sections[0]).count("'who'") == ROWS_MAX + 7 + 1
    assert ">head 0</th>" in report_html(report(wide))
    assert report_html(report(wide)).count("<td>head ") == 8


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
    many, few = (Method(statement="Resampled", unit="game", n=n, resamples=9999) for n in (20, 5))

    assert methods_text((many, few, Method(statement="Counted."))) == snapshot


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


def test_cost_is_tokens_and_hours_at_their_prices() -> None:
    prices: JsonObject = {"prompt": 2.0, "cached": 0.5, "completion": 8.0}
    tokens: JsonObject = {"prompt": 3_000_000, "cached": 1_000_000, "completion": 500_000}
    account: JsonObject = {"played_s": 1800.0, "requests": 3, "tokens": tokens}

    both = cost_of({"usd_per_mtok": prices, "usd_per_hour": 4.0}, account)
    without_cache = cost_of({"usd_per_mtok": {**prices, "cached": None}}, account)

    assert (both.tokens, both.hours) == (2 * 2.0 + 0.5 + 0.5 * 8.0, 2.0)
    assert both.total == pytest.approx(10.5)
    assert without_cache == (3 * 2.0 + 4.0, None)
    assert cost_of({"usd_per_mtok": None}, account).total is None


def test_engine_without_a_price_is_named(snapshot: SnapshotAssertion) -> None:
    definitions: dict[str, JsonObject] = {"a": {"usd_per_hour": 2.0}, "b": {}}
    accounts: JsonObject = {name: {"played_s": 3600.0, "requests": 1, "tokens": {}} for name in ("a#12", "b")}

    (figure,) = cost_figures(definitions, accounts, finished=4)

    assert (figure.caption, figure.notes) == snapshot
    assert [*cost_figures({"b": {}}, accounts, finished=4)] == []


def test_endings_add_up_to_what_is_planned() -> None:
    rows = [row(0, {"kind": "x"}), row(1, failure="broke"), row(2, failure="broke")]
    summary: JsonObject = {
        "conversations": {"planned": 5, "finished": 1, "failed": 2},
        "failures": [{"reason": "broke", "count": 2, "task_ids": ["a-000001", "a-000002"]}],
    }

    figure = endings_figure([run("a", rows, summary)])

    found = [(one["ending"], one["count"], one["such_as"]) for one in figure.rows]
    assert found == [("finished", 1, ""), ("failed: broke", 2, "1, 2"), ("not ended yet", 2, "")]


def test_classes_hold_every_value_once() -> None:
    chance = random.Random(5)
    for values in ([1], [3, 3], [0, 1], [chance.randrange(5000) for _ in range(99)], [*range(1000)]):
        ordered = sorted(values)
        found = [*classes(ordered)]

        assert sum(int(one["count"] or 0) for one in found) == len(values)
        for one in found:
            lo, hi, count = (float(one[key] or 0) for key in ("from", "to", "count"))
            inside = [value for value in ordered if lo <= value < hi]
            assert len(inside) == count or lo == hi or abs(len(inside) - count) <= 1


def test_a_mean_length_of_few_conversations_has_no_interval_below_zero() -> None:
    rows = [row(place) for place in range(3)]
    for one, turns in zip(rows, (1, 2, 60), strict=True):
        one["counts"] = {**section(one, "counts"), "turns": turns}

    replies, *_ = length_figures([run(name, rows) for name in "ab"])

    assert [(each["mean"], each["lo"]) for each in replies.rows] == [(21.0, 0.0)] * 2


def test_values_of_two_runs_are_paired_where_they_share_a_seed() -> None:
    chance = random.Random(1)
    luck = [chance.gauss(0, 10) for _ in range(40)]
    more = [value + 1 + chance.random() for value in luck]
    one = [row(place, {"kind": "x", "gain": value, "deal": place % 2 == 0}) for place, value in enumerate(luck)]
    other = [row(place, {"kind": "x", "gain": value, "deal": True}) for place, value in enumerate(more)]
    paired_study = Study(runs=[run("a", one), run("b", other)], baseline="a")
    apart_study = Study(runs=[run("a", one), run("b", other, seed=2)], baseline="a")

    (paired_section,), (apart_section,) = ([*comparison_sections(study)] for study in (paired_study, apart_study))

    rates, means = paired_section.figures
    gain, apart = means.rows[0], apart_section.figures[1].rows[0]
    assert float(gain["lo"] or 0) > 1.0
    assert float(gain["hi"] or 9) < 2.0
    assert float(apart["lo"] or 0) < 0 < float(apart["hi"] or 0)
    assert gain["difference"] == pytest.approx(apart["difference"])
    assert rates.rows[0]["difference"] == pytest.approx(0.5)
    assert "are not paired" in apart_section.figures[0].notes[0]


def test_wins_of_agents_are_compared_also_with_draws_but_draws_alone_do_not_say_that_agents_can_win() -> None:
    def games(name: str, *winners: str | None) -> RunData:
        agents: JsonObject = {"Abel": ["bold", "m", 0], "Cain": ["shy", "m", 1]}
        return run(name, [row(n, {"kind": "x", "winner": one}) | {"agents": agents} for n, one in enumerate(winners)])

    def differences(*runs: RunData) -> list[Value]:
        sections = comparison_sections(Study(runs=runs, baseline=runs[0].name))
        return [one["difference"] for part in sections for figure in part.figures for one in figure.rows]

    won, drawn = games("a", "Abel", "Cain", "Abel"), games("b", None, None, None)

    assert differences(won, drawn) == [-0.5]
    assert differences(drawn, games("c", None, None, None)) == []


def test_values_of_a_game_without_results_are_drawn_as_measures_with_their_names_and_clusters() -> None:
    agents: JsonObject = {"Abel": ["bold", "m", 0], "Cain": ["shy", "m", 1]}
    outcomes: list[JsonObject] = [
        {"kind": "x", "deal": n % 2 == 0, "fair": True, "gain": n, "end": "ab"[n % 2], "pay": {"Abel": n, "Cain": 1}}
        for n in range(20)
    ]
    rows = [row(n, outcome) | {"agents": agents} for n, outcome in enumerate(outcomes)]
    one = run("a", rows, summary_of(rows))

    for runs in ([one], [one, replace(one, name="b")]):
        (section,) = outcome_sections(runs)
        figures = {figure.id: figure for figure in section.figures}
        assert [*figures] == ["x-rates", "x-means", "x-text-end", "x-agents-pay"]
        assert all(column.title for figure in figures.values() for column in figure.columns)
        assert [each["what"] for each in figures["x-rates"].rows if each.get("run", "a") == "a"] == ["deal", "fair"]
        assert (figures["x-means"].spec, figures["x-means"].rows[0]["max"]) == (None, 19.0)
        every, bold, shy = figures["x-agents-pay"].rows[:3]
        assert (every["n"], every["clusters"], bold["value"], shy["value"]) == (40, 20, 9.5, 1.0)


def test_what_a_value_is_and_which_of_many_texts_are_drawn_follow_from_all_runs() -> None:
    few = [row(n, {"kind": "x", "gain": True, "end": f"end {n:02}"}) for n in range(TEXTS_MAX)]
    many = [row(n, {"kind": "x", "gain": n, "end": "late"}) for n in range(20)]
    runs = [run(name, rows, summary_of(rows)) for name, rows in (("a", few), ("b", many))]

    for several in (runs, runs[::-1]):
        (section,) = outcome_sections(several)
        means, texts = section.figures
        assert (means.id, means.n) == ("x-means", TEXTS_MAX + 20)
        assert {(each["run"], each["value"]) for each in means.rows} == {("a", 1.0), ("b", 9.5)}
        assert {each["run"]: each["value"] for each in texts.rows if each["text"] == "late"} == {"a": 0.0, "b": 1.0}
        assert "Rarer texts are left out" in texts.caption


def test_whether_agents_can_win_follows_from_runs_without_a_failed_conversation_too() -> None:
    agents: JsonObject = {"Abel": ["bold", "m", 0], "Cain": ["shy", "m", 1]}

    def games(name: str, winner: str | None, failed: int) -> RunData:
        rows = [row(n, {"kind": "x", "winner": winner}) | {"agents": agents} for n in range(4)]
        rows += [row(4 + n, failure="broke") for n in range(failed)]
        return run(name, rows, {"conversations": {"planned": 4 + failed, "finished": 4, "failed": failed}})

    figure = known(failed_figure([games("a", None, 1), games("b", "Abel", 0)]))

    assert [(each["label"], each["n"]) for each in figure.rows] == [("won of agents, a", 8), ("won of agents, a", 10)]


def test_failed_conversations_are_in_no_value_and_are_counted_as_lost_beside_the_finished_ones() -> None:
    rows = [row(n, {"kind": "x", "deal": n % 2 == 0}) for n in range(8)] + [row(n, failure="broke") for n in (8, 9)]
    summary: JsonObject = {"conversations": {"planned": 10, "finished": 8, "failed": 2}}
    whole: JsonObject = {"conversations": {"planned": 8, "finished": 8, "failed": 0}}

    (section,) = comparison_sections(Study(runs=[run("a", rows), run("b", rows)], baseline="a"))
    figure = known(failed_figure([run("a", rows, summary)]))

    assert section.figures[0].rows[0]["n"] == 8
    found = [(str(one["series"])[:6], one["value"], one["n"]) for one in figure.rows]
    assert found == [("finish", 0.5, 8), ("failed", 0.4, 10)]
    assert failed_figure([run("a", rows[:8], whole)]) is None


@pytest.mark.parametrize("name", ["won", "mafia=claude · town=gpt"])
def test_legend_of_many_names_goes_on_below_and_takes_no_room_from_its_figure(name: str) -> None:
    def width(series: int) -> float:
        rows: list[dict[str, Value]] = [
            {"label": "a share", "group": f"{name}-{n}", "value": 0.5, "lo": 0.4, "hi": 0.6} for n in range(series)
        ]
        spec = forest(rows, label="label", group="group", unit="rate", title="share", units="games")
        found = re.search(r'width="([0-9.]+)"', svg_of(replace(figure("runs"), spec=spec)))
        assert found is not None
        return float(found[1])

    assert width(11) < 1.1 * width(2)


def test_names_of_one_colour_differ_by_shape_and_by_dash() -> None:
    names = [f"run {n}" for n in range(40)]

    assert len(set(zip(colours_of(names), shapes_of(names), strict=True))) == len(names)
    assert len(set(zip(colours_of(names), map(tuple, dashes_of(names)), strict=True))) == len(names)


def test_axis_ends_at_round_ticks_that_stand_apart() -> None:
    chance = random.Random(3)
    for _ in range(300):
        values = [chance.gauss(0, 10 ** chance.randint(-4, 7)) for _ in range(3)]
        ticks = ticks_of(values)

        hair = 1e-6 * (ticks[1] - ticks[0])
        assert ticks[0] - hair <= min(values), values
        assert ticks[-1] + hair >= max(values), values
        assert 2 <= len(ticks) <= 9, ticks
        assert len({f"{tick:,.6g}" for tick in ticks}) == len(ticks), ticks


def test_slots_used_are_those_of_the_summary_also_where_workers_play_side_by_side() -> None:
    """Two workers with two slots each have four requests in flight, for half of the time."""
    clock = EngineClock()
    time = b'{"time":"2026-01-01T00:00:0%dZ","event":"EVENT_'
    for _ in range(2):
        clock.add((time % 0) + b'RUN_START","models":{"m":2}}')
    for turn in range(4):
        head = b'","task":"a","turn":"%d","model":"m"' % turn
        clock.add((time % 0) + b"INFER_START" + head + b"}")
        clock.add((time % 4) + b"INFER_DONE" + head + b',"latency_ms":4000}')
    clock.add((time % 8) + b'RUN_STOP"}')
    account: JsonObject = {"played_s": 16.0, "busy_slot_s": 16.0, "available_slot_s": 32.0, "requests": 4}

    figures = {one.id: one for one in engine_figures(clock.page(), {}, {"m": account})}

    (used,) = figures["engines"].rows
    (told,) = models_of({"m": account}).values()
    assert isinstance(told, dict)
    assert (used["slots"], used["used"]) == (told["slots_mean"], told["slot_utilisation"]) == (2.0, 0.5)
    assert max(float(str(each["busy"])) for each in figures["utilisation"].rows) == 4.0
    assert figures["engines"].notes == ()
    killed = next(engine_figures(clock.page(), {}, {"m": {**account, "requests": 6}}))
    assert killed.notes[0].startswith("2 of 6 replies are in no figure")
    (unknown,) = next(engine_figures(clock.page(), {}, {})).rows
    assert (unknown["slots"], unknown["used"]) == (None, None)


def test_tokens_of_replies_are_shares_that_end_at_all() -> None:
    lines = [
        b'{"time":"2026-01-01T00:00:0%dZ","event":"EVENT_INFER_DONE","task":"a","turn":"%d","model":"m",'
        b'"latency_ms":5.0,"tokens_out":%d}' % (second, second, tokens)
        for second, tokens in enumerate((7, 7, 7, 40))
    ]
    clock = EngineClock()
    for line in lines:
        clock.add(line)

    figure = next(one for one in engine_figures(clock.page(), clock.reply_tokens(), {}) if one.id == "reply-tokens")

    assert [one["share"] for one in figure.rows if one["tokens"] == 7] == [0.75]
    assert figure.rows[-1]["share"] == 1.0
    assert figure.n == 4
