"""Which part of a run came when: the sessions that ended conversations, each with when it began and what it ended."""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.limits import REPORT_STRETCHES_MAX
from mac_runner.types import JsonObject, JsonValue


def parts_of(accounting: JsonObject) -> list[JsonValue]:
    """The parts as the summary holds them: those of the accounting, their conversations in short."""
    parts = accounting.get("parts")
    return [_part(part) for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _part(part: JsonObject) -> JsonObject:
    stretches = part.get("indexes")
    return {**part, "indexes": ", ".join(_texts(stretches if isinstance(stretches, list) else []))}


def _texts(stretches: list[JsonValue]) -> Iterator[str]:
    """`0-31`, `40`, `41-99 by 2`, and how many more there are."""
    for stretch in stretches[:REPORT_STRETCHES_MAX]:
        if isinstance(stretch, list):
            first, last, step = stretch
            yield f"{first}" if first == last else f"{first}-{last}" if step == 1 else f"{first}-{last} by {step}"
    if (hidden := len(stretches) - REPORT_STRETCHES_MAX) > 0:
        yield f"and {hidden} more stretches"
