"""The summary of a grid: what its `summary.json` holds. Pure.

The counts are those of the combinations added up; what the engines did is known for the grid as a whole only, since
they served all combinations together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mac_runner.reports.grid import GridRow, figures_of
from mac_runner.reports.summary import SUMMARY_FORMAT, models_of, times_of
from mac_runner.types import JsonObject, JsonValue

_SUMS = ("turns", "corrections", "defaults")


def summarise_grid(
    *,
    name: str,
    profile: str,
    rows: Sequence[GridRow],
    complete: int,
    left_out: Sequence[str],
    accounting: JsonObject,
) -> JsonObject:
    """Sum up the combinations that are asked for.

    `accounting` has `wall_s` and `played_s` over all sessions, when each of `sessions` began, and the account of each
    engine under `models`; `left_out` are combinations of earlier, which stay in the directory and count for nothing
    here.
    """
    summaries = [row.summary for row in rows if row.summary is not None]
    sessions = accounting.get("sessions")
    began = sessions if isinstance(sessions, dict) else {}
    return {
        "format": SUMMARY_FORMAT,
        "grid": name,
        "profile": profile,
        "combinations": {"asked": len(rows), "begun": len(summaries), "complete": complete},
        "conversations": _added(summaries, "conversations", ("planned", "finished", "failed")),
        **{key: sum(_integer(summary.get(key)) for summary in summaries) for key in _SUMS},
        "tokens": _tokens(summaries),
        "sessions": len(began),
        **times_of(accounting),
        "models": models_of(accounting.get("models")),
        "parts": [*_parts(rows, began)],
        "left_out": [*left_out],
        "results": [_result(row) for row in rows],
    }


def _parts(rows: Sequence[GridRow], began: Mapping[str, JsonValue]) -> list[JsonValue]:
    """Which combinations came with which session."""
    by_session: dict[int, list[JsonValue]] = {}
    for row in rows:
        by_session.setdefault(row.session, []).append(row.slug)
    return [
        {"session": session, "started_at": began.get(str(session)), "combinations": by_session[session]}
        for session in sorted(by_session)
    ]


def _result(row: GridRow) -> JsonObject:
    result: JsonObject = {"combination": row.slug, "values": dict(row.values), "session": row.session}
    if row.summary is None:
        return {**result, "conversations": None}
    figures: JsonObject = {
        name: {"n": figure.n, figure.unit: figure.value, "interval": [figure.lo, figure.hi]}
        for name, figure in figures_of(row.summary).items()
    }
    return {
        **result,
        "sessions": row.summary.get("sessions"),
        "conversations": row.summary.get("conversations"),
        "figures": figures,
    }


def _added(summaries: Sequence[JsonObject], section: str, keys: Sequence[str]) -> JsonObject:
    parts = [part for summary in summaries if isinstance(part := summary.get(section), dict)]
    return {key: sum(_integer(part.get(key)) for part in parts) for key in keys}


def _tokens(summaries: Sequence[JsonObject]) -> JsonObject:
    parts = [part for summary in summaries if isinstance(part := summary.get("tokens"), dict)]
    tokens = _added(summaries, "tokens", ("prompt", "completion"))
    tokens["timing"] = _added(parts, "timing", ("cached",))
    uncounted = _added(summaries, "tokens", ("uncounted_turns",))
    return {**tokens, **uncounted} if uncounted["uncounted_turns"] else tokens


def _integer(value: JsonValue) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
