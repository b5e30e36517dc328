"""What a run cost: the tokens and hours of its engines at the prices that the experiment names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from mac_runner.figures.model import DataColumn, Figure, Method, Value
from mac_runner.figures.plots import bars
from mac_runner.results import number, section
from mac_runner.types import JsonObject

_MTOK: Final = 1_000_000
_STATEMENT: Final = (
    "A cost is the tokens that the engine counted at the prices of the experiment (`usd_per_mtok`), of all requests of "
    "all sessions, those of failed and repeated conversations too; plus the time in which the engine was at play at "
    "`usd_per_hour`"
)


class Cost(NamedTuple):
    """What one engine cost, in US dollars; None for a part without a price."""

    tokens: float | None
    hours: float | None

    @property
    def total(self) -> float | None:
        """Both parts; None where neither has a price."""
        parts = [part for part in self if part is not None]
        return sum(parts) if parts else None


def cost_of(definition: JsonObject, account: JsonObject) -> Cost:
    """What an engine cost: its entry of `model_definitions`, and its part of the accounting."""
    prices, tokens = section(definition, "usd_per_mtok"), section(account, "tokens")
    per_hour, played_s = number(definition.get("usd_per_hour")), number(account.get("played_s"))
    counted = {key: number(tokens.get(key)) or 0.0 for key in ("prompt", "cached", "completion")}
    of_tokens = None
    if prices:
        prompt, completion = (number(prices.get(key)) or 0.0 for key in ("prompt", "completion"))
        cached = number(prices.get("cached"))
        new = max(0.0, counted["prompt"] - counted["cached"])
        of_cached = counted["cached"] * (prompt if cached is None else cached)
        of_tokens = (new * prompt + of_cached + counted["completion"] * completion) / _MTOK
    return Cost(of_tokens, None if per_hour is None or played_s is None else per_hour * played_s / 3600)


def cost_figures(definitions: Mapping[str, JsonObject], accounts: JsonObject, finished: int) -> Iterator[Figure]:
    """What the engines cost, where any has a price; `finished` conversations came of it."""
    rows = [_row(name, definitions, section(accounts, name)) for name in accounts]
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
            DataColumn(name="model", title="model"),
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
        methods=(Method(statement=_STATEMENT),),
        notes=(f"Without a price: {', '.join(without)}.",) if without else (),
    )


def definition_of(definitions: Mapping[str, JsonObject], engine: str) -> JsonObject:
    """The entry of `model_definitions` of an engine; in a grid a digest may follow its name."""
    return definitions.get(engine) or definitions.get(engine.partition("#")[0]) or {}


def _row(name: str, definitions: Mapping[str, JsonObject], account: JsonObject) -> dict[str, Value]:
    cost, tokens = cost_of(definition_of(definitions, name), account), section(account, "tokens")
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
