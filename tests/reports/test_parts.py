from __future__ import annotations

from mac_runner.reports import render_summary, summarise
from mac_runner.reports.summary import STRETCHES_MAX
from mac_runner.reports.tables import PARTS_MAX
from mac_runner.types import JsonObject, JsonValue


def part(session: int, indexes: list[JsonValue], **more: JsonValue) -> JsonObject:
    start = f"2025-01-{session:02}T00:00:00.000Z"
    return {"session": session, "started_at": start, "finished": 2, "failed": 1, "indexes": indexes, **more}


def summary(*parts: JsonValue) -> JsonObject:
    return summarise(experiment_name="demo", rows=[], planned=3, accounting={"parts": [*parts], "merged_runs": 2})


def test_parts_name_their_conversations_in_short() -> None:
    stretches: list[JsonValue] = [[0, 31, 1], [40, 40, 1], [41, 99, 2]]

    assert summary(part(1, stretches))["parts"] == [part(1, []) | {"indexes": "0-31, 40, 41-99 by 2"}]


def test_stretches_beyond_the_bound_are_counted() -> None:
    stretches: list[JsonValue] = [[2 * n, 2 * n, 1] for n in range(STRETCHES_MAX + 3)]
    (told,) = [found["indexes"] for found in _objects(summary(part(1, stretches))["parts"])]

    assert str(told).endswith("14, and 3 more stretches")


def test_parts_are_printed_where_there_are_several() -> None:
    first, second = part(1, [[0, 9, 1]]), part(2, [[10, 19, 1]])

    assert "parts" not in render_summary(summary(first))
    text = render_summary(summary(first, second))
    assert "2025-01-01T00:00:00.000Z   0-9 " in text
    assert "2025-01-02T00:00:00.000Z   10-19 " in text
    assert "added up over 2 merged runs" in text


def test_parts_tell_the_run_they_were_merged_from() -> None:
    text = render_summary(summary(part(1, [[0, 8, 2]], run="demo.shard-1-of-2"), part(2, [[1, 9, 2]], run="x")))

    assert "demo.shard-1-of-2   0-8 by 2" in text


def test_parts_beyond_the_bound_are_counted_and_the_latest_are_shown() -> None:
    text = render_summary(summary(*(part(n, [[n, n, 1]]) for n in range(1, PARTS_MAX + 4))))

    assert "2025-01-03" not in text
    assert "2025-01-04" in text
    assert "and 3 earlier sessions" in text


def _objects(value: JsonValue) -> list[JsonObject]:
    assert isinstance(value, list)
    return [found for found in value if isinstance(found, dict)]
