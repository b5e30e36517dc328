"""How a grid stands, as JSON for programs and in lines for people: all of it, and one line per combination."""

from __future__ import annotations

from datetime import datetime

from mac_runner.limits import REPORT_GRID_ROWS_MAX
from mac_runner.printable import printable
from mac_runner.reports.standing import standing_json, tell_standing
from mac_runner.store import GridStanding
from mac_runner.types import JsonObject, JsonValue


def grid_standing_json(standing: GridStanding, now: datetime) -> JsonObject:
    """Everything that can be told of it; `now` is the reader's wall time, for ages."""
    told = standing_json(standing.whole, now)
    if standing.not_begun and told["state"] == "complete":
        told["state"] = "stopped"
    # What the sessions of a grid ended is known to its combinations, so neither pace nor time left is told of it.
    del told["session"], told["eta_s"]
    combinations: list[JsonValue] = [
        {
            "combination": known.slug,
            "values": dict(known.values),
            "conversations": None
            if found is None
            else {"planned": found.planned, "finished": found.finished, "failed": found.failed},
        }
        for known, found in standing.combinations
    ]
    return {
        **told,
        "complete_combinations": standing.complete,
        "combinations": combinations,
    }


def tell_grid_standing(told: JsonObject) -> str:
    """What `grid_standing_json` says, for people."""
    combinations = told["combinations"]
    listed = combinations if isinstance(combinations, list) else []
    lines = [tell_standing({**told, "session": None, "eta_s": None}).rstrip("\n")]
    lines.append(f"combinations    {told['complete_combinations']} of {len(listed)} complete")
    lines += [printable(_line(one)) for one in listed[:REPORT_GRID_ROWS_MAX] if isinstance(one, dict)]
    if len(listed) > REPORT_GRID_ROWS_MAX:
        lines.append(f"and {len(listed) - REPORT_GRID_ROWS_MAX} more combinations")
    return "\n".join(lines) + "\n"


def _line(combination: JsonObject) -> str:
    counts = combination["conversations"]
    if not isinstance(counts, dict):
        return f"  {combination['combination']}: not begun"
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"  {combination['combination']}: {counts['finished']} of {counts['planned']} finished{failed}"
