"""`mac-run plan`: how long a study will take, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import click

from mac_runner.cli.options import OfExperiment, commands, counts, option, switch
from mac_runner.cli.process import INTERRUPTED, leave_on_signals, report, say
from mac_runner.errors import ConfigError
from mac_runner.planning.cost import Cost, CostRequest, Row, cost_of
from mac_runner.planning.forecast import PILOT, EngineUse, Forecast
from mac_runner.printable import counted, printable
from mac_runner.reports import write_tables
from mac_runner.results import Table
from mac_runner.store.records import encode_json
from mac_runner.types import JsonObject, TokenCount


def _price(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """The value of `--price`, which `nan` and `inf` pass as numbers of a range."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not an amount; name what a GPU costs for an hour", ctx, param)
    return value


@dataclass(frozen=True, kw_only=True)
class Plan(OfExperiment):
    """Say how long EXPERIMENT will take, how many GPU-hours, and what limits it.

    The conversations are played in simulated time: by the scheduler and the environment of a run, on engines that take
    as long as the calibration says. No engine is started and nothing is written.

    Exit codes: 0 planned, 2 bad input, or a calibration that does not fit, 3 interrupted.
    """

    calibration: Path | None = option(
        "A run of the experiment, such as a pilot of 20 conversations, or a file of mac-run calibrate.", "RUN|FILE"
    )
    limit: int | None = option("Plan the first N conversations at most.", "N")
    lanes: tuple[int, ...] = option(
        "Servers of each engine, such as 1,8,64 [as EXPERIMENT has it].", "N,...", (), callback=counts
    )
    slots: tuple[int, ...] = option(
        "Requests at once on each server [as EXPERIMENT has it].", "N,...", (), callback=counts
    )
    price: float | None = option(
        "What a GPU costs for an hour.", "X", type=click.FloatRange(min=0, min_open=True), callback=_price
    )
    kv_tokens: int | None = option("Tokens in the KV cache of each server.", "N", type=click.IntRange(min=64))
    gpu: str | None = option("Which GPU of a calibration file is meant, where it has several.", "NAME")
    policy: str | None = option("Take the replies of this scripted player, not those of the run.", "NAME")
    reply_tokens: int | None = option("The tokens of a scripted player's reply.", "N")
    resamplings: int = option("For the interval [20].", "N", 20, type=click.IntRange(min=0, max=1000))
    json: bool = switch("For programs.")

    def work(self) -> None:
        """Simulate the study, and print what it takes. A signal leaves at once: nothing is lost but time."""
        leave_on_signals(words=INTERRUPTED)
        request = CostRequest(
            run=replace(self.request(), limit=self.limit),
            calibration=self.calibration,
            lanes=self.lanes,
            slots=self.slots,
            kv_tokens=self.kv_tokens,
            gpu=self.gpu,
            policy=self.policy,
            reply_tokens=self.reply_tokens,
            resamplings=self.resamplings,
        )
        found = cost_of(request, say)
        of_engines = "calibration", "lanes", "slots", "price", "kv_tokens", "gpu", "policy", "reply_tokens"
        if not found.rows and (flags := self.given(*of_engines)):
            raise ConfigError(f"{', '.join(flags)}: {found.notes[0]}")
        with report() as stream:
            if self.json:
                stream.write(encode_json(cost_json(found, self.price)).decode() + "\n")
            elif not found.rows:
                stream.write(f"{found.name}: {' '.join(found.notes)}\n")
            else:
                stream.writelines(f"{printable(line)}\n" for line in _head(found, self.price))
                write_tables([cost_table(found, self.price)], stream)
                stream.writelines(f"{printable(line)}\n" for line in _below(found))


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
                _limit(row.forecast)[0],
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
    yield f"limit: {_limit(forecast)[1]}"
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
    engines: JsonObject = {name: _engine_json(use) for name, use in forecast.engines.items()}
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


def _engine_json(use: EngineUse) -> JsonObject:
    known = asdict(use)
    tokens: TokenCount = known.pop("tokens")
    return {
        **{name: round(value, 4) for name, value in known.items()},
        "prompt_tokens": tokens.prompt,
        "cached_tokens": tokens.cached,
        "completion_tokens": tokens.completion,
    }


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g}"


_LIMITS: Final = {
    "client": ("client CPU", "the CPU of mac_runner's process; play shards in several processes (--shard auto/N)"),
    "kv": ("KV cache of {engine}", "the KV cache of {engine}; more lanes, or more memory for the cache"),
    "engine": ("engine {engine}", "the engine {engine}; more lanes"),
    "gating": ("gating", "turns that wait for other turns of their conversation; more lanes do not help"),
}
"""What holds a run back, as a cell and with what helps."""


def _limit(forecast: Forecast) -> tuple[str, ...]:
    return tuple(words.format(engine=forecast.limiting_engine) for words in _LIMITS[forecast.limit])


VERBS: Final = commands(plan=Plan)
