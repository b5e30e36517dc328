"""The generic results: what the outcomes hold whose environment has no results of its own.

A number at the top level of an outcome is counted as a mean, a truth value as a rate, a text by how often it occurs,
each by conversation. A mapping from agents to numbers or truth values is counted over all agents, and by definition,
model and seat, with intervals by conversation, because agents of one conversation depend on each other. So is `won`,
where `winner` or `winners` names agents.

Only the index is read, so a summary needs no code of an environment.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from mac_runner.intervals import ClusteredRate, ExactClusteredMean, ExactMean, Interval, current_cluster
from mac_runner.results import clustered, clusters_of, ends, rate
from mac_runner.rewards import WON, is_number, values_by_agent, winners_of
from mac_runner.types import JsonObject, JsonValue

OUTCOMES: Final = "outcomes"
"""The section of `summary.json`."""
TEXTS_MAX: Final = 100
"""More different texts under one key are not counted one by one, and neither are longer ones."""
TEXT_CHARS_MAX: Final = 80
UNNAMED: Final = "outcome"
_WINNERS: Final = ("winner", "winners")


class Seated(NamedTuple):
    """Who an agent was in its conversation, as an index row says it."""

    definition: str
    model: str
    seat: int


_GROUPS: Final[Mapping[str, Callable[[Seated], str]]] = {
    "by_definition": lambda agent: agent.definition,
    "by_model": lambda agent: agent.model,
    "by_seat": lambda agent: str(agent.seat),
}


class OutcomeResults:
    """Counts the outcomes of one kind, in any order; its memory follows the number of names."""

    def __init__(self) -> None:
        self._n = 0
        self._values: defaultdict[str, ExactMean] = defaultdict(ExactMean)
        self._texts: defaultdict[str, _Texts] = defaultdict(_Texts)
        self._by_agent: defaultdict[str, _ByAgent] = defaultdict(_ByAgent)
        # A draw counts against all, if winners are agents; only other outcomes show that.
        self._won = _ByAgent()
        self._has_winners = False
        self._none: Counter[str] = Counter()
        self._not_counted: Counter[str] = Counter()

    def add(self, outcome: JsonObject, agents: Mapping[str, Seated]) -> None:
        """Count one finished conversation; without `agents`, nothing is counted by agent."""
        self._n += 1
        by_agent = values_by_agent(outcome, agents)
        for key, value in outcome.items():
            if key != "kind" and key not in by_agent:
                self._add_value(key, value, is_of_agents=key in _WINNERS and winners_of(outcome, agents) is not None)
        for key, values in by_agent.items():
            self._by_agent[key].add(values, agents)
        if WON not in by_agent and agents and (winners := winners_of(outcome, agents)) is not None:
            self._has_winners |= not winners.is_draw
            self._won.add({name: name in winners.names for name in agents}, agents)

    def _add_value(self, key: str, value: JsonValue, *, is_of_agents: bool) -> None:
        if is_number(value):
            self._values[key].add(value)
        elif isinstance(value, str):
            self._texts[key].add(value)
        elif value is None:
            self._none[key] += 1
            self._texts[key].add(None)
        elif not is_of_agents:
            self._not_counted[key] += 1

    def report(self) -> JsonObject:
        """Its part of the section `outcomes`."""
        by_agent = {**self._by_agent}
        if self._has_winners:
            by_agent.setdefault(WON, self._won)
        return {
            "n": self._n,
            "values": {key: _of_conversations(found) for key, found in sorted(self._values.items())},
            "texts": {key: texts.report(self._none[key]) for key, texts in sorted(self._texts.items()) if texts.n},
            "agents": {key: each.report() for key, each in sorted(by_agent.items())},
            "not_counted": dict(sorted(self._not_counted.items())),
        }


@dataclass(slots=True)
class _Measure:
    """A value of agents: numbers; or booleans alone, and their mean is a rate."""

    mean: ExactClusteredMean = field(default_factory=ExactClusteredMean)
    truths: ClusteredRate = field(default_factory=ClusteredRate)

    def add(self, values: Sequence[bool | int | float]) -> None:
        """Count the values of one conversation."""
        self.mean.add(values)
        truths = [value for value in values if isinstance(value, bool)]
        self.truths.add(sum(truths), len(truths))

    def report(self) -> JsonObject:
        """How many values in how many `games`, their `rate` or `score`, and its interval by game."""
        if self.truths.n == self.mean.n:
            return clustered(self.truths)
        counts: JsonObject = {"n": self.mean.n, "games": self.mean.games, **clusters_of(self.mean)}
        return {**counts, **_score(self.mean.mean, self.mean.interval)}


def _of_conversations(found: ExactMean) -> JsonObject:
    """The `rate` or `score` of conversations with one value each, and its interval."""
    if found.is_rate:
        wins = round((found.mean or 0.0) * found.n)
        return {"n": found.n, "count": wins, **rate(wins, found.n), "interval": ends(found.interval)}
    least, most = found.least, found.most
    return {"n": found.n, **_score(found.mean, found.interval), "min": least, "max": most}


def _score(mean: float | None, interval: Interval | None) -> JsonObject:
    both: JsonValue = None if interval is None else [_rounded(interval.lo), _rounded(interval.hi)]
    return {"score": _rounded(mean), "interval": both}


class _Texts:
    """How often each text occurs; null counts against all of them."""

    def __init__(self) -> None:
        self.n = 0
        self._counts: Counter[str] | None = Counter()
        self._others = ClusteredRate()
        """Where deals are played several times: as many conversations, of which none has the text."""
        self._clustered: dict[str, ClusteredRate] = {}

    def add(self, text: str | None) -> None:
        self.n += text is not None
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

    def report(self, none: int) -> JsonObject:
        """The texts, the most frequent first; `counts` is null where they are too many or too long.

        `none` of the `n` conversations have null in its place.
        """
        n = self.n + none
        if self._counts is None:
            return {"n": n, "none": none, "counts": None}
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        counts: JsonObject = {
            text: {"count": count, **rate(count, n), **self._by_cluster(text)} for text, count in ordered
        }
        return {"n": n, "none": none, "counts": counts}

    def _by_cluster(self, text: str) -> JsonObject:
        found = self._clustered.get(text)
        return {} if found is None else {**clusters_of(found), "interval": ends(found.interval)}


class _ByAgent:
    """One value of agents, over all of them and by group; agents of a conversation are one cluster."""

    def __init__(self) -> None:
        self._all = _Measure()
        self._groups: dict[str, defaultdict[str, _Measure]] = {name: defaultdict(_Measure) for name in _GROUPS}

    def add(self, values: Mapping[str, bool | int | float], agents: Mapping[str, Seated]) -> None:
        """Count the values of one conversation, by agent."""
        self._all.add([*values.values()])
        for name, key_of in _GROUPS.items():
            members: defaultdict[str, list[bool | int | float]] = defaultdict(list)
            for agent, value in values.items():
                members[key_of(agents[agent])].append(value)
            for key, of_group in members.items():
                self._groups[name][key].add(of_group)

    def report(self) -> JsonObject:
        """`all`, `by_definition`, `by_model` and `by_seat`."""
        groups: JsonObject = {
            name: {key: measures[key].report() for key in sorted(measures, key=_in_order)}
            for name, measures in self._groups.items()
        }
        return {"all": self._all.report(), **groups}


def _in_order(name: str) -> tuple[int, str]:
    """Seats by number."""
    return (int(name), name) if name.isdecimal() else (0, name)


def _rounded(value: float | None) -> float | None:
    """Six digits, whatever the size."""
    return None if value is None else float(f"{value:.6g}")


def outcomes_report(counted: Mapping[str, OutcomeResults]) -> JsonObject:
    """The section `outcomes` of a summary, by kind; nothing where there is no such outcome."""
    return {OUTCOMES: {kind: results.report() for kind, results in sorted(counted.items())}} if counted else {}
