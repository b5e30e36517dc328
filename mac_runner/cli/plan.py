"""`mac-run plan FILE --calibration RUN|FILE`: how long a study will take, and what it will cost."""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.cli.process import INTERRUPTED, Exit, leave_on_signals, report, say
from mac_runner.planning.cost import Cost, CostRequest, Row, cost_of
from mac_runner.planning.forecast import PILOT, Forecast
from mac_runner.printable import counted, printable
from mac_runner.reports import write_tables
from mac_runner.results import Table
from mac_runner.store.records import encode_json
from mac_runner.types import JsonObject


def show_cost(request: CostRequest, price: float | None, *, as_json: bool) -> Exit:
    """Simulate the study, and print what it takes. A signal leaves at once: nothing is lost but time."""
    leave_on_signals(words=INTERRUPTED)
    found = cost_of(request, say)
    with report() as stream:
        if as_json:
            stream.write(encode_json(cost_json(found, price)).decode() + "\n")
        else:
            stream.writelines(f"{printable(line)}\n" for line in _head(found, price))
            write_tables([cost_table(found, price)], stream)
            stream.writelines(f"{printable(line)}\n" for line in _below(found))
    return Exit.OK


def cost_json(found: Cost, price: float | None) -> JsonObject:
    """All figures, for programs."""
    low, high = found.spread or (None, None)
    rows: list[JsonObject] = [_row_json(row, price) for row in found.rows]
    return {
        "experiment": found.name,
        "resamplings": found.resamplings,
        "spread": None if low is None else {"low": low, "high": high, "share": 0.9},
        "price_per_gpu_hour": price,
        "enough_lanes": found.enough_lanes,
        "rows": [*rows],
        "replies": [*found.replies],
        "notes": [*found.notes],
    }


def cost_table(found: Cost, price: float | None) -> Table:
    """A row for each number of lanes and slots."""
    return Table(
        "plan",
        ("lanes", "slots"),
        ("hours", "GPU-hours", "cost", "slots used", "prefix hits", "waiting", "limit"),
        [
            (
                str(row.lanes),
                str(row.slots),
                _hours(row.forecast.seconds),
                f"{row.gpu_hours:.3g}",
                "-" if price is None else f"{price * row.gpu_hours:.2f}",
                f"{row.forecast.slot_share:.0%}",
                f"{row.forecast.hit_share:.0%}",
                f"{sum(engine.waiting for engine in row.forecast.engines.values()):.0f}",
                _limit(row.forecast),
            )
            for row in found.rows
        ],
    )


def _head(found: Cost, price: float | None) -> Iterator[str]:
    """The first row in words, with its interval."""
    row, forecast = found.rows[0], found.rows[0].forecast
    yield f"{found.name}: {forecast.conversations:,} conversations, about {forecast.turns:,} turns"
    low, high = found.spread or (1.0, 1.0)
    interval = f" ({_hours(low * forecast.seconds)} to {_hours(high * forecast.seconds)})" if found.spread else ""
    lanes = f"{counted(row.lanes, 'lanes')} of {counted(row.slots, 'slots')}"
    cost = "" if price is None else f", {price * row.gpu_hours:.2f} at {price:g} per GPU-hour"
    yield f"{_hours(forecast.seconds)} hours{interval} on {lanes}: {row.gpu_hours:.3g} GPU-hours{cost}"
    tokens = forecast.tokens
    yield f"{tokens.prompt:,} tokens in ({forecast.hit_share:.0%} from the cache), {tokens.completion:,} out"
    yield f"limit: {_limit_words(forecast)}"
    yield ""


def _below(found: Cost) -> Iterator[str]:
    first = found.rows[0].forecast
    yield ""
    seen = "" if first.conversations <= PILOT else f" of {PILOT} simulated ones"
    longest = f"the longest conversation{seen} alone takes {_hours(first.critical_path_s)} hours"
    yield f"{longest}: no number of lanes is faster"
    if (enough := found.enough_lanes) is not None:
        yield f"more than {enough} lanes save less than 10 %"
    if found.spread is not None:
        yield (
            f"interval: nine of ten of {found.resamplings} resamplings of the conversations; it does not hold the "
            "error of the step model"
        )
    if first.played < first.conversations:
        yield f"simulated: {first.played:,} conversations on {first.played_share:.1%} of the lanes, and scaled"
    if first.failed:
        yield f"{first.failed:,} conversations fail"
    yield from (f"replies: {line}" for line in found.replies)
    yield from (f"note: {line}" for line in found.notes)


def _row_json(row: Row, price: float | None) -> JsonObject:
    forecast = row.forecast
    engines: JsonObject = {
        name: {
            "lanes": use.lanes,
            "slots": use.slots,
            "requests": use.requests,
            "prompt_tokens": use.tokens.prompt,
            "cached_tokens": use.tokens.cached,
            "completion_tokens": use.tokens.completion,
            "slot_share": round(use.slot_share, 4),
            "step_share": round(use.step_share, 4),
            "kv_wait_share": round(use.kv_wait_share, 4),
            "waiting": round(use.waiting, 2),
            "preemptions": use.preemptions,
        }
        for name, use in forecast.engines.items()
    }
    return {
        "lanes": row.lanes,
        "slots": row.slots,
        "gpus": row.gpus,
        "hours": round(forecast.hours, 6),
        "gpu_hours": round(row.gpu_hours, 6),
        "cost": None if price is None else round(price * row.gpu_hours, 4),
        "conversations": forecast.conversations,
        "turns": forecast.turns,
        "failed": forecast.failed,
        "critical_path_hours": round(forecast.critical_path_s / 3600, 6),
        "client_share": round(forecast.client_share, 4),
        "limit": forecast.limit,
        "limiting_engine": forecast.limiting_engine,
        "simulated_conversations": forecast.played,
        "simulated_share_of_lanes": forecast.played_share,
        "engines": engines,
    }


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g}"


def _limit(forecast: Forecast) -> str:
    engine = "" if forecast.limiting_engine is None else f" {forecast.limiting_engine}"
    return {"client": "client CPU", "kv": "KV cache of", "engine": "engine", "gating": "gating"}[
        forecast.limit
    ] + engine


def _limit_words(forecast: Forecast) -> str:
    """What holds the run back, and what helps."""
    return {
        "client": "the CPU of mac_runner's process; play shards in several processes (--shard auto/N)",
        "kv": f"the KV cache of {forecast.limiting_engine}; more lanes, or more memory for the cache",
        "engine": f"the engine {forecast.limiting_engine}; more lanes",
        "gating": "turns that wait for other turns of their conversation; more lanes do not help",
    }[forecast.limit]
