"""Results without code: measures made from what outcomes hold, where the environment has no results of its own.

A number at the top level of an outcome is counted as a mean, a truth value as a rate, a text by how often it occurs,
each by conversation. A mapping from agents to numbers or truth values is counted over all agents, and by definition,
model and seat, with intervals by conversation, because agents of one conversation depend on each other. So is `won`,
where `winner` or `winners` names agents.

`COUNTED` are the measures that the summary is counted by. `outcome_measures` are those that a summary shows, one for
each value. Only the index is read, so neither needs code of an environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from mac_runner.intervals import ClusteredRate, ExactClusteredMean, ExactMean, Interval, current_cluster
from mac_runner.measures import (
    By,
    Cells,
    Counted,
    Drawn,
    InGrid,
    Keys,
    Listing,
    Measure,
    Row,
    counts_of,
    measure_figures,
    measure_tables,
)
from mac_runner.printable import printable
from mac_runner.results import (
    UNKNOWN,
    Figure,
    Table,
    clustered,
    clusters_of,
    count_text,
    default_shares,
    ends,
    integer,
    interval_text,
    percent_text,
    rate,
    rate_texts,
    section,
    with_defaults,
    with_defaults_column,
)
from mac_runner.rewards import WON, is_number, of_agents, values_by_agent, winners_of
from mac_runner.types import JsonObject, JsonValue

OUTCOMES: Final = "outcomes"
"""The section of `summary.json`."""
TEXTS_MAX: Final = 100
"""More different texts under one key are not counted one by one, and neither are longer ones."""
TEXT_CHARS_MAX: Final = 80
UNNAMED: Final = "outcome"
TEXTS_SHOWN_MAX: Final = 12
"""How many different texts of one key are printed and drawn."""
_TEXT_FIGURES_MAX: Final = 6
"""A text that has more different values makes no figures of a grid: there would be a column for each."""
_HEADLINES_MAX: Final = 6
_WINNERS: Final = ("winner", "winners")
_GROUPS: Final = ("definition", "model", "seat")
_TEXT: Final = "text"
_BY_CONVERSATION: Final = (
    "A rate over conversations has Wilson's 95 % interval, a mean Student's; conversations are taken to be independent"
)
_BY_AGENT: Final = (
    "A rate or mean over agents has a 95 % interval that takes the agents of one conversation as one cluster: Wilson's "
    "of as many cases as they are worth (Korn and Graubard 1998), or Student's of the ratio (Cochran 1977)"
)
_Number: TypeAlias = bool | int | float
Agents: TypeAlias = Mapping[str, tuple[str, str, int]]
"""The definition, the model and the seat of each agent of a conversation, as an index row says them."""


class Ended(NamedTuple):
    """The outcome of a finished conversation, and what it says of its agents."""

    outcome: JsonObject
    agents: Agents
    by_agent: Mapping[str, Mapping[str, _Number]]

    @property
    def has_winners(self) -> bool:
        """Whether it shows that winners are agents. A draw does not, unless it says so of each agent."""
        won = self.by_agent.get(WON)
        return won is not None and (any(won.values()) or WON in values_by_agent(self.outcome, self.agents))


def ended(outcome: JsonObject, agents: Agents) -> Ended:
    """An outcome, read once; without `agents`, nothing is counted by agent."""
    return Ended(outcome, agents, of_agents(outcome, agents))


def _of_conversation(one: Ended) -> Iterator[tuple[Keys, _Number]]:
    return (((key,), value) for key, value in one.outcome.items() if key != "kind" and is_number(value))


def _of_all(one: Ended) -> Iterator[tuple[Keys, tuple[_Number, ...]]]:
    return (((key,), tuple(values.values())) for key, values in one.by_agent.items())


def _of_groups(one: Ended) -> Iterator[tuple[Keys, tuple[_Number, ...]]]:
    for key, values in one.by_agent.items():
        for name, value in values.items():
            members: tuple[str | int, ...] = one.agents[name]
            for group, member in zip(_GROUPS, members, strict=True):
                yield (key, f"by_{group}", member), (value,)


def _of_texts(one: Ended) -> Iterator[tuple[Keys, str | None]]:
    return (((key,), text) for key, text in one.outcome.items() if key != "kind" and isinstance(text, str | None))


def _not_counted(one: Ended) -> Iterator[tuple[Keys, int]]:
    for key, value in one.outcome.items():
        is_of_agents = key in one.by_agent or (key in _WINNERS and winners_of(one.outcome, one.agents) is not None)
        if key != "kind" and not (is_of_agents or is_number(value) or isinstance(value, str | None)):
            yield (key,), 1


@dataclass(slots=True)
class _Conversations:
    """A value of conversations: numbers; or booleans alone, and their mean is a rate."""

    mean: ExactMean = field(default_factory=ExactMean)

    def add(self, value: _Number, _question: str | None) -> None:
        self.mean.add(value)

    def report(self) -> JsonObject:
        found = self.mean
        if found.is_rate:
            wins = round((found.mean or 0.0) * found.n)
            return {"n": found.n, "count": wins, **rate(wins, found.n), "interval": ends(found.interval)}
        return {"n": found.n, **_score(found.mean, found.interval), "min": found.least, "max": found.most}


@dataclass(slots=True)
class _Agents:
    """A value of agents: numbers; or booleans alone, and their mean is a rate. Intervals go by conversation."""

    mean: ExactClusteredMean = field(default_factory=ExactClusteredMean)
    truths: ClusteredRate = field(default_factory=ClusteredRate)

    def add(self, values: Sequence[_Number], _question: str | None) -> None:
        self.mean.add(values)
        truths = [value for value in values if isinstance(value, bool)]
        self.truths.add(sum(truths), len(truths))

    def report(self) -> JsonObject:
        """How many values in how many `games`, their `rate` or `score`, and its interval by game."""
        if self.truths.n == self.mean.n:
            return clustered(self.truths)
        counts: JsonObject = {"n": self.mean.n, "games": self.mean.games, **clusters_of(self.mean)}
        return {**counts, **_score(self.mean.mean, self.mean.interval)}


def _score(mean: float | None, interval: Interval | None) -> JsonObject:
    both: JsonValue = None if interval is None else [_rounded(interval.lo), _rounded(interval.hi)]
    return {"score": _rounded(mean), "interval": both}


def _rounded(value: float | None) -> float | None:
    """Six digits, whatever the size."""
    return None if value is None else float(f"{value:.6g}")


class _Texts:
    """How often each text occurs; null counts against all of them."""

    def __init__(self) -> None:
        self._n = 0
        self._none = 0
        self._counts: Counter[str] | None = Counter()
        self._others = ClusteredRate()
        """Where deals are played several times: as many conversations, of which none has the text."""
        self._clustered: dict[str, ClusteredRate] = {}

    def add(self, text: str | None, _question: str | None) -> None:
        self._n += 1
        self._none += text is None
        if self._counts is None:
            return
        if text is not None:
            self._counts[text] += 1
        if current_cluster() is not None:
            if text is not None and text not in self._clustered:
                self._clustered[text] = replace(self._others)
            for known, counted in self._clustered.items():
                counted.add(int(known == text), 1)
            self._others.add(0, 1)
        # Whether texts are too many or too long does not depend on their order.
        if len(self._counts) > TEXTS_MAX or (text is not None and len(text) > TEXT_CHARS_MAX):
            self._counts = None

    def report(self) -> JsonObject:
        """The texts, the most frequent first; `counts` is null where they are too many or too long.

        `none` of the `n` conversations have null in its place.
        """
        if self._counts is None:
            return {"n": self._n, "none": self._none, "counts": None}
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        counts: JsonObject = {
            text: {"count": count, **rate(count, self._n), **self._by_cluster(text)} for text, count in ordered
        }
        return {"n": self._n, "none": self._none, "counts": counts}

    def _by_cluster(self, text: str) -> JsonObject:
        found = self._clustered.get(text)
        return {} if found is None else {**clusters_of(found), "interval": ends(found.interval)}


@dataclass(slots=True)
class _Count:
    """How many conversations there are."""

    n: int = 0

    def add(self, count: int, _question: str | None) -> None:
        self.n += count

    def report(self) -> JsonValue:
        return self.n


def _measure(place: str, cases: Callable[[Ended], Any], statistic: Callable[[], Any]) -> Measure:
    return Measure(place=place, cases=cases, statistic=lambda _keys: statistic())


CONVERSATIONS: Final = _measure("values.{value}", _of_conversation, _Conversations)
AGENTS: Final = _measure("agents.{value}.all", _of_all, _Agents)
COUNTED: Final = (
    CONVERSATIONS,
    _measure("texts.{value}", _of_texts, _Texts),
    AGENTS,
    _measure("agents.{value}.{group}.{name}", _of_groups, _Agents),
    _measure("not_counted.{value}", _not_counted, _Count),
)
"""What is counted of the outcomes of a kind, at its place in their part of the summary."""


class OutcomeResults:
    """Counts the outcomes of one kind, in any order; its memory follows the number of names."""

    def __init__(self) -> None:
        self._n = 0
        self._counted = Counted(COUNTED)
        # A draw counts against all, if winners are agents; only other outcomes show that.
        self._has_winners = False

    def add(self, outcome: JsonObject, agents: Agents) -> None:
        """Count one finished conversation."""
        one = ended(outcome, agents)
        self._n += 1
        self._has_winners = self._has_winners or one.has_winners
        self._counted.add(one)

    def report(self) -> JsonObject:
        """Its part of the section `outcomes`."""
        report: dict[str, Any] = {"n": self._n, "values": {}, "texts": {}, "agents": {}, "not_counted": {}}
        self._counted.report(report)
        report["texts"] = {key: texts for key, texts in report["texts"].items() if texts["none"] < texts["n"]}
        if not self._has_winners:
            report["agents"].pop(WON, None)
        return report


def outcomes_report(counted: Mapping[str, OutcomeResults]) -> JsonObject:
    """The section `outcomes` of a summary, by kind; nothing where there is no such outcome."""
    return {OUTCOMES: {kind: results.report() for kind, results in sorted(counted.items())}} if counted else {}


def outcome_measures(*summaries: JsonObject) -> Iterator[Measure]:
    """A measure for each value of the outcomes of some runs, and for each of their metrics, for all that shows them."""
    for kind in _each(summaries, OUTCOMES):
        yield from _measures(summaries, kind)
    yield from metric_measures(*summaries)


def metric_measures(*summaries: JsonObject) -> Iterator[Measure]:
    """A measure for each metric."""
    for key, records in _each(summaries, "metrics").items():
        yield _value_measure(("metrics", key), records, "metrics", "What do the metrics come to?", "metrics")


def _measures(summaries: Sequence[JsonObject], kind: str) -> Iterator[Measure]:
    """A measure for each value of the outcomes of a kind."""
    path, title = (OUTCOMES, kind), f"What came out of {printable(kind)}?"
    for key, records in _each(summaries, *path, "values").items():
        yield _value_measure((*path, "values", key), records, _slug(kind), title, f"outcomes of {kind}")
    for key, records in _each(summaries, *path, "texts").items():
        yield _text_measure((*path, "texts", key), records)
    for key, records in _each(summaries, *path, "agents").items():
        yield _agent_measure((*path, "agents", key), records)


def _value_measure(path: Sequence[str], records: Sequence[JsonObject], name: str, title: str, table: str) -> Measure:
    """A value that a conversation has one of, with its records at this place of summaries."""
    key, kind = path[-1], _kind(records)
    is_rate = kind == "rate"

    def rows(read: JsonObject) -> list[Row]:
        return [Row((key,), _with_clusters(found)) for found in (_at(read, *path),) if found]

    return Measure(
        place="outcomes.{what}",
        reads=rows,
        by={"what": By("value")},
        kind=kind,
        value=kind,
        unit="conversations",
        tables=[Listing(table, ("value",), cells=_VALUES)],
        grid=lambda _keys: InGrid(key, is_headline=True),
        title=title if is_rate else f"{title.removesuffix('?')}, in numbers?",
        caption=f"{'Rates' if is_rate else 'Means'} over finished conversations with 95 % interval; n is the number of "
        "conversations that have the value.",
        # Numbers have sizes of their own, so they share no axis.
        figures=_figures(f"{name}-{kind}s", "what", axis=kind, chart="forest" if is_rate else "table"),
        method=_BY_CONVERSATION,
    )


def _text_measure(path: Sequence[str], records: Sequence[JsonObject]) -> Measure:
    """How often each text occurs of those at this place; of many the most frequent in all summaries."""
    _, kind, _, key = path
    totals = Counter[str]()
    for counts in (section(record, "counts") for record in records):
        totals.update({text: integer(section(counts, text).get("count")) or 0 for text in counts})
    different, shown = len(totals), [text for text, _ in totals.most_common(TEXTS_SHOWN_MAX)]

    def rows(read: JsonObject) -> list[Row]:
        found = _at(read, *path)
        counts, n = section(found, "counts"), integer(found.get("n")) or 0
        never: JsonObject = {"count": 0, **rate(0, n)}
        rows = [Row((_TEXT, text), {**(section(counts, text) or never), "n": n}) for text in shown if counts]
        if found and not counts:
            rows.append(Row(("", "(long, or too many to count)"), {"count": n}))
        if none := integer(found.get("none")):
            rows.append(Row(("", "(none)"), {"count": none, **rate(none, n)}))
        if (hidden := len(counts) - TEXTS_SHOWN_MAX) > 0:
            rows.append(Row(("", f"(and {hidden} more: summary.json)"), {}))
        return [row._replace(record=_with_clusters(row.record)) for row in rows]

    def in_grid(keys: tuple[str, ...]) -> InGrid | None:
        is_shown = keys[0] == _TEXT and different <= _TEXT_FIGURES_MAX
        return InGrid(f"{key}={keys[1]}", is_headline=True) if is_shown else None

    return Measure(
        place="outcomes.{is}.{text}",
        reads=rows,
        by={"text": By(key)},
        value="share",
        unit="conversations",
        tables=[Listing(f"outcomes of {kind}, texts", ("value", "text"), lambda row: (key, row.keys[1]), _TEXTS)],
        grid=in_grid,
        title=f"How often does each value of “{printable(key)}” occur?",
        caption="Share of {n} finished conversations, with 95 % interval."
        + (" Rarer texts are left out; summary.json has them." if different > TEXTS_SHOWN_MAX else ""),
        figures=_figures(f"{_slug(kind)}-text-{_slug(key)}", "text", only=lambda keys: keys[0] == _TEXT),
        method=_BY_CONVERSATION,
    )


def _agent_measure(path: Sequence[str], records: Sequence[JsonObject]) -> Measure:
    """A value of agents: of all of them, and of each definition, model and seat."""
    _, kind, _, key = path
    are_several = any(len(section(record, "by_definition")) > 1 for record in records)
    measured = _kind([section(record, "all") for record in records])

    def rows(read: JsonObject) -> list[Row]:
        found = _at(read, *path)
        every = section(found, "all")
        rows = [Row(("all", "", "all agents"), _with_clusters(every))] if every else []
        # A group with the agents of another, or all of them, has the same figures and is not repeated.
        shown: list[list[JsonValue]] = [[every]]
        for group in _GROUPS:
            members, shares = section(found, f"by_{group}"), default_shares(read, group)
            if [*members.values()] not in shown:
                shown.append([*members.values()])
                for name in members:
                    label = with_defaults(f"{group} {name}", shares.get(name))
                    rows.append(Row((group, name, label), _with_clusters(section(members, name))))
        return rows

    def in_grid(keys: tuple[str, ...]) -> InGrid | None:
        if keys[0] != ("definition" if are_several else "all"):
            return None
        return InGrid(f"{key}.{keys[1]}" if are_several else key, is_headline=True)

    return Measure(
        place="outcomes.{group}.{name}.{of}",
        reads=rows,
        kind=measured,
        value=measured,
        unit="agents",
        tables=[Listing(_by_agent(kind), ("value", "of", "name"), lambda row: (key, *row.keys[:2]), _AGENTS)],
        grid=in_grid,
        title=f"How does “{printable(key)}” differ between agents?",
        caption="Mean over agents of finished conversations, with 95 % interval clustered by conversation.",
        figures=_figures(f"{_slug(kind)}-agents-{_slug(key)}", "of"),
        method=_BY_AGENT,
    )


def _kind(records: Iterable[JsonObject]) -> Literal["rate", "mean"]:
    """What the values of records are: rates, if all are."""
    return "rate" if all("rate" in record for record in records) else "mean"


def _figures(name: str, label: str, *, chart: Literal["forest", "table"] = "forest", **more: Any) -> list[Drawn]:
    """A figure of one run, and the same of several."""
    return [Drawn(name, chart, by, **more) for by in ((label,), (label, "run"))]


def _with_clusters(record: JsonObject) -> JsonObject:
    """A record with what its interval goes by, where that is each conversation."""
    return {"clusters": record.get("games", record.get("n")), **record}


def _at(summary: JsonObject, *path: str) -> JsonObject:
    for part in path:
        summary = section(summary, part)
    return summary


def _each(summaries: Sequence[JsonObject], *path: str) -> dict[str, list[JsonObject]]:
    """What is at a place of some summaries by name, from each summary that has it."""
    found: dict[str, list[JsonObject]] = {}
    for inner in (_at(summary, *path) for summary in summaries):
        for name in inner:
            found.setdefault(name, []).append(section(inner, name))
    return found


def _by_agent(kind: str) -> str:
    return f"outcomes of {kind}, by agent"


def _slug(text: str) -> str:
    """The text as a part of an id, unlike that of other texts."""
    plain = "".join(char if char.isascii() and char.isalnum() else "-" for char in text.lower())[:40]
    return plain if plain == text else f"{plain}-{len(text)}{sum(map(ord, text)) % 997}"


def outcome_tables(summary: JsonObject) -> Iterator[Table | str]:
    """Of each kind of outcome its values, its texts, and the values of its agents."""
    for kind in section(summary, OUTCOMES):
        for table in measure_tables(_measures([summary], kind), summary):
            if isinstance(table, Table) and table.title == _by_agent(kind):
                shares = {group: default_shares(summary, group) for group in _GROUPS}
                by_row = [[shares.get(of, {}).get(name)] for _, of, name, *_ in table.rows]
                table = with_defaults_column(table, by_row, len(table.numbers))
            yield table
        if left_out := _at(summary, OUTCOMES, kind, "not_counted"):
            names = ", ".join(f"{name} ({count_text(count)})" for name, count in left_out.items())
            yield f"Not counted, because they are lists or objects without a number for each agent: {names}."


def outcome_figures(summary: JsonObject, taken: Collection[str]) -> dict[str, Figure]:
    """What the combinations of a grid are compared by: values, frequent texts, and values of agents by definition.

    A name that is taken has `outcome.` before it.
    """
    found: dict[str, Figure] = {}
    for kind in section(summary, OUTCOMES):
        agents_first = sorted(_measures([summary], kind), key=lambda measure: measure.unit != "agents")
        # Measure by measure: a value of conversations may be called as one of agents is.
        for name, each in (one for measure in agents_first for one in measure_figures([measure], summary).items()):
            free = name if name not in taken and name not in found else f"outcome.{name}"
            found[free] = each._replace(is_headline=len(found) < _HEADLINES_MAX)
    return found


def _mean_texts(found: JsonObject) -> tuple[str, str]:
    text = percent_text if "rate" in found else _number_text
    return text(found.get("rate" if "rate" in found else "score")), interval_text(found.get("interval"), text)


def _number_text(value: JsonValue) -> str:
    return f"{value:,.4g}" if is_number(value) else UNKNOWN


_VALUES: Final = Cells(
    ("n", "mean", "95% interval", "min", "max"),
    lambda found: (
        *counts_of(found, "n"),
        *_mean_texts(found),
        *(_number_text(found.get(key)) for key in ("min", "max")),
    ),
)
_AGENTS: Final = Cells(
    ("n", "conversations", "mean", "95% interval"),
    lambda found: (*counts_of(found, "n", "games"), *_mean_texts(found)),
)
_TEXTS: Final = Cells(("count", "rate", "95% interval"), lambda found: (*counts_of(found, "count"), *rate_texts(found)))
