"""What Prometheus scrapes, in its text format. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mac_runner.nano.outputs import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Tally:
    """Answers that were given, by path and status; the paths are those the server has."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    in_flight: int = 0


class Metric(NamedTuple):
    """One metric, and its value for each set of labels."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    values: Mapping[str, int]


def exposition(stats: EngineStats | None, tally: Tally) -> str:
    """The page; without `stats`, for an engine that does not answer, what the server itself knows."""
    metrics = [
        _one("nano_engine_up", "gauge", "Whether the engine answers.", stats is not None),
        _one("nano_http_requests_in_flight", "gauge", "Requests that are being answered.", tally.in_flight),
        Metric(
            "nano_http_requests_total",
            "counter",
            "Requests that were answered.",
            {f'{{path="{path}",status="{status}"}}': n for (path, status), n in sorted(tally.answers.items())},
        ),
    ]
    return "".join(_lines([*metrics, *(_of_the_engine(stats) if stats is not None else ())]))


def _of_the_engine(stats: EngineStats) -> Iterable[Metric]:
    free, cached = stats.num_free_blocks, stats.num_cached_blocks
    yield _one("nano_requests_running", "gauge", "Completions that are being computed.", stats.num_running)
    yield _one("nano_requests_waiting", "gauge", "Completions that wait for a seat.", stats.num_waiting)
    yield Metric(
        "nano_kv_blocks",
        "gauge",
        "Blocks of the KV cache.",
        {
            '{state="free"}': free,
            '{state="cached"}': cached,
            '{state="held"}': stats.num_blocks - free - cached,
        },
    )
    yield _one("nano_weight_version", "gauge", "The version of the weights.", stats.weight_version)
    yield _one("nano_steps_total", "counter", "Steps taken.", stats.num_steps)
    yield _one("nano_prompt_tokens_total", "counter", "Tokens of admitted prompts.", stats.num_prompt_tokens)
    cached_help = "Tokens of admitted prompts that were found in the cache."
    yield _one("nano_prompt_tokens_cached_total", "counter", cached_help, stats.num_cached_prompt_tokens)
    yield _one("nano_completion_tokens_total", "counter", "Tokens generated.", stats.num_completion_tokens)
    yield _one("nano_preemptions_total", "counter", "Completions that had to start anew.", stats.num_preemptions)


def _one(name: str, kind: Literal["gauge", "counter"], text: str, value: int) -> Metric:
    return Metric(name, kind, text, {"": value})


def _lines(metrics: Iterable[Metric]) -> Iterable[str]:
    for metric in metrics:
        yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
        yield from (f"{metric.name}{labels} {value:d}\n" for labels, value in metric.values.items())
