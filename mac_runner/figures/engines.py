"""What the engines did over time, how long requests took, and what it cost at the prices that the experiment names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from mac_runner.figures.charts import Across, bars, over_time
from mac_runner.figures.model import DataColumn, Figure, Method, Section, Value
from mac_runner.reports.ending import cost_of, definition_of
from mac_runner.reports.summary import slots_mean, slots_used
from mac_runner.results import integer, number, section
from mac_runner.types import JsonObject
from mac_runner.view_model import EngineSeries, EnginesPage
from mac_runner.views.engines import Classes

_POINTS_MAX: Final = 150
_MODEL: Final = DataColumn(name="model", title="model")
_CLASS: Final = 1.122
"""The width of a class of latencies."""
_COST: Final = (
    "A cost is the tokens that the engine counted at the prices of the experiment (`usd_per_mtok`), of all requests of "
    "all sessions, those of failed and repeated conversations too; plus the time in which the engine was at play at "
    "`usd_per_hour`"
)
_Point: TypeAlias = tuple[str, float, float | None]
"""Of a line: its model, and where it stands."""


def engine_section(
    page: EnginesPage,
    reply_tokens: Mapping[str, Classes],
    definitions: Mapping[str, JsonObject],
    accounts: JsonObject,
    finished: int,
    notes: tuple[str, ...] = (),
) -> Iterator[Section]:
    """What the engines did and cost; `notes` say what is left out."""
    figures = (*engine_figures(page, reply_tokens, accounts), *cost_figures(definitions, accounts, finished))
    if figures or notes:
        yield Section(id="engines-used", title="Engines and costs", figures=figures, notes=notes)


def engine_figures(page: EnginesPage, reply_tokens: Mapping[str, Classes], accounts: JsonObject) -> Iterator[Figure]:
    """Requests in flight, tokens a second, latency, tokens of replies, and a table of all."""
    engines = [engine for engine in page.engines if sum(engine.done)]
    if not engines or not page.elapsed_s:
        return
    replies = sum(sum(engine.done) for engine in engines)
    yield _table(engines, page, replies, accounts)
    yield from _over_time(engines, page, replies)
    if any(engine.latency_counts for engine in engines):
        yield _curve(
            "latency",
            "How long does a request take?",
            f"The share of {replies:,} replies that took so long or less, from the departure of a request to its "
            "reply; classes are 12 % wide.",
            replies,
            DataColumn(name="latency_ms", title="latency", kind="number", unit="ms"),
            DataColumn(name="share", title="replies as fast or faster", kind="rate"),
            [point for engine in engines for point in _latencies(engine)],
            x_title="milliseconds from departure to reply (logarithmic)",
            across="logarithm",
        )
    if any(sum(engine.tokens) for engine in engines):
        yield _lengths({name: found for name, found in reply_tokens.items() if found.counts})


def _table(engines: Sequence[EngineSeries], page: EnginesPage, replies: int, accounts: JsonObject) -> Figure:
    return Figure(
        id="engines",
        title="What did each engine do?",
        caption=f"{replies:,} replies in {_duration(page.elapsed_s)} of play."
        + (" Used: the part of the time of all slots in which they had a request." if accounts else ""),
        n=replies,
        unit="replies",
        columns=(
            _MODEL,
            DataColumn(name="slots", title="slots, mean", kind="number"),
            DataColumn(name="used", title="used", kind="rate"),
            DataColumn(name="replies", title="replies", kind="count"),
            DataColumn(name="retries", title="retries", kind="count"),
            DataColumn(name="per_s", title="tokens a second", kind="number"),
            DataColumn(name="latency_p50", title="latency, median", kind="number", unit="s"),
            DataColumn(name="latency_p95", title="latency, 95th percentile", kind="number", unit="s"),
            DataColumn(name="queue_p50", title="queue, median", kind="number", unit="s"),
            DataColumn(name="queue_p95", title="queue, 95th percentile", kind="number", unit="s"),
            DataColumn(name="cached", title="prompt tokens cached", kind="rate"),
        ),
        rows=tuple(_row(engine, section(accounts, engine.model)) for engine in engines),
        notes=_without_event(accounts, replies),
    )


def _row(engine: EngineSeries, account: JsonObject) -> dict[str, Value]:
    p50_ms, p95_ms = engine.latency_p50_ms, engine.latency_p95_ms
    return {
        "model": engine.model,
        "slots": slots_mean(account),
        "used": slots_used(account),
        "replies": sum(engine.done),
        "retries": sum(engine.retries),
        "per_s": engine.tokens_per_s,
        "latency_p50": None if p50_ms is None else p50_ms / 1000,
        "latency_p95": None if p95_ms is None else p95_ms / 1000,
        "queue_p50": engine.queue_p50_s,
        "queue_p95": engine.queue_p95_s,
        "cached": engine.cached_share,
    }


def _without_event(accounts: JsonObject, replies: int) -> tuple[str, ...]:
    """What is said where more replies are recorded than have an event."""
    recorded = sum(integer(section(accounts, model).get("requests")) or 0 for model in accounts)
    if recorded <= replies:
        return ()
    return (
        f"{recorded - replies:,} of {recorded:,} replies are in no figure of what engines did: they were "
        "recorded, and their events were not, as in a session that was killed.",
    )


def _over_time(engines: Sequence[EngineSeries], page: EnginesPage, replies: int) -> Iterator[Figure]:
    # Few enough points to see.
    bins = max(1, -(-max(len(engine.busy) for engine in page.engines) // _POINTS_MAX))
    unit, scale = _time_unit(page.elapsed_s)
    sessions = f" {len(page.sessions)} sessions; the time between them is left out." if len(page.sessions) > 1 else ""
    caption = f"Means over {_duration(bins * page.bin_s)} each, over {_duration(page.elapsed_s)} of play.{sessions}"
    at = DataColumn(name="at", title="from", kind="number", unit=unit)

    def means(of: Mapping[str, Sequence[float]], per: float) -> Iterator[_Point]:
        for model, values in of.items():
            for place in range(0, len(values), bins):
                found = values[place : place + bins]
                yield model, place * page.bin_s / scale, sum(found) / (len(found) * per)

    yield _curve(
        "utilisation",
        "How many requests were in flight?",
        caption,
        replies,
        at,
        DataColumn(name="busy", title="requests in flight", kind="number"),
        means({engine.model: engine.busy for engine in engines}, 1),
        x_title=f"time at play ({unit})",
    )
    if any(sum(engine.tokens) for engine in engines):
        yield _curve(
            "throughput",
            "How many tokens of replies came each second?",
            caption,
            replies,
            at,
            DataColumn(name="tokens_per_s", title="tokens a second", kind="number"),
            means({engine.model: engine.tokens for engine in engines}, page.bin_s),
            x_title=f"time at play ({unit})",
        )


def _latencies(engine: EngineSeries) -> Iterator[_Point]:
    """The share of replies that took so long or less, class by class."""
    total, bounds = sum(engine.latency_counts), engine.latency_bounds_ms
    # The last class has no bound: it is as wide as the others.
    ends = (*bounds, float(f"{_CLASS * bounds[-1]:.4g}")) if bounds else (engine.latency_p50_ms or 0.1,)
    for bound, below in zip(ends, accumulate(engine.latency_counts), strict=False):
        yield engine.model, bound, below / total if total else None


def _lengths(found: Mapping[str, Classes]) -> Figure:
    shares = dict[tuple[str, int], float]()
    for model, classes in found.items():
        for bound, below in zip(classes.bounds, accumulate(classes.counts), strict=False):
            # Tokens are whole: up to 28.2 is up to 28. The last class has no bound, so the curve ends below it.
            shares[model, int(bound)] = below / sum(classes.counts)
    replies = sum(sum(classes.counts) for classes in found.values())
    return _curve(
        "reply-tokens",
        "How many tokens does a reply have?",
        f"The share of {replies:,} replies that had so many tokens or fewer; classes are 12 % wide.",
        replies,
        DataColumn(name="tokens", title="tokens", kind="count"),
        DataColumn(name="share", title="replies as short or shorter", kind="rate"),
        [(model, tokens, share) for (model, tokens), share in shares.items() if tokens],
        x_title="tokens of a reply (logarithmic)",
        across="logarithm",
    )


def _curve(
    name: str,
    title: str,
    caption: str,
    replies: int,
    x: DataColumn,
    y: DataColumn,
    points: Iterable[_Point],
    *,
    x_title: str,
    across: Across = "number",
) -> Figure:
    """A line in steps for each model."""
    rows: list[dict[str, Value]] = [{"model": model, x.name: at, y.name: value} for model, at, value in points]
    return Figure(
        id=name,
        title=title,
        caption=caption,
        n=replies,
        unit="replies",
        columns=(_MODEL, x, y),
        rows=tuple(rows),
        spec=over_time(
            rows,
            x=x.name,
            value=y.name,
            x_title=x_title,
            title=y.title,
            unit="rate" if y.kind == "rate" else "number",
            group="model",
            across=across,
            is_stepped=True,
        ),
    )


def _time_unit(elapsed_s: float) -> tuple[str, float]:
    if elapsed_s < 300:
        return "s", 1.0
    return ("min", 60.0) if elapsed_s < 4 * 3600 else ("h", 3600.0)


def _duration(seconds: float) -> str:
    unit, scale = _time_unit(seconds)
    return f"{seconds / scale:,.3g} {unit}"


def cost_figures(definitions: Mapping[str, JsonObject], accounts: JsonObject, finished: int) -> Iterator[Figure]:
    """What the engines cost, where any has a price; `finished` conversations came of it."""
    rows = [_cost_row(name, definitions, section(accounts, name)) for name in accounts]
    priced = [row for row in rows if row["usd"] is not None]
    if not priced:
        return
    total = sum(float(row["usd"] or 0) for row in priced)
    each = f"; {_usd(total / finished)} for each of {finished:,} finished conversations" if finished else ""
    without = [str(row["model"]) for row in rows if row["usd"] is None]
    yield Figure(
        id="cost",
        title="What did the run cost?",
        caption=f"{_usd(total)} in all{each}.",
        n=sum(int(row["requests"] or 0) for row in rows),
        unit="requests",
        columns=(
            _MODEL,
            DataColumn(name="requests", title="requests", kind="count"),
            DataColumn(name="prompt", title="prompt tokens", kind="count"),
            DataColumn(name="cached", title="of them cached", kind="count"),
            DataColumn(name="completion", title="completion tokens", kind="count"),
            DataColumn(name="hours", title="time at play", kind="number", unit="h"),
            DataColumn(name="usd_tokens", title="tokens", kind="number", unit="USD"),
            DataColumn(name="usd_hours", title="time", kind="number", unit="USD"),
            DataColumn(name="usd", title="cost", kind="number", unit="USD"),
        ),
        rows=tuple(rows),
        spec=bars(priced, label="model", value="usd", title="US dollars") if len(priced) > 1 else None,
        methods=(Method(statement=_COST),),
        notes=(f"Without a price: {', '.join(without)}.",) if without else (),
    )


def _cost_row(name: str, definitions: Mapping[str, JsonObject], account: JsonObject) -> dict[str, Value]:
    cost, tokens = cost_of(definition_of(name, definitions), account), section(account, "tokens")
    played_s = number(account.get("played_s"))
    return {
        "model": name,
        "requests": number(account.get("requests")),
        **{key: number(tokens.get(key)) for key in ("prompt", "cached", "completion")},
        "hours": None if played_s is None else played_s / 3600,
        "usd_tokens": cost.tokens,
        "usd_hours": cost.hours,
        "usd": cost.total,
    }


def _usd(value: float) -> str:
    return f"${value:,.2f}" if value >= 1 else f"${value:.3g}"
