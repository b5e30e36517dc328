"""The section `outcomes` of a summary as tables and figures, and outcomes as columns of the list of conversations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Final, Literal, TypeAlias

from mac_runner.reports.outcomes import OUTCOMES
from mac_runner.results import (
    UNKNOWN,
    Column,
    Columns,
    Figure,
    Table,
    Value,
    count_text,
    default_shares,
    figure,
    integer,
    interval_text,
    percent_text,
    rate,
    rate_texts,
    section,
    with_defaults_column,
)
from mac_runner.rewards import is_number, values_by_agent
from mac_runner.types import JsonObject, JsonValue

TEXTS_SHOWN_MAX: Final = 12
"""How many different texts of one key are printed."""
_TEXT_FIGURES_MAX: Final = 6
"""A text that has more different values makes no figures: there would be a column for each."""
_HEADLINES_MAX: Final = 6
_Kind: TypeAlias = Literal["word", "words", "number", "truth"]
_GROUPS: Final = {"by_definition": "definition", "by_model": "model", "by_seat": "seat"}


def outcome_tables(summary: JsonObject) -> Iterator[Table | str]:
    """Of each kind of outcome its values, its texts, and the values of its agents."""
    outcomes = section(summary, OUTCOMES)
    for kind in outcomes:
        counted = section(outcomes, kind)
        if rows := [*_value_rows(section(counted, "values"))]:
            yield Table(f"outcomes of {kind}", ("value",), ("n", "mean", "95% interval", "min", "max"), rows)
        if rows := [*_text_rows(section(counted, "texts"))]:
            yield Table(f"outcomes of {kind}, texts", ("value", "text"), ("count", "rate", "95% interval"), rows)
        if rows := [*_agent_rows(section(counted, "agents"))]:
            heads = ("n", "conversations", "mean", "95% interval")
            table = Table(f"outcomes of {kind}, by agent", ("value", "of", "name"), heads, rows)
            shares = {head: default_shares(summary, head) for head in {row[1] for row in rows}}
            by_row = [[shares[head].get(name)] for _, head, name, *_ in rows]
            yield with_defaults_column(table, by_row, len(heads))
        if left_out := section(counted, "not_counted"):
            names = ", ".join(f"{name} ({count_text(count)})" for name, count in left_out.items())
            yield f"Not counted, because they are lists or objects without a number for each agent: {names}."


def _value_rows(values: JsonObject) -> Iterator[tuple[str, ...]]:
    for name in values:
        found = section(values, name)
        yield name, count_text(found.get("n")), *_mean(found), _number(found.get("min")), _number(found.get("max"))


def _text_rows(texts: JsonObject) -> Iterator[tuple[str, ...]]:
    for name in texts:
        counts = section(section(texts, name), "counts")
        if not counts:
            yield name, "(long, or too many to count)", count_text(section(texts, name).get("n")), UNKNOWN, UNKNOWN
        for text in list(counts)[:TEXTS_SHOWN_MAX]:
            found = section(counts, text)
            yield name, text, count_text(found.get("count")), *rate_texts(found)
        if none := integer(section(texts, name).get("none")):
            yield name, "(none)", count_text(none), *rate_texts(rate(none, integer(section(texts, name).get("n")) or 0))
        if (hidden := len(counts) - TEXTS_SHOWN_MAX) > 0:
            yield name, f"(and {hidden} more: summary.json)", UNKNOWN, UNKNOWN, UNKNOWN


def _agent_rows(agents: JsonObject) -> Iterator[tuple[str, ...]]:
    """A group with the agents of another, or all of them, has the same figures and is not repeated."""
    for name in agents:
        found = section(agents, name)
        yield name, "all", "", *_agent(section(found, "all"))
        shown: list[list[JsonValue]] = [[section(found, "all")]]
        for group, head in _GROUPS.items():
            members = section(found, group)
            if [*members.values()] not in shown:
                shown.append([*members.values()])
                yield from ((name, head, key, *_agent(section(members, key))) for key in members)


def _agent(found: JsonObject) -> tuple[str, ...]:
    return count_text(found.get("n")), count_text(found.get("games")), *_mean(found)


def _mean(found: JsonObject) -> tuple[str, str]:
    text = percent_text if "rate" in found else _number
    return text(found.get("rate" if "rate" in found else "score")), interval_text(found.get("interval"), text)


def _number(value: JsonValue) -> str:
    return f"{value:,.4g}" if is_number(value) else UNKNOWN


def outcome_figures(summary: JsonObject, taken: Collection[str]) -> dict[str, Figure]:
    """What the combinations of a grid are compared by: values, frequent texts, and values of agents by definition.

    A name that is taken has `outcome.` before it.
    """
    found: dict[str, Figure] = {}
    outcomes = section(summary, OUTCOMES)
    for kind in outcomes:
        for name, each in _figures(section(outcomes, kind)):
            free = name if name not in taken and name not in found else f"outcome.{name}"
            found[free] = each._replace(is_headline=len(found) < _HEADLINES_MAX)
    return found


def _figures(counted: JsonObject) -> Iterator[tuple[str, Figure]]:
    agents, values, texts = (section(counted, key) for key in ("agents", "values", "texts"))
    for name in agents:
        by_definition = section(section(agents, name), "by_definition")
        groups = {f"{name}.{key}": section(by_definition, key) for key in by_definition}
        for key, record in groups.items() if len(groups) > 1 else [(name, section(section(agents, name), "all"))]:
            yield from _figure(key, record)
    for name in values:
        yield from _figure(name, section(values, name))
    for name in texts:
        counts = section(section(texts, name), "counts")
        for text in counts if len(counts) <= _TEXT_FIGURES_MAX else ():
            yield from _figure(f"{name}={text}", {**section(counts, text), "n": section(texts, name).get("n")})


def _figure(name: str, record: JsonObject) -> Iterator[tuple[str, Figure]]:
    if (found := figure(record)) is not None:
        yield name, found


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
