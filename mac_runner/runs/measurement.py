"""Metrics computed over a run that has been played: those that it names, or others.

The run is only read. What it keeps of its metrics was computed when each conversation ended, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mac_runner.config import Experiment
from mac_runner.errors import ConfigError, UntrustedCodeError
from mac_runner.intervals import one_cluster
from mac_runner.metrics import Measure, Metric, Reward, measured, own_metric, own_reward, shaped
from mac_runner.plugins import loaded_plugin
from mac_runner.registry import load_function
from mac_runner.reports.metrics import MetricCounter
from mac_runner.store import Disk, Run
from mac_runner.store.records import encode_json
from mac_runner.store.rows import parse_row
from mac_runner.store.transcripts import METRIC_KEYS
from mac_runner.types import JsonObject


def metrics_of(experiment: Experiment) -> tuple[Metric, ...]:
    """The metrics of an experiment. Raises UntrustedCodeError where their code was not loaded."""
    found = []
    for name in experiment.metrics:
        code = experiment.metric_plugins.get(name)
        plugin = None if code is None else loaded_plugin("metrics", name, code.sha256)
        if plugin is None:
            raise UntrustedCodeError(f"the code of the metric {name} is imported only with --trust")
        found.append(own_metric(plugin))
    return tuple(found)


def named_metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Metrics that a command line names; files are relative to the working directory. Raises ConfigError."""
    found: dict[str, Metric] = {}
    for name in names:
        metric = own_metric(load_function("metrics", name, Path()))
        if metric.name in found:
            raise ConfigError(f"METRIC: two of them are called {metric.name!r}; compute them one after the other")
        found[metric.name] = metric
    return tuple(found.values())


def measure_of(experiment: Experiment) -> Measure | None:
    """What an experiment keeps of its metrics and shaped rewards, from a transcript; None where it has none."""
    metrics, shaping = metrics_of(experiment), _shaping(experiment)
    if not (metrics or shaping):
        return None
    return lambda transcript: measured(metrics, transcript) | shaped(shaping, transcript)


def _shaping(experiment: Experiment) -> Mapping[str, Reward]:
    """The shaped rewards of an experiment. Raises UntrustedCodeError where their code was not loaded."""
    found = {}
    for own, name in ({} if experiment.rewards is None else experiment.rewards.shaped).items():
        code = experiment.plugins.get(name)
        plugin = None if code is None else loaded_plugin("rewards", name, code.sha256)
        if plugin is None:
            raise UntrustedCodeError(f"the code of the reward {name} is imported only with --trust")
        found[own] = own_reward(plugin)
    return found


@dataclass(slots=True)
class Measurement:
    """What metrics make of the finished conversations of a run, once `rows` were taken."""

    contents: Run
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
            parsed = parse_row({**bare, **found})
            with one_cluster(parsed.cluster):
                self._counter.add(parsed)
            yield {"task_id": row["task_id"], "index": row["index"], **found}

    def summary(self) -> JsonObject:
        """The sections of a summary that these values make."""
        return self._counter.report()


def measure_run(contents: Run, metrics: Sequence[Metric], to: Path | None) -> Measurement:
    """Compute the metrics over a run; with `to`, its rows are written to that new file, one JSON object a line."""
    found = Measurement(contents, metrics)
    if to is None:
        for _ in found.rows():
            pass
    else:
        Disk().write_atomic(to, (encode_json(row) + b"\n" for row in found.rows()))
    return found
