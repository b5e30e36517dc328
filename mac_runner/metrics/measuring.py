"""What metrics make of an ended conversation: numbers by name, and an error for each metric that has none.

A metric is code of a user. What it raises or returns wrongly costs its own value alone: the value is null, and the
error is kept beside it. Metrics run between two replies, so a slow one holds up the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Final, NamedTuple, TypeAlias

from mac_runner.errors import ConfigError, ConversationError, MacRunnerError, ShortageError, boundary
from mac_runner.metrics.ended import EndedConversation, ended_conversation
from mac_runner.plugins import Plugin, place_of, plain_function
from mac_runner.types import JsonObject

SHAPE: Final = "a metric is a function `metric(conversation)` that returns a number, or numbers by name"
VALUES_MAX: Final = 200
"""The most values of one metric."""
_VALUE_MAX: Final = 1e150
"""The largest value, either way: its square is still a number."""
_NAME: Final = re.compile(r"[^\s.=<>!~,|][^\s=<>!~,|]{0,79}")
_ERROR_CHARS_MAX: Final = 300

Measure: TypeAlias = Callable[[JsonObject], JsonObject]
"""From the transcript of an ended conversation to what is kept of its metrics (`measured`)."""


class Metric(NamedTuple):
    """A function from an ended conversation to numbers, and the name of its value."""

    name: str
    function: Callable[[EndedConversation], object]


def own_metric(plugin: Plugin) -> Metric:
    """The metric of an object that an experiment names. Raises ConfigError for an object that is none."""
    function = plain_function(plugin, 1, SHAPE)
    name = plugin.name.rpartition(":")[2]
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{plugin.name!r} gives its value the name {name!r}, which cannot be one; {SHAPE}")
    return Metric(name, function)


def measured(metrics: Sequence[Metric], transcript: JsonObject) -> JsonObject:
    """What a transcript keeps of its metrics: `metrics`, and `metric_errors` where there are any.

    Nothing where there are no metrics, or the conversation failed: it has no result to measure.
    """
    if not metrics or transcript["status"] != "finished":
        return {}
    values: JsonObject = {}
    errors: JsonObject = {}
    conversation = ended_conversation(transcript)
    for metric in metrics:
        try:
            with boundary(ConversationError, metric.name):
                values |= _values(metric, metric.function(conversation.copied()))
        except ShortageError:
            raise
        except MacRunnerError as fault:
            values[metric.name] = None
            errors[metric.name] = words_of(fault)
    return {"metrics": values, **({"metric_errors": errors} if errors else {})}


def _values(metric: Metric, found: object) -> JsonObject:
    if not isinstance(found, Mapping):
        return {metric.name: plain_number(metric.name, found)}
    if len(found) > VALUES_MAX:
        raise ValueError(f"it returned {len(found)} values; at most {VALUES_MAX} are kept")
    return {
        _joined(metric.name, name): plain_number(f"{metric.name}[{name!r}]", value) for name, value in found.items()
    }


def _joined(metric: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"it returned a value called {name!r}; names are text without spaces and signs")
    return f"{metric}.{name}"


def plain_number(what: str, value: Any) -> bool | int | float:
    """A number as JSON holds it; one of NumPy or torch counts as what it holds."""
    if not isinstance(value, Real) and callable(item := getattr(value, "item", None)):
        value = item()
    if isinstance(value, bool):
        return value
    if isinstance(value, Real):
        number = int(value) if isinstance(value, Integral) else float(value)
        if not abs(number) <= _VALUE_MAX:  # Nor is what is not a number.
            found = "too large" if abs(number) > _VALUE_MAX else "not a number"
            raise ValueError(f"{what} is {found}; a value lies between -{_VALUE_MAX:g} and {_VALUE_MAX:g}")
        return number
    raise TypeError(f"{what} is {type(value).__name__}; a value is a number or a truth value")


def words_of(fault: MacRunnerError) -> str:
    """The error with the line of the user's code that raised it."""
    return (place_of(fault.__cause__, has_folder=False) if fault.__cause__ is not None else str(fault))[
        :_ERROR_CHARS_MAX
    ]
