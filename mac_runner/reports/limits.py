"""What a run cost so far, and which limit of its experiment it has reached; read from its account alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mac_runner.results import number, section
from mac_runner.types import JsonObject

_MTOK: Final = 1_000_000
_HOUR_S: Final = 3600


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
    of_tokens = None
    if prices:
        counted = {key: number(tokens.get(key)) or 0.0 for key in ("prompt", "cached", "completion")}
        prompt, completion = (number(prices.get(key)) or 0.0 for key in ("prompt", "completion"))
        cached = number(prices.get("cached"))
        new = max(0.0, counted["prompt"] - counted["cached"])
        of_cached = counted["cached"] * (prompt if cached is None else cached)
        of_tokens = (new * prompt + of_cached + counted["completion"] * completion) / _MTOK
    return Cost(of_tokens, None if per_hour is None or played_s is None else per_hour * played_s / _HOUR_S)


def definition_of(engine: str, definitions: Mapping[str, JsonObject]) -> JsonObject:
    """The definition of an engine, whose name a digest may follow in a grid; empty where it is not known."""
    return definitions.get(engine) or definitions.get(engine.partition("#")[0]) or {}


def limit_reached(experiment: JsonObject, used: JsonObject) -> str | None:
    """The limit that a run has reached by what it used, in words; None for none.

    Of the experiment only `limits` and `model_definitions` are read, which have the prices.
    """
    limits = section(experiment, "limits")
    for key, measure in _MEASURES.items():
        limit = number(limits.get(key))
        if limit is not None and (found := measure(experiment, used)) >= limit:
            return f"limits.{key}: {_text(found)} used of {_text(limit)}"
    return None


def _tokens(_experiment: JsonObject, used: JsonObject) -> float:
    accounts = section(used, "models")
    counts = [section(section(accounts, name), "tokens") for name in accounts]
    return sum(number(tokens.get(key)) or 0 for tokens in counts for key in ("prompt", "completion"))


def _usd(experiment: JsonObject, used: JsonObject) -> float:
    definitions, accounts = section(experiment, "model_definitions"), section(used, "models")
    known = {name: section(definitions, name) for name in definitions}
    return sum(cost_of(definition_of(name, known), section(accounts, name)).total or 0.0 for name in accounts)


def _hours(_experiment: JsonObject, used: JsonObject) -> float:
    return (number(used.get("played_s")) or 0.0) / _HOUR_S


_MEASURES: Final = {"tokens": _tokens, "usd": _usd, "hours": _hours}


def _text(amount: float) -> str:
    if amount == int(amount):
        return f"{int(amount):,}"
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.3g}"
