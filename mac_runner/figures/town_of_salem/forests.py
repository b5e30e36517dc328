"""Forests of rates over games: rows, columns, methods and notes alike."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.figures.estimates import (
    Estimate,
    estimate_columns,
    estimate_rows,
    interval_notes,
    rate_method,
)
from mac_runner.figures.model import Figure
from mac_runner.figures.plots import forest


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
    group: str = "",
    is_nested: bool = False,
    notes: tuple[str, ...] = (),
) -> Figure | None:
    """Rates in a row each, with intervals over games; None without any case."""
    estimates = [one for one in estimates if one.n]
    if not estimates:
        return None
    rows = estimate_rows(estimates, units="games")
    return Figure(
        id=name,
        title=title,
        caption=f"{caption} Lines are 95 % intervals over games.",
        n=games,
        unit="games",
        columns=estimate_columns(label, group=group, value=value, n=cases, units="games"),
        rows=rows,
        spec=forest(
            rows,
            label="label",
            value="value",
            unit="rate",
            title=value,
            group="group" if group else "",
            words="words",
            is_nested=is_nested,
        ),
        methods=(rate_method("game", games),),
        notes=(*interval_notes(estimates, "games"), *notes),
    )
