"""The filter language of the pages: `days>5 winner=town|mafia status:failed "a text"`.

It is read here for what the server works out over chosen conversations. The page reads it in the same way
(`viewer/src/filter.ts`). A row has to meet all parts. Numbers with commas choose conversations by number.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mac_runner.errors import ConfigError
from mac_runner.problems import suggestion
from mac_runner.reports.conversations import Listed
from mac_runner.reports.filters import STATUSES, words_of
from mac_runner.results import Column, Value
from mac_runner.types import JsonObject

_PART: Final = re.compile(r'(?:"[^"]*"?|[^\s"])+')
_TERM: Final = re.compile(r'([^\s!=<>:"]+)(!=|<=|>=|==|=|<|>|:)(.*)', re.DOTALL)
_ALTERNATIVE: Final = re.compile(r'(?:"[^"]*"?|[^|"])+')
_NUMBERS: Final = re.compile(r"[0-9]{1,15}(?:,[0-9]{1,15})*")
_TRUTHS: Final = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "=": operator.eq,
    ":": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Term(NamedTuple):
    """One part of a filter. `column` is empty for a text that any column of words may contain."""

    column: str
    comparison: str
    wanted: tuple[str, ...]


def chosen_rows(rows: Iterator[JsonObject], how: Listed, only: str) -> Iterator[JsonObject]:
    """The index rows that a filter chooses; all for an empty one. Raises ConfigError for one that cannot be read."""
    if _NUMBERS.fullmatch(only):
        numbers = set(map(int, only.split(",")))
        return (row for row in rows if row["index"] in numbers)
    terms = parse_filter(only, how.columns)
    return (row for row in rows if not terms or is_met(terms, how.values(row), how.columns))


def parse_filter(text: str, columns: Mapping[str, Column]) -> tuple[Term, ...]:
    """The parts of a filter. Raises ConfigError naming the part that says nothing about the columns there are."""
    return tuple(_term(part, columns) for part in _PART.findall(text))


def is_met(terms: Sequence[Term], values: Mapping[str, Value], columns: Mapping[str, Column]) -> bool:
    """Whether the values of a row meet all parts."""
    return all(_is_met(term, values, columns) for term in terms)


def _term(part: str, columns: Mapping[str, Column]) -> Term:
    match = None if part.startswith('"') else _TERM.fullmatch(part)
    if match is None:
        return _bare(part.replace('"', ""), columns)
    name, comparison = match[1], "=" if match[2] == "==" else match[2]
    if name not in columns:
        raise ConfigError(f"only: there is no column {name!r:.60}{suggestion(name, columns)}")
    wanted = tuple(found.replace('"', "") for found in _ALTERNATIVE.findall(match[3]))
    kind = columns[name].kind
    if not wanted or "" in wanted:
        raise ConfigError(f"only: {name} is compared with nothing")
    if kind == "number" and any(_number(value) is None for value in wanted):
        raise ConfigError(f"only: {name} is a number, and {'|'.join(wanted)!r:.60} is none")
    if kind == "truth" and not _TRUTHS.keys() >= {value.casefold() for value in wanted}:
        raise ConfigError(f"only: {name} is yes or no, and {'|'.join(wanted)!r:.60} is neither")
    if kind != "number" and comparison not in ("=", "!=", ":"):
        raise ConfigError(f"only: {name} has no order; use =, != or : in place of {comparison}")
    return Term(name, comparison, wanted)


def _bare(word: str, columns: Mapping[str, Column]) -> Term:
    if word in STATUSES:
        return Term("status", "=", (word,))
    if word in columns and columns[word].kind == "truth":
        return Term(word, "=", ("yes",))
    return Term("", ":", (word,))


def _is_met(term: Term, values: Mapping[str, Value], columns: Mapping[str, Column]) -> bool:
    wanted = [value.casefold() for value in term.wanted]
    if not term.column:
        texts = (words_of(value) for name, value in values.items() if columns[name].kind in ("word", "words"))
        return any(each in word.casefold() for words in texts for word in words for each in wanted)
    value = values.get(term.column)
    if value is None:
        return False
    if isinstance(value, int | float):
        return _is_number_met(float(value), term.comparison, [_number(each) for each in wanted])
    words = [word.casefold() for word in words_of(value)]
    if term.comparison == ":":
        return any(each in word for word in words for each in wanted)
    return any(word in wanted for word in words) == (term.comparison == "=")


def _is_number_met(value: float, comparison: str, limits: Sequence[float | None]) -> bool:
    if comparison == "!=":
        return value not in limits
    return any(limit is not None and _COMPARISONS[comparison](value, limit) for limit in limits)


def _number(text: str) -> float | None:
    """A number, or a truth value as one; None for another text."""
    if (truth := _TRUTHS.get(text.casefold())) is not None:
        return truth
    try:
        found = float(text)
    except ValueError:
        return None
    return found if found == found else None
