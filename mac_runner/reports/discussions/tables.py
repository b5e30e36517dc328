"""The part of the summary about discussions as rows of tables; how tables are drawn is for `reports/text.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mac_runner.types import JsonObject, JsonValue

UNKNOWN: Final = "–"


class PlainTable(NamedTuple):
    """A table before it is drawn: columns that are words, columns that are numbers, and the cells of each row."""

    title: str
    words: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


_CONTEXTS: Final = {"ambiguous": "ambig", "disambiguated": "disambig"}
_RATE: Final = ("n", "count", "rate", "95% interval")


def discussion_lines(report: JsonObject) -> Iterator[tuple[str, str]]:
    """What is said of discussions in the first table: a name and a value each."""
    endings = _object(report, "ended_by").items()
    ended = ", ".join(f"{_integer(count)} {name.replace('_', ' ')}" for name, count in endings)
    rounds = report.get("rounds_mean")
    mean = f"{rounds:.1f}" if isinstance(rounds, int | float) else UNKNOWN
    yield "discussions", f"{_integer(report.get('n'))}; {mean} rounds on average; ended by: {ended}"


def discussion_tables(report: JsonObject) -> Iterator[PlainTable]:
    """A table for each thing that was counted."""
    accuracy = _object(report, "accuracy")
    agreed = {"consensus at the end": report.get("consensus")}
    right = {f"right, {name}": accuracy[name] for name in accuracy}
    yield _rates("answers", "", {**right, **agreed})
    by_round = {
        **{f"right in round {name}": rate for name, rate in _object(report, "accuracy_by_round").items()},
        **{f"changed in round {name}": rate for name, rate in _object(report, "changes_by_round").items()},
    }
    if by_round:
        yield _rates("by round", "", by_round)
    if changed := _object(report, "changes_by_identity"):
        yield _rates("changed answers, by the identity shown of who gave them", "identity", changed)
    if followed := _object(report, "followed_by_identity"):
        yield _rates("another's answer taken over, by the identity shown", "identity", followed)
    yield from _roles(_object(report, "roles"))
    yield from _bias(_object(report, "bias"))


def _rates(title: str, name: str, rates: Mapping[str, JsonValue]) -> PlainTable:
    rows = [(key, *_rate(rate)) for key, rate in rates.items() if isinstance(rate, dict)]
    return PlainTable(title, (name,), _RATE, rows)


def _rate(rate: JsonObject) -> tuple[str, str, str, str]:
    return (
        _integer(rate.get("n")),
        _integer(rate.get("count")),
        _percent(rate.get("rate")),
        _ends(rate.get("interval"), _percent),
    )


def _bias(bias: JsonObject) -> Iterator[PlainTable]:
    rows = [
        (category, kind, _CONTEXTS[context], *_score(_object(_object(_object(bias, kind), category), context)))
        for category in _object(bias, "group")
        for context in _CONTEXTS
        # What talking did is shown over all; the summary has it by category too.
        for kind in (bias if category == "all" else ("group",))
    ]
    if rows:
        numbers = ("n", "biased", "counter", "score", "95% interval")
        yield PlainTable("bias scores of BBQ, from -1 to 1", ("category", "answers", "context"), numbers, rows)


def _roles(roles: JsonObject) -> Iterator[PlainTable]:
    """One table for those whose answers do not count."""
    parts = {agent: _object(roles, agent) for agent in roles}
    rows = [
        (
            agent,
            str(part.get("role")).replace("_", " "),
            *(_integer(part.get(key)) for key in ("statements", "questions", "verdicts")),
            *_rate(_object(part, "followed"))[:3],
        )
        for agent, part in parts.items()
    ]
    if rows:
        numbers = ("statements", "questions", "verdicts", "could follow", "followed", "rate")
        yield PlainTable("the other roles", ("agent", "role"), numbers, rows)


def _score(scored: JsonObject) -> tuple[str, ...]:
    counts = tuple(_integer(scored.get(key)) for key in ("n", "biased", "counter"))
    return (*counts, _signed(scored.get("score")), _ends(scored.get("interval"), _signed))


def _object(source: Mapping[str, JsonValue], key: str) -> JsonObject:
    value = source.get(key)
    return value if isinstance(value, dict) else {}


def _ends(interval: JsonValue, told: Callable[[JsonValue], str]) -> str:
    return " – ".join(told(end) for end in interval) if isinstance(interval, list) else UNKNOWN


def _integer(value: JsonValue) -> str:
    return f"{value:,}" if isinstance(value, int) else UNKNOWN


def _percent(value: JsonValue) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else UNKNOWN


def _signed(value: JsonValue) -> str:
    return f"{value:+.3f}" if isinstance(value, int | float) else UNKNOWN
