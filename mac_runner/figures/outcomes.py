"""Outcomes and metrics of any environment: means and rates of conversations, of their agents, and of metrics.

The numbers are those of the summary, which counts them exactly; a plug-in needs no code of its own here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from mac_runner.figures.charts import forest
from mac_runner.figures.comparison import clustered, values_of
from mac_runner.figures.estimates import ends_of
from mac_runner.figures.every_run import Played
from mac_runner.figures.failures import Counted, failures_figure
from mac_runner.figures.model import (
    DataColumn,
    Figure,
    Method,
    Section,
    Value,
    interval_columns,
    mean_columns,
    run_column,
)
from mac_runner.printable import printable
from mac_runner.reports.outcomes import OUTCOMES
from mac_runner.results import default_shares, integer, number, section, with_defaults
from mac_runner.types import JsonObject, JsonValue

_GROUPS: Final = {"by_definition": "definition", "by_model": "model", "by_seat": "seat"}
_TEXTS_MAX: Final = 12
_METHODS: Final = (
    Method(
        statement="A rate over conversations has Wilson's 95 % interval, a mean Student's; conversations are taken to "
        "be independent",
        unit="conversation",
        interval="Wilson's, or Student's t, 95 %",
    ),
)
_BY_AGENT: Final = (
    Method(
        statement="A rate or mean over agents has a 95 % interval that takes the agents of one conversation as one "
        "cluster: Wilson's of as many cases as they are worth (Korn and Graubard 1998), or Student's of the ratio "
        "(Cochran 1977)",
        unit="conversation",
        interval="clustered by conversation, 95 %",
    ),
)


class _Named(NamedTuple):
    label: str
    record: JsonObject

    @property
    def unit(self) -> Literal["rate", "score"]:
        return "rate" if "rate" in self.record else "score"


def outcome_sections(runs: Sequence[Played]) -> Iterator[Section]:
    """What came out of conversations whose environment has no figures of its own, and the metrics of all."""
    if figures := (*outcome_figures(runs), *metric_figures(runs), *filter(None, [failed_figure(runs)])):
        yield Section(id="outcomes", title="Outcomes", figures=figures)


def outcome_figures(runs: Sequence[Played]) -> Iterator[Figure]:
    """What the outcomes hold, where the environment has no figures of its own."""
    kinds = dict.fromkeys(kind for run in runs for kind in section(run.summary, OUTCOMES))
    for kind in kinds:
        counted = [(run, section(section(run.summary, OUTCOMES), kind)) for run in runs]
        suffix = f"-{_slug(kind)}" if len(kinds) > 1 else ""
        values = [(run, section(found, "values")) for run, found in counted]
        yield from _values(values, f"values{suffix}", f"What came out of {printable(kind)}?", runs)
        yield from _texts([(run, section(found, "texts")) for run, found in counted], suffix, len(runs) > 1)
        yield from _agents([(run, section(found, "agents")) for run, found in counted], suffix, len(runs) > 1)


def metric_figures(runs: Sequence[Played]) -> Iterator[Figure]:
    """The metrics of the experiment."""
    values = [(run, section(run.summary, "metrics")) for run in runs]
    yield from _values(values, "metrics", "What do the metrics come to?", runs)


def failed_figure(runs: Sequence[Played]) -> Figure | None:
    """Each rate of outcomes with and without failed conversations; None where none failed."""
    counted = list[Counted]()
    for run in runs:
        values = values_of(run.data) if run.count("failed") else {}
        for name, value in values.items():
            if value.is_rate:
                label = name if len(runs) == 1 else f"{name}, {run.name}"
                rate = clustered({key: (int(total), n) for key, (total, n) in value.cases.items()})
                counted.append(Counted(label, rate, round(rate.n / max(1, rate.games)), run.count("failed")))
    return failures_figure(
        counted,
        name="rates-with-failed",
        title="What are the rates if failed conversations count as lost?",
        lost="not won, or not true, of all its agents",
        failed=sum(run.count("failed") for run in runs),
        finished=sum(run.count("finished") for run in runs),
        units="conversations",
    )


def _values(
    found: Sequence[tuple[Played, JsonObject]], name: str, title: str, runs: Sequence[Played]
) -> Iterator[Figure]:
    """Rates in one figure; of numbers, whose sizes differ, a table."""
    named = [
        (run, _Named(key, section(values, key))) for run, values in found for key in values if section(values, key)
    ]
    for unit in ("rate", "score"):
        chosen = [(run, one) for run, one in named if one.unit == unit]
        if not chosen:
            continue
        rows = [{"run": run.name, **_row("value", one)} for run, one in chosen]
        spec = None
        if unit == "rate":
            group = "run" if len(runs) > 1 else ""
            spec = forest(
                rows, label="value", value="mean", unit="rate", title="rate", units="conversations", group=group
            )
        n = max(int(row["n"] or 0) for row in rows)
        columns = mean_columns("value", "", kind="rate" if unit == "rate" else "number")
        extremes = tuple(DataColumn(name=end, title=end, kind="number") for end in ("min", "max"))
        yield Figure(
            id=f"{name}-{unit}",
            title=title if unit == "rate" else f"{title.removesuffix('?')}, in numbers?",
            caption=f"{'Rates' if unit == 'rate' else 'Means'} over finished conversations with 95 % interval; n is "
            "the number of conversations that have the value.",
            n=n,
            unit="conversations",
            columns=(*run_column(len(runs) > 1), *columns, *(extremes if unit == "score" else ())),
            rows=tuple(rows),
            spec=spec,
            methods=_METHODS,
        )


def _row(label: str, one: _Named) -> dict[str, Value]:
    record = one.record
    lo, hi = ends_of(record.get("interval"))
    return {
        label: one.label,
        "n": integer(record.get("n")),
        "mean": number(record.get(one.unit)),
        "lo": lo,
        "hi": hi,
        "min": number(record.get("min")),
        "max": number(record.get("max")),
    }


def _texts(found: Sequence[tuple[Played, JsonObject]], suffix: str, has_runs: bool) -> Iterator[Figure]:
    for key in dict.fromkeys(key for _, texts in found for key in texts):
        rows: list[dict[str, Value]] = []
        n = hidden = 0
        for run, texts in found:
            record = section(texts, key)
            counts = section(record, "counts")
            of = integer(record.get("n")) or 0
            n += of
            hidden += max(0, len(counts) - _TEXTS_MAX)
            rows += [{"run": run.name, **_text_row(text, section(counts, text), of)} for text in [*counts][:_TEXTS_MAX]]
        if not rows:
            continue
        yield Figure(
            id=f"text-{_slug(key)}{suffix}",
            title=f"How often does each value of “{printable(key)}” occur?",
            caption=f"Share of {n:,} finished conversations, with 95 % interval.",
            n=n,
            unit="conversations",
            columns=(
                *run_column(has_runs),
                DataColumn(name="text", title=key),
                DataColumn(name="count", title="conversations", kind="count"),
                DataColumn(name="mean", title="share", kind="rate"),
                *interval_columns("rate"),
            ),
            rows=tuple(rows),
            spec=forest(
                rows,
                label="text",
                value="mean",
                unit="rate",
                title="share",
                units="conversations",
                clusters="of",
                group="run" if has_runs else "",
            ),
            methods=_METHODS,
            notes=(f"{hidden} rarer texts are left out; summary.json has them.",) if hidden else (),
        )


def _text_row(text: str, record: JsonObject, n: int) -> dict[str, Value]:
    lo, hi = ends_of(record.get("interval"))
    return {
        "text": text,
        "n": n,
        "of": n,
        "count": integer(record.get("count")),
        "mean": number(record.get("rate")),
        "lo": lo,
        "hi": hi,
    }


def _agents(found: Sequence[tuple[Played, JsonObject]], suffix: str, has_runs: bool) -> Iterator[Figure]:
    """For each value of agents, that of each definition, model and seat; a group of one member says nothing new."""
    for key in dict.fromkeys(key for _, agents in found for key in agents):
        rows: list[dict[str, Value]] = []
        for run, agents in found:
            for label, record in _members(section(agents, key), run.summary):
                rows.append(
                    {"run": run.name, **_row("of", _Named(label, record)), "games": integer(record.get("games"))}
                )
        if not rows:
            continue
        unit: Literal["rate", "score"] = "rate" if all(0 <= float(row["mean"] or 0) <= 1 for row in rows) else "score"
        n = max(int(row["n"] or 0) for row in rows)
        yield Figure(
            id=f"agents-{_slug(key)}{suffix}",
            title=f"How does “{printable(key)}” differ between agents?",
            caption="Mean over agents of finished conversations, with 95 % interval clustered by conversation.",
            n=n,
            unit="agents",
            columns=(
                *run_column(has_runs),
                DataColumn(name="of", title="of"),
                DataColumn(name="n", title="agents", kind="count"),
                DataColumn(name="games", title="conversations", kind="count"),
                DataColumn(name="mean", title="mean", kind="rate" if unit == "rate" else "number"),
                *interval_columns("rate" if unit == "rate" else "number"),
            ),
            rows=tuple(rows),
            spec=forest(
                rows,
                label="of",
                value="mean",
                unit="rate" if unit == "rate" else "number",
                title=printable(key),
                units="conversations",
                clusters="games",
                group="run" if has_runs else "",
            ),
            methods=_BY_AGENT,
        )


def _members(record: JsonObject, summary: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    yield "all agents", section(record, "all")
    shown: list[list[JsonValue]] = []
    for group, head in _GROUPS.items():
        members = section(record, group)
        # Where each definition has one seat, both groups are the same agents.
        if len(members) > 1 and [*members.values()] not in shown:
            shown.append([*members.values()])
            shares = default_shares(summary, head)
            yield from ((with_defaults(f"{head} {name}", shares.get(name)), section(members, name)) for name in members)


def _slug(text: str) -> str:
    """The text as a part of an id, unlike that of other texts."""
    plain = "".join(char if char.isascii() and char.isalnum() else "-" for char in text.lower())[:40]
    return plain if plain == text else f"{plain}-{len(text)}{sum(map(ord, text)) % 997}"
