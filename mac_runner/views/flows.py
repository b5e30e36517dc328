"""What is worked out over many conversations: those that a filter chooses, their stance flow, and the trees of forks.

The filter language is `days>5 winner=town|mafia status:failed "a text"`. It is read here for what the server works out.
The page reads it in the same way (`viewer/src/filter.ts`). A row has to meet all parts. Numbers with commas choose
conversations by number.
"""

from __future__ import annotations

import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import fsum
from typing import Final, NamedTuple

from mac_runner.errors import ConfigError
from mac_runner.intervals import interval_of
from mac_runner.problems import suggestion
from mac_runner.registry import results_specs
from mac_runner.reports.conversations import STATUSES, Listed, words_of
from mac_runner.results import Column, Stances, Value, percent_text, section
from mac_runner.rewards import preferred, rewards_of
from mac_runner.store.records import entry
from mac_runner.types import JsonObject
from mac_runner.view_model import Cell, Fact, Flow, FlowPage, ForkArm, ForkTree, TableRow, ViewTable

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


def flow_page(rows: Iterable[JsonObject]) -> FlowPage:
    """The flow over the chosen index rows. Rows without stances, such as failed ones, are not counted.

    Raises RunDirectoryError for a damaged outcome.
    """
    steps: Counter[tuple[int, str, str]] = Counter()
    moved: defaultdict[str, defaultdict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    named: dict[str, Fact] = {}
    count = rounds = 0
    for row in rows:
        if (found := _stances(row)) is None:
            continue
        facts, stances = found
        named |= {fact.name: fact for fact in facts}
        count += 1
        rounds = max(rounds, *map(len, stances.by_agent.values()), 0)
        for held in stances.by_agent.values():
            steps.update((number, *pair) for number, pair in enumerate(pairwise(held), start=1))
        for author, readers in stances.moved.items():
            for reader, share in readers.items():
                moved[author][reader].append(share)
    seen = {name for _, before, after in steps for name in (before, after)}
    order = {name: place for place, name in enumerate(named)}
    flows = (Flow(number, before, after, steps[number, before, after]) for number, before, after in steps)
    return FlowPage(
        conversations=count,
        rounds=rounds,
        stances=tuple(fact for name, fact in named.items() if name in seen),
        flows=tuple(sorted(flows, key=lambda flow: (flow.round, order[flow.before], order[flow.after]))),
        moved=_moved(moved) if moved else None,
    )


def _stances(row: JsonObject) -> tuple[tuple[Fact, ...], Stances] | None:
    outcome = row.get("outcome")
    if not isinstance(outcome, dict):
        return None
    results = results_specs().get(str(outcome.get("kind")))
    if results is None or results.stances is None or (found := results.stances.of(outcome)) is None:
        return None
    return results.stances.named, found


def _moved(moved: Mapping[str, Mapping[str, list[tuple[int, int]]]]) -> ViewTable:
    readers = sorted({reader for those in moved.values() for reader in those})
    return ViewTable(
        name="moved",
        title="Who moved whom",
        kind="matrix",
        corner="author / reader",
        heads=tuple(map(Cell, readers)),
        rows=tuple(
            TableRow(Cell(author), tuple(_cell(those.get(reader, ())) for reader in readers))
            for author, those in sorted(moved.items())
        ),
        note="Changes to the author's answer, of the times that the reader had read it and held another.",
    )


def _cell(shares: Iterable[tuple[int, int]]) -> Cell:
    listed = [*shares]
    count, cases = (sum(share[place] for share in listed) for place in (0, 1))
    if not cases:
        return Cell("")
    return Cell(f"{count}/{cases}", "one" if count else "quiet", title=percent_text(count / cases))


def fork_trees(rows: Iterable[JsonObject], number: int | None = None) -> tuple[ForkTree, ...]:
    """A tree for each parent of the ended forks among index rows; with `number` only that of one conversation.

    The number is that of a fork; its parent is in another run. A failed fork is among the draws of its arm, and not in
    its figure. Raises RunDirectoryError for a damaged outcome.
    """
    parents: defaultdict[str, defaultdict[tuple[str, str], list[JsonObject]]] = defaultdict(lambda: defaultdict(list))
    wanted = set()
    for row in rows:
        if "fork_of" in row:
            parents[str(row["fork_of"])][str(row["turn"]), str(row["arm"])].append(row)
            if row["index"] == number:
                wanted.add(str(row["fork_of"]))
    return tuple(
        ForkTree(parent, tuple(_arms(arms)))
        for parent, arms in sorted(parents.items())
        if number is None or parent in wanted
    )


def _arms(arms: Mapping[tuple[str, str], Sequence[JsonObject]]) -> Iterator[ForkArm]:
    ordered = sorted(arms.items(), key=lambda arm: (int(arm[0][0].partition("/")[0]), arm[0]))
    for (turn, arm), rows in ordered:
        agent = turn.partition("/")[2].rsplit("/", 2)[0]
        numbers = tuple(entry(row, "index", int) for row in rows)
        rewards = [_rewards(row, agent) for row in rows if isinstance(row.get("outcome"), dict)]
        name = preferred({name: None for each in rewards for name in each})
        figures = [each[name] for each in rewards if name in each] if name is not None else []
        if name is None or not figures:
            yield ForkArm(turn, arm, numbers)
            continue
        ends = interval_of(figures)
        yield ForkArm(
            turn=turn,
            arm=arm,
            draws=numbers,
            figure=f"{name} of {agent}",
            value=fsum(figures) / len(figures),
            lo=None if ends is None else ends.lo,
            hi=None if ends is None else ends.hi,
        )


def _rewards(row: JsonObject, agent: str) -> dict[str, float]:
    # The row names the agents where its outcome has no results of its own that know them.
    agents = section(row, "agents").keys() or {agent}
    return rewards_of(None, entry(row, "outcome", dict), agent, agents)
