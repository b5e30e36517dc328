"""The list of a run's conversations: one line each, with the columns of its environment.

Lines are made as they are asked for. Their widths follow the first rows, so that a list of any length is printed
without being held.

Conditions on the columns of a list: `winner=mafia`, `days>5`, `failed`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from mac_runner.errors import ConfigError
from mac_runner.printable import printable
from mac_runner.problems import suggestion
from mac_runner.registry import environment_specs, results_specs
from mac_runner.reports.metrics import metrics_of
from mac_runner.results import NO_COLUMNS, UNKNOWN, Column, Columns, Value
from mac_runner.rewards import is_number, values_by_agent
from mac_runner.store import Run
from mac_runner.store.records import decode_json
from mac_runner.store.rows import DoneRow, IndexRow, RecordedRow, parse_row, row_with
from mac_runner.structs import decode
from mac_runner.types import JsonObject, JsonValue

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


ROWS_MEASURED: Final = 200
"""The rows that decide how wide columns are."""
_CELL_CHARS_MAX: Final = 40
_Kind: TypeAlias = Literal["word", "words", "number", "truth"]

_FIRST: Final = {"number": Column("number"), "id": Column("word", is_listed=False), "status": Column("word")}
_LAST: Final = {
    "turns": Column("number"),
    "corrections": Column("number"),
    "defaults": Column("number"),
    "tokens": Column("number", is_listed=False),
    "attempts": Column("number", is_listed=False),
    "failure": Column("word"),
}
_OF_ROW: Final[Mapping[str, Callable[[IndexRow], Value]]] = {
    "number": attrgetter("index"),
    "id": attrgetter("task_id"),
    "status": attrgetter("status"),
    "turns": attrgetter("counts.turns"),
    "corrections": attrgetter("counts.corrections"),
    "defaults": attrgetter("counts.defaults"),
    "tokens": lambda row: row.counts.tokens.prompt + row.counts.tokens.completion,
    "attempts": lambda row: len(row.failed_attempts) + 1,
    "failure": attrgetter("reason"),
}
"""The value of each of these columns."""


class Listed(NamedTuple):
    """How the conversations of a run are listed: the kind of their outcomes, and all columns by name."""

    kind: str | None
    """None where the columns are those of any outcome."""
    own: Columns
    columns: Mapping[str, Column]

    def values(self, row: JsonObject | DoneRow) -> Mapping[str, Value]:
        """The values of an index row, or of one that is still JSON. Raises RunDirectoryError for a damaged one."""
        found = _parsed(row)
        return {**self._played(found), **{name: value(found) for name, value in _OF_ROW.items()}}

    def by_column(self, rows: Iterable[JsonObject | DoneRow]) -> Iterator[tuple[str, Iterator[Value]]]:
        """The values of several rows, column by column. Raises RunDirectoryError for a damaged row."""
        found = [*map(_parsed, rows)]
        played = [*map(self._played, found)]
        for name in self.columns:
            yield name, map(_OF_ROW[name], found) if name in _OF_ROW else (values.get(name) for values in played)

    @property
    def row_kind(self) -> type[RecordedRow]:
        """What rows are best read as: then their outcomes are not read again."""
        return row_with(self.own.kind)

    def with_outcomes(self, rows: Iterable[JsonObject]) -> Listed:
        """The same list with columns for what the outcomes hold, if their environment has no columns of its own."""
        if self.own.of:
            return self
        found = (parse_row(row).outcome for row in rows)
        own = outcome_columns((outcome for outcome in found if isinstance(outcome, dict)), {*_FIRST, *_LAST})
        return Listed(None, own, {**_FIRST, **own.of, **_LAST})

    def with_metrics(self, rows: Iterable[JsonObject]) -> Listed:
        """The same list with a column for each metric that a row has a value of."""
        kinds: dict[str, bool] = {}
        for row in rows:
            for name, value in metrics_of(parse_row(row), self._taken).items():
                kinds[name] = kinds.get(name, True) and (value is None or isinstance(value, bool))
        found = {name: Column("truth" if is_truth else "number") for name, is_truth in kinds.items()}
        own = {name: column for name, column in self.columns.items() if name not in _LAST}
        return self._replace(columns={**own, **found, **_LAST})

    @property
    def _taken(self) -> Collection[str]:
        return {*_FIRST, *self.own.of, *_LAST}

    def _played(self, row: IndexRow) -> Mapping[str, Value]:
        """What came of it: the values of its outcome and of its metrics."""
        own = self._own(row.outcome)
        return {**own, **metrics_of(row, self._taken)} if row.metrics else own

    def _own(self, outcome: object) -> Mapping[str, Value]:
        if isinstance(outcome, msgspec.Raw):
            try:
                outcome = decode(outcome, self.own.kind)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                outcome = decode_json(bytes(outcome))
        if isinstance(outcome, dict):
            return self.own.read(outcome) if self.kind in (None, outcome.get("kind")) else {}
        return self.own.values(outcome) if isinstance(outcome, self.own.kind) else {}


def listed(environment: str) -> Listed:
    """How the conversations of an environment are listed; of one that is not installed, by what all of them have."""
    spec = environment_specs().get(environment)
    kind = "" if spec is None else spec.section
    own = results_specs()[kind].columns if kind in results_specs() else NO_COLUMNS
    return Listed(kind, own, {**_FIRST, **own.of, **_LAST})


def listed_run(contents: Run) -> Listed:
    """How the conversations of a run are listed, with columns for all that its rows hold."""
    how = listed(contents.environment_name).with_outcomes(contents.rows())
    return how.with_metrics(contents.rows()) if contents.resolved.get("metrics") else how


def _parsed(row: JsonObject | DoneRow) -> IndexRow:
    return row.parsed if isinstance(row, DoneRow) else parse_row(row)


def matching(
    rows: Iterable[JsonObject | DoneRow], how: Listed, conditions: Sequence[Condition]
) -> Iterator[Mapping[str, Value]]:
    """The values of the rows that meet all conditions."""
    for row in rows:
        values = how.values(row)
        # Every condition looks, so that each can say what it has seen.
        held = [condition.holds(values) for condition in conditions]
        if all(held):
            yield values


def list_lines(found: Iterable[Mapping[str, Value]], how: Listed, *, has_failures: bool) -> Iterator[str]:
    """A headed line for each conversation; none at all where there is no conversation."""
    shown = {
        name: column.kind == "number"
        for name, column in how.columns.items()
        if column.is_listed and (name != "failure" or has_failures)
    }
    rows = ([_cell(name, values.get(name)) for name in shown] for values in found)
    measured = list(islice(rows, ROWS_MEASURED))
    if not measured:
        return
    heads = list(shown)
    widths = [max(len(row[place]) for row in (heads, *measured)) for place in range(len(heads))]
    for row in chain([heads], measured, rows):
        cells = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, shown.values(), strict=True)
        )
        yield "  ".join(cells).rstrip()


def _cell(name: str, value: Value) -> str:
    text = printable(", ".join(words_of(value))) or UNKNOWN
    # The last column may be as long as it is.
    return text if name == "failure" or len(text) <= _CELL_CHARS_MAX else f"{text[: _CELL_CHARS_MAX - 1]}…"


def outcome_columns(outcomes: Iterable[JsonObject], taken: Collection[str]) -> Columns:
    """The columns of outcomes whose environment has none of its own, found by reading all of them.

    A mapping to numbers is listed as `Abel 3, Cain 5`, and its parts can be compared as `payoff.Abel`. A name that is
    taken has `outcome.` before it.
    """
    kinds: dict[str, set[_Kind]] = {}
    for outcome in outcomes:
        for name, value in _values(outcome, taken).items():
            kinds.setdefault(name, set()).add(_kind(value))
    listed = {name for name in kinds if not any(name.startswith(f"{other}.") for other in kinds)}
    # What is a number here and a word there is compared as words.
    columns = {
        name: Column(found.pop() if len(found) == 1 else "words", is_listed=name in listed)
        for name, found in kinds.items()
    }
    return Columns(columns, partial(_values, taken=taken))


def _values(outcome: JsonObject, taken: Collection[str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key, value in outcome.items():
        name = f"outcome.{key}" if key in taken else key
        if key != "kind" and value is not None:
            found |= _parts(name, value)
    return found


def _parts(name: str, value: JsonValue) -> dict[str, Value]:
    """The value of a column, and of those for its parts; nothing for what has no place in a line."""
    if is_number(value) or isinstance(value, str):
        return {name: value}
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return {name: [str(each) for each in value]}
    numbers = values_by_agent({name: value}, value).get(name, {}) if isinstance(value, dict) else {}
    if not numbers:
        return {}
    return {name: [f"{agent} {number:g}" for agent, number in numbers.items()]} | {
        f"{name}.{agent}": number for agent, number in numbers.items()
    }


def _kind(value: object) -> _Kind:
    match value:
        case bool():
            return "truth"
        case int() | float():
            return "number"
        case str():
            return "word"
        case _:
            return "words"
