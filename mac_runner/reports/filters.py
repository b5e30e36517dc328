"""Conditions on the columns of a list: `winner=mafia`, `days>5`, `failed`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mac_runner.errors import ConfigError
from mac_runner.problems import suggestion
from mac_runner.results import Column, Value

FLAG: Final = "--where"
STATUSES: Final = ("finished", "failed")
SEEN_MAX: Final = 12
"""How many different values of a column are named when nothing meets a condition on it."""

_CONDITION: Final = re.compile(r"\s*([^\s!=<>]+)\s*(?:(!=|<=|>=|==|=|<|>)\s*(.*?)\s*)?", re.DOTALL)
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TRUTHS: Final = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(slots=True)
class Condition:
    """One condition. Words are compared without regard to case; of several words one has to be equal, or none (`!=`).

    A conversation without a value meets no condition on it, not even `!=`. `seen` collects values, up to SEEN_MAX, for
    the message when nothing met the conditions.
    """

    name: str
    comparison: str
    wanted: str | float | bool
    seen: set[str] = field(default_factory=set)

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether the values of a conversation meet it."""
        value = values.get(self.name)
        if value is None:
            return False
        if len(self.seen) <= SEEN_MAX:
            self.seen.update(words_of(value))
        if isinstance(self.wanted, bool) or isinstance(value, bool):
            return (value == self.wanted) == (self.comparison == "=")
        if isinstance(self.wanted, float):
            return isinstance(value, int | float) and _COMPARISONS[self.comparison](value, self.wanted)
        return (self.wanted in [word.casefold() for word in words_of(value)]) == (self.comparison == "=")


def words_of(value: Value) -> list[str]:
    """A value as the words that a list shows."""
    match value:
        case None:
            return []
        case bool():
            return ["yes" if value else "no"]
        case str():
            return [value]
        case int():
            return [str(value)]
        case float():
            return [f"{value:g}"]
        case _:
            return [*value]


def name_in(text: str) -> str | None:
    """The column that a condition is about; None where it is none."""
    match = _CONDITION.fullmatch(text)
    return None if match is None else match.group(1)


def parse_condition(text: str, columns: Mapping[str, Column]) -> Condition:
    """A condition as it was written. Raises ConfigError for one that says nothing about the `columns` there are."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConfigError(f"{FLAG}: found {text!r}; write a condition such as {_examples(columns)}")
    name, comparison, value = match.group(1), match.group(2), match.group(3)
    if comparison is None and name in STATUSES:
        name, comparison, value = "status", "=", name
    if name not in columns:
        raise ConfigError(f"{FLAG}: there is no {name!r}{suggestion(name, (*columns, *STATUSES))}")
    kind = columns[name].kind
    if comparison is None and kind == "truth":
        comparison, value = "=", "true"
    if not comparison or not value:
        raise ConfigError(f"{FLAG}: {name} is compared with nothing; write {_example(name, kind)}, in quotes")
    comparison = "=" if comparison == "==" else comparison
    return Condition(name, comparison, _wanted(name, kind, comparison, value))


def _wanted(name: str, kind: str, comparison: str, value: str) -> str | float | bool:
    if kind == "number":
        try:
            wanted = float(value)
        except ValueError:
            wanted = float("nan")
        if wanted != wanted:
            raise ConfigError(f"{FLAG}: {name} is a number, and {value!r} is none; write {_example(name, kind)}")
        return wanted
    if comparison not in ("=", "!="):
        raise ConfigError(f"{FLAG}: {name} has no order, so it cannot be {comparison} {value!r}; use = or !=")
    if kind == "truth":
        if (found := _TRUTHS.get(value.casefold())) is None:
            raise ConfigError(f"{FLAG}: {name} is yes or no, and {value!r} is neither")
        return found
    if name == "status" and value.casefold() not in STATUSES:
        raise ConfigError(f"{FLAG}: status is {' or '.join(STATUSES)}, not {value!r}")
    return value.casefold()


def _example(name: str, kind: str) -> str:
    return repr({"number": f"{name}>5", "truth": f"{name}=yes"}.get(kind, f"{name}=VALUE"))


def _examples(columns: Mapping[str, Column]) -> str:
    return f"{_example('turns', 'number')} or 'failed'; there are: {', '.join(sorted(columns))}"


def unmet(conditions: Sequence[Condition]) -> str:
    """Which values there were, where nothing met the conditions."""
    found = [
        f"{condition.name} is {_some(condition.seen)}"
        for condition in conditions
        if condition.seen and not isinstance(condition.wanted, float)
    ]
    return "; ".join(found)


def _some(seen: set[str]) -> str:
    named = sorted(seen)[:SEEN_MAX]
    return ", ".join(named) + (", …" if len(seen) > SEEN_MAX else "")
