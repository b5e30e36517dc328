"""Results of discussions: counted one by one, and for readers as lines, tables, the figures of a grid and columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final

from mac_runner.environments.discussion.bias import ALL, BIAS, short_signed
from mac_runner.environments.discussion.formats import FORMATS
from mac_runner.environments.discussion.measures import ACCURACY, MEASURES, REFUSALS
from mac_runner.environments.discussion.outcome import (
    DISCUSSION_CONVERSATION_COLUMNS,
    DiscussionResult,
    discussion_rewards,
)
from mac_runner.environments.discussion.record import ANSWERS, DISCUSSION_AGENT_COLUMNS
from mac_runner.environments.discussion.scene import STANCES, discussion_scene
from mac_runner.measures import Counted, Measure, ResultsSpec, measure_figures, measure_tables
from mac_runner.results import (
    DEFAULTS_HEAD,
    DEFAULTS_NOTE,
    UNKNOWN,
    Column,
    Columns,
    Figure,
    Table,
    Value,
    count_text,
    decimal_text,
    default_shares,
    integer,
    number,
    objects,
    parsed,
    rate_words,
    section,
    signed_text,
    with_defaults_column,
)
from mac_runner.types import JsonObject, JsonValue

ALL_MEASURES: Final = (*MEASURES, *(measure for each in FORMATS.values() for measure in each.measures))
_BEGUN: Final[tuple[tuple[str, JsonValue], ...]] = (
    *(("n", 0), ("rounds_mean", None), ("ended_by", {}), ("passes", 0), ("refusals", 0), ("roles", {})),
    ("changes_by_round", {}),
    *((f"{what}_by_{whose}", {}) for whose in ("identity", "own_identity") for what in ("changes", "followed")),
)
"""What the summary has without a case too."""
_DETECTABLE: Final = {
    "accuracy": (ACCURACY, ("final",), 1, "{points} points in right final answers", 100),
    "bias_ambiguous": (BIAS, ("final", ALL, "ambiguous"), 2, "{points} in the bias score of ambiguous contexts", 1),
    "bias_disambiguated": (BIAS, ("final", ALL, "disambiguated"), 2, "{points} in that of disambiguated ones", 1),
}
"""The figures of a run whose power is told: their measure and keys, their range, and how a difference is written."""
_RIGHT: Final = {"first": "at first", "group": "as a group"}
_WHOSE: Final = {"agent": "definition", "author": "definition", "identity": "definition", "model": "model"}
"""Whose defaults the rows of a table are marked with, by the head of their names.

An agent without a persona is its own identity.
"""


class DiscussionResults:
    """Counts discussions one by one; its memory follows the number of questions, agents, rounds and categories."""

    def __init__(self, measures: Sequence[Measure] = ALL_MEASURES) -> None:
        self.counted = Counted(measures)

    def add(self, outcome: JsonObject, where: str) -> None:
        """Count one finished discussion."""
        result = parsed(DiscussionResult, outcome, where)
        self.counted.add(result, result.question_id)

    def report(self) -> JsonObject:
        """`discussions`: the counts with rates, scores and intervals; and sections beside it."""
        begun = {key: copy(empty) for key, empty in _BEGUN}
        if self.counted.kept.get(REFUSALS.place):
            begun["refusals"] = None  # Until a count stands there: where it is not known, there is none.
        report: Any = self.counted.report({"discussions": begun})
        if power := dict(self._power()):
            report["discussions"]["power"] = power
        found: JsonObject = report
        return found

    def _power(self) -> Iterator[tuple[str, float | None]]:
        """What difference between two cells of this size would show, with a power of 80 % at a level of 5 %.

        For two cells of a design with as many questions each, that differ in their questions. Cells that share their
        questions are compared in pairs, which shows smaller differences. The cases are those that the questions are
        worth. None where the whole range of the figure is too small.
        """
        for name, (measure, keys, whole, *_) in _DETECTABLE.items():
            kept = self.counted.kept.get(measure.place, {}).get(keys)
            if kept is not None and (value := kept.detectable()) is not None:
                yield name, round(value, 4) if value <= whole else None


def discussion_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """How many discussions there were and what ended them, what so many can show, and that questions repeat."""
    if report := section(summary, "discussions"):
        endings = section(report, "ended_by").items()
        ended = ", ".join(f"{count_text(count)} {name.replace('_', ' ')}" for name, count in endings)
        rounds = report.get("rounds_mean")
        mean = f"{rounds:.1f}" if isinstance(rounds, int | float) else UNKNOWN
        yield "discussions", f"{count_text(report.get('n'))}; {mean} rounds on average; ended by: {ended}"
    if power := section(report, "power"):
        parts = [
            words.format(points=decimal_text(value * scale))
            for name, (*_, words, scale) in _DETECTABLE.items()
            if (value := number(power.get(name))) is not None
        ]
        shown = ", ".join(parts) or "no difference, for want of questions,"
        yield "could show", f"{shown} between two such runs (power 80%, level 5%); less in pairs"
    questions = section(summary, "discussion_questions")
    if repeated := integer(questions.get("repeated")):
        over = f"{count_text(questions.get('discussions'))} discussions over {count_text(questions.get('n'))} questions"
        more = f"{count_text(repeated)} discussed more than once, at most {count_text(questions.get('most'))} times"
        yield "questions repeat", f"{over}: {more}"


def discussion_headline(summary: JsonObject, _compared: JsonObject) -> str:
    """How often answers were right and all agreed, and the bias scores."""
    report = section(summary, "discussions")
    accuracy = section(report, "accuracy")
    right = [f"{words} {rate_words(section(accuracy, kind))}" for kind, words in _RIGHT.items() if kind in accuracy]
    found = [f"Right {', '.join(right)}"] if right else []
    if report:
        found.append(f"consensus {rate_words(section(report, 'consensus'))}")
    scores = section(report, "bias", "group", ALL)
    for name in scores:
        if (scored := section(scores, name)).get("n"):
            interval = scored.get("interval")
            span = " to ".join(map(short_signed, interval)) if isinstance(interval, list) else UNKNOWN
            found.append(f"bias in {name} contexts {signed_text(scored.get('score'))} ({span})")
    text = f"{'; '.join(found)}; {count_text(report.get('n'))} discussions" if found else ""
    return text[:1].upper() + text[1:]


def discussion_tables(summary: JsonObject, measures: Sequence[Measure] = ALL_MEASURES) -> Iterator[Table | str]:
    """A table for each thing that was counted; rows of agents and models say how often they took their default."""
    has_defaults = False
    report = section(summary, "discussions")
    for part in measure_tables(measures, summary) if report else ():
        if isinstance(part, str) or (whose := _WHOSE.get(part.words[0])) is None:
            yield part
            continue
        shares = default_shares(summary, whose)
        marked = with_defaults_column(part, [[shares.get(name)] for name, *_ in part.rows], len(part.numbers))
        has_defaults = has_defaults or DEFAULTS_HEAD in marked.numbers
        yield marked
    if has_defaults:
        yield DEFAULTS_NOTE


def discussion_figures(summary: JsonObject, measures: Sequence[Measure] = ALL_MEASURES) -> dict[str, Figure]:
    """The figures of the measures, and the shares of answers without a bias score.

    These are what they are: an interval would say nothing.
    """
    figures = measure_figures(measures, summary)
    bias = section(summary, "discussions", "bias")
    for kind in bias:
        counts = objects([*section(bias, kind, ALL).values()])
        unscored, scored = (sum(integer(each.get(key)) or 0 for each in counts) for key in ("unscored", "n"))
        if asked := unscored + scored:
            share = round(unscored / asked, 4)
            figures[f"unscored.{kind}"] = Figure(
                asked, share, None, None, is_headline=False, is_printed=kind == "group"
            )
    return figures


def discussion_values(result: DiscussionResult) -> Mapping[str, Value]:
    """The columns of one discussion; `right` is empty where the question has no right answer."""
    correct = result.correct_answer_id
    return {
        "question": result.question_id,
        "answer": result.answer,
        "right": None if correct is None else result.answer == correct,
        "consensus": result.consensus,
        "rounds": result.rounds,
        "ended_by": result.ended_by,
        "passes": result.passes,
        "agent": sorted(result.answers),
    }


def _about(outcome: JsonObject, where: str) -> tuple[DiscussionResult, str | None]:
    result = parsed(DiscussionResult, outcome, where)
    return result, result.question_id


DISCUSSION_COLUMNS: Final = Columns(
    {
        "question": Column("word"),
        "answer": Column("word"),
        "right": Column("truth", is_headline=True),
        "consensus": Column("truth", is_headline=True),
        "rounds": Column("number"),
        "ended_by": Column("word"),
        "passes": Column("number"),
        "agent": Column("words", is_listed=False),
    },
    discussion_values,
    DiscussionResult,
)


def discussion_results(measures: Sequence[Measure] = ALL_MEASURES) -> ResultsSpec:
    """How discussions are counted by some measures, and shown."""
    return ResultsSpec(
        counter=lambda: DiscussionResults(measures),
        noun="discussions",
        headline=discussion_headline,
        measures=measures,
        lines=discussion_lines,
        tables=lambda summary: discussion_tables(summary, measures),
        figures=lambda summary: discussion_figures(summary, measures),
        read=_about,
        columns=DISCUSSION_COLUMNS,
        rewards=discussion_rewards,
        exports={"answers": ANSWERS},
        conversation_columns=DISCUSSION_CONVERSATION_COLUMNS,
        agent_columns=DISCUSSION_AGENT_COLUMNS,
        scene=discussion_scene,
        stances=STANCES,
    )


RESULTS: Final = discussion_results()
