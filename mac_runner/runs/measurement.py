"""Metrics computed over a run that has been played: those that it names, or others.

The run is only read. What it keeps of its metrics was computed when each conversation ended, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mac_runner.metrics import Metric, measured
from mac_runner.reports.metrics import MetricCounter
from mac_runner.reports.rows import parse_row
from mac_runner.store import Disk, RunContents
from mac_runner.store.records import encode_json
from mac_runner.store.transcripts import METRIC_KEYS
from mac_runner.types import JsonObject


@dataclass(slots=True)
class Measurement:
    """What metrics make of the finished conversations of a run, once `rows` were taken."""

    contents: RunContents
    metrics: Sequence[Metric]
    conversations: int = 0
    differing: int = 0
    """Conversations of which the run keeps another value under the same name."""
    _counter: MetricCounter = field(default_factory=MetricCounter)

    def rows(self) -> Iterator[JsonObject]:
        """For each finished conversation its id, its index, and the values."""
        for row in self.contents.rows_in_task_order():
            if row.get("status") != "finished":
                continue
            found = measured(self.metrics, self.contents.acknowledged(row))
            kept, values = row.get("metrics"), found["metrics"]
            assert isinstance(values, dict), "a finished conversation has values"
            self.conversations += 1
            self.differing += isinstance(kept, dict) and any(
                name in kept and kept[name] != value for name, value in values.items()
            )
            bare = {key: value for key, value in row.items() if key not in METRIC_KEYS}
            self._counter.add(parse_row({**bare, **found}))
            yield {"task_id": row["task_id"], "index": row["index"], **found}

    def summary(self) -> JsonObject:
        """The sections of a summary that these values make."""
        return self._counter.report()


def measure_run(contents: RunContents, metrics: Sequence[Metric], to: Path | None) -> Measurement:
    """Compute the metrics over a run; with `to`, its rows are written to that new file, one JSON object a line."""
    found = Measurement(contents, metrics)
    if to is None:
        for _ in found.rows():
            pass
    else:
        Disk().write_atomic(to, (encode_json(row) + b"\n" for row in found.rows()))
    return found
