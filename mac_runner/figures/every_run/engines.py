"""What the engines did over time: how busy they were, how fast, and how long requests took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mac_runner.figures.model import DataColumn, Figure, Value
from mac_runner.figures.plots import steps
from mac_runner.reports.summary import slots_mean, slots_used
from mac_runner.results import integer, section
from mac_runner.types import JsonObject
from mac_runner.view_model import EngineSeries, EnginesPage
from mac_runner.views.engines import Classes

_POINTS_MAX = 150
_MODEL = DataColumn(name="model", title="model")


def engine_figures(page: EnginesPage, reply_tokens: Mapping[str, Classes], accounts: JsonObject) -> Iterator[Figure]:
    """Requests in flight, tokens a second, latency, tokens of replies, and a table of all."""
    engines = [engine for engine in page.engines if sum(engine.done)]
    if not engines or not page.elapsed_s:
        return
    requests = sum(sum(engine.done) for engine in engines)
    yield _table(engines, page, requests, accounts)
    yield from _over_time(engines, page, requests)
    if any(engine.latency_counts for engine in engines):
        yield _latency(engines, requests)
    if any(sum(engine.tokens) for engine in engines):
        yield _lengths({name: found for name, found in reply_tokens.items() if found.counts})


def _table(engines: Sequence[EngineSeries], page: EnginesPage, requests: int, accounts: JsonObject) -> Figure:
    return Figure(
        id="engines",
        title="What did each engine do?",
        caption=f"{requests:,} replies in {_duration(page.elapsed_s)} of play."
        + (" Used: the part of the time of all slots in which they had a request." if accounts else ""),
        n=requests,
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
        notes=_without_event(accounts, requests),
    )


def _without_event(accounts: JsonObject, requests: int) -> tuple[str, ...]:
    """What is said where more replies are recorded than have an event."""
    recorded = sum(integer(section(accounts, model).get("requests")) or 0 for model in accounts)
    if recorded <= requests:
        return ()
    return (
        f"{recorded - requests:,} of {recorded:,} replies are in no figure of what engines did: they were "
        "recorded, and their events were not, as in a session that was killed.",
    )


def _row(engine: EngineSeries, account: JsonObject) -> dict[str, Value]:
    return {
        "model": engine.model,
        "slots": slots_mean(account),
        "used": slots_used(account),
        "replies": sum(engine.done),
        "retries": sum(engine.retries),
        "per_s": engine.tokens_per_s,
        "latency_p50": _seconds(engine.latency_p50_ms),
        "latency_p95": _seconds(engine.latency_p95_ms),
        "queue_p50": engine.queue_p50_s,
        "queue_p95": engine.queue_p95_s,
        "cached": engine.cached_share,
    }


def _over_time(engines: Sequence[EngineSeries], page: EnginesPage, requests: int) -> Iterator[Figure]:
    width, bins = _merged(page)
    unit, scale = _time_unit(page.elapsed_s)
    rows: list[dict[str, Value]] = []
    for engine in engines:
        for place in range(0, len(engine.busy), bins):
            busy = engine.busy[place : place + bins]
            tokens = sum(engine.tokens[place : place + bins])
            rows.append(
                {
                    "model": engine.model,
                    "at": place * page.bin_s / scale,
                    "busy": sum(busy) / len(busy),
                    "tokens_per_s": tokens / (len(busy) * page.bin_s),
                }
            )
    sessions = f" {len(page.sessions)} sessions; the time between them is left out." if len(page.sessions) > 1 else ""
    caption = f"Means over {_duration(width)} each, over {_duration(page.elapsed_s)} of play.{sessions}"
    at = DataColumn(name="at", title="from", kind="number", unit=unit)
    titles, busy_title = f"time at play ({unit})", "requests in flight"
    yield Figure(
        id="utilisation",
        title="How many requests were in flight?",
        caption=caption,
        n=requests,
        unit="replies",
        columns=(_MODEL, at, DataColumn(name="busy", title=busy_title, kind="number")),
        rows=tuple({key: row[key] for key in ("model", "at", "busy")} for row in rows),
        spec=steps(rows, x="at", y="busy", titles=(titles, busy_title), group="model"),
    )
    if any(sum(engine.tokens) for engine in engines):
        yield Figure(
            id="throughput",
            title="How many tokens of replies came each second?",
            caption=caption,
            n=requests,
            unit="replies",
            columns=(_MODEL, at, DataColumn(name="tokens_per_s", title="tokens a second", kind="number")),
            rows=tuple({key: row[key] for key in ("model", "at", "tokens_per_s")} for row in rows),
            spec=steps(rows, x="at", y="tokens_per_s", titles=(titles, "tokens a second"), group="model"),
        )


def _merged(page: EnginesPage) -> tuple[float, int]:
    """The width of a point of a line, and how many bins it has: few enough points to see."""
    longest = max(len(engine.busy) for engine in page.engines)
    bins = max(1, -(-longest // _POINTS_MAX))
    return bins * page.bin_s, bins


def _latency(engines: Sequence[EngineSeries], requests: int) -> Figure:
    rows: list[dict[str, Value]] = []
    for engine in engines:
        total, below = sum(engine.latency_counts), 0
        bounds = engine.latency_bounds_ms
        # The last class has no bound: it is as wide as the others.
        ends = (*bounds, float(f"{1.122 * bounds[-1]:.4g}")) if bounds else (engine.latency_p50_ms or 0.1,)
        for bound, count in zip(ends, engine.latency_counts, strict=False):
            below += count
            rows.append({"model": engine.model, "latency_ms": bound, "share": below / total if total else None})
    spec = steps(
        rows,
        x="latency_ms",
        y="share",
        unit="rate",
        titles=("milliseconds from departure to reply (logarithmic)", "replies as fast or faster"),
        group="model",
        is_log=True,
    )
    return Figure(
        id="latency",
        title="How long does a request take?",
        caption=f"The share of {requests:,} replies that took so long or less, from the departure of a request to its "
        "reply; classes are 12 % wide.",
        n=requests,
        unit="replies",
        columns=(
            _MODEL,
            DataColumn(name="latency_ms", title="latency", kind="number", unit="ms"),
            DataColumn(name="share", title="replies as fast or faster", kind="rate"),
        ),
        rows=tuple(rows),
        spec=spec,
    )


def _lengths(found: Mapping[str, Classes]) -> Figure:
    """How many tokens replies have."""
    rows: list[dict[str, Value]] = []
    for model, classes in found.items():
        total, below = sum(classes.counts), 0
        shares = dict[int, float]()
        for bound, count in zip(classes.bounds, classes.counts, strict=True):
            below += count
            # Tokens are whole: up to 28.2 is up to 28.
            shares[int(bound)] = below / total
        rows += [{"model": model, "tokens": tokens, "share": share} for tokens, share in shares.items() if tokens]
    replies = sum(sum(classes.counts) for classes in found.values())
    return Figure(
        id="reply-tokens",
        title="How many tokens does a reply have?",
        caption=f"The share of {replies:,} replies that had so many tokens or fewer; classes are 12 % wide.",
        n=replies,
        unit="replies",
        columns=(
            _MODEL,
            DataColumn(name="tokens", title="tokens", kind="count"),
            DataColumn(name="share", title="replies as short or shorter", kind="rate"),
        ),
        rows=tuple(rows),
        spec=steps(
            rows,
            x="tokens",
            y="share",
            unit="rate",
            titles=("tokens of a reply (logarithmic)", "replies as short or shorter"),
            group="model",
            is_log=True,
        ),
    )


def _time_unit(elapsed_s: float) -> tuple[str, float]:
    if elapsed_s < 300:
        return "s", 1.0
    return ("min", 60.0) if elapsed_s < 4 * 3600 else ("h", 3600.0)


def _duration(seconds: float) -> str:
    unit, scale = _time_unit(seconds)
    return f"{seconds / scale:,.3g} {unit}"


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
