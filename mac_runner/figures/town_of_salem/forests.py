"""Forests of rates over games: rows, columns, methods and notes alike."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.figures.charts import forest
from mac_runner.figures.estimates import (
    Estimate,
    estimate_columns,
    estimate_rows,
    interval_notes,
    of_rate,
    rate_method,
)
from mac_runner.figures.model import Figure
from mac_runner.figures.town_of_salem.games import Tally, in_order, side_of


def role_estimates(tally: Tally, group: str) -> list[Estimate]:
    """The rates that are counted under a group and a role, faction by faction and the highest first."""
    roles = [str(key[1]) for key in tally.keys_of(group)]
    order = in_order(side_of(role) for role in roles)
    estimates = [of_rate(role, tally.get(group, role), series=side_of(role)) for role in roles]
    return sorted(estimates, key=lambda one: (order.index(one.series), -(one.value or 0), one.label))


def rate_forest(
    name: str,
    title: str,
    caption: str,
    estimates: Sequence[Estimate],
    *,
    games: int,
    label: str,
    value: str,
    cases: str = "",
    series: str = "",
    notes: tuple[str, ...] = (),
) -> Figure | None:
    """Rates in a row each, with intervals over games; None without any case."""
    estimates = [one for one in estimates if one.n]
    if not estimates:
        return None
    return Figure(
        id=name,
        title=title,
        caption=f"{caption} Lines are 95 % intervals over games.",
        n=games,
        unit="games",
        columns=estimate_columns(label, series=series, value=value, n=cases, units="games"),
        rows=estimate_rows(estimates),
        spec=forest(estimate_rows(estimates), title=value, units="games"),
        methods=(rate_method("game", games),),
        notes=(*interval_notes(estimates, "games"), *notes),
    )
