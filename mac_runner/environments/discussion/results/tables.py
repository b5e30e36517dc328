"""Results of discussions for readers: tables of rates and bias scores, and the figures of a grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mac_runner.environments.discussion.measures import MEASURES
from mac_runner.environments.discussion.results.answer_table import (
    ANSWERS,
    DISCUSSION_AGENT_COLUMNS,
    DISCUSSION_CONVERSATION_COLUMNS,
)
from mac_runner.environments.discussion.results.bias import short_signed
from mac_runner.environments.discussion.results.comparison_tables import (
    UNDECLARED,
    grid_differences,
    paired_tables,
    primary_words,
)
from mac_runner.environments.discussion.results.comparisons import COMPARED, compare_discussions
from mac_runner.environments.discussion.results.counter import DiscussionResults
from mac_runner.environments.discussion.results.difference_awareness import (
    difference_awareness_figures,
    difference_awareness_tables,
)
from mac_runner.environments.discussion.results.discrim_eval import discrim_eval_figures, discrim_eval_tables
from mac_runner.environments.discussion.results.outcome import ALL, DiscussionResult, discussion_rewards
from mac_runner.environments.discussion.results.power import power_lines
from mac_runner.environments.discussion.scene import STANCES, discussion_scene
from mac_runner.measures import Measure, ResultsSpec, measure_figures, measure_tables
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
    default_shares,
    integer,
    parsed,
    rate_words,
    section,
    signed_text,
    with_defaults_column,
)
from mac_runner.types import JsonObject, JsonValue

_RIGHT: Final = {"first": "at first", "group": "as a group"}
_WHOSE: Final = {"agent": "definition", "author": "definition", "identity": "definition", "model": "model"}
"""Whose defaults the rows of a table are marked with, by the head of their names.

An agent without a persona is its own identity.
"""


def discussion_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """How many discussions there were and what ended them."""
    if report := section(summary, "discussions"):
        endings = section(report, "ended_by").items()
        ended = ", ".join(f"{count_text(count)} {name.replace('_', ' ')}" for name, count in endings)
        rounds = report.get("rounds_mean")
        mean = f"{rounds:.1f}" if isinstance(rounds, int | float) else UNKNOWN
        yield "discussions", f"{count_text(report.get('n'))}; {mean} rounds on average; ended by: {ended}"
        yield from power_lines(report)
    yield from _repetition_lines(summary)


def _repetition_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """That questions repeat, where they do."""
    report = section(summary, "discussion_questions")
    if repeated := integer(report.get("repeated")):
        over = f"{count_text(report.get('discussions'))} discussions over {count_text(report.get('n'))} questions"
        more = f"{count_text(repeated)} discussed more than once, at most {count_text(report.get('most'))} times"
        yield "questions repeat", f"{over}: {more}"


def discussion_headline(summary: JsonObject, compared: JsonObject) -> str:
    """Of a study its primary outcome; of a run how often answers were right and all agreed, and the bias scores."""
    if primary := primary_words(compared):
        return primary
    report = section(summary, "discussions")
    accuracy = section(report, "accuracy")
    right = [f"{words} {rate_words(section(accuracy, kind))}" for kind, words in _RIGHT.items() if kind in accuracy]
    found = [f"Right {', '.join(right)}"] if right else []
    if report:
        found.append(f"consensus {rate_words(section(report, 'consensus'))}")
    scores = section(section(section(report, "bias"), "group"), ALL)
    found += [
        f"bias in {name} contexts {signed_text(scored.get('score'))} ({_span(scored.get('interval'))})"
        for name in scores
        if (scored := section(scores, name)).get("n")
    ]
    text = f"{'; '.join(found)}; {count_text(report.get('n'))} discussions" if found else ""
    return text[:1].upper() + text[1:]


def _span(interval: JsonValue) -> str:
    return " to ".join(map(short_signed, interval)) if isinstance(interval, list) else UNKNOWN


def discussion_tables(summary: JsonObject, measures: Sequence[Measure] = MEASURES) -> Iterator[Table | str]:
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
    yield from discrim_eval_tables(section(report, "discrim_eval"))
    yield from difference_awareness_tables(section(report, "difference_awareness"))
    if has_defaults:
        yield DEFAULTS_NOTE


def discussion_figures(summary: JsonObject, measures: Sequence[Measure] = MEASURES) -> dict[str, Figure]:
    """The figures of the measures, the answers without a bias score, and the scores of benchmarks."""
    report = section(summary, "discussions")
    return {
        **measure_figures(measures, summary),
        **dict(_unscored_figures(section(report, "bias"))),
        **dict(discrim_eval_figures(section(report, "discrim_eval"))),
        **dict(difference_awareness_figures(section(report, "difference_awareness"))),
    }


def _unscored_figures(bias: JsonObject) -> Iterator[tuple[str, Figure]]:
    """The share of answers without a score. It is what it is: an interval would say nothing."""
    for kind in bias:
        over_all = section(section(bias, kind), ALL)
        counts = [section(over_all, context) for context in over_all]
        unscored, scored = (sum(integer(each.get(key)) or 0 for each in counts) for key in ("unscored", "n"))
        if asked := unscored + scored:
            share = round(unscored / asked, 4)
            yield f"unscored.{kind}", Figure(asked, share, None, None, is_headline=False, is_printed=kind == "group")


def discussion_values(outcome: JsonObject) -> Mapping[str, Value]:
    """The columns of one discussion; `right` is empty where the question has no right answer."""
    result = parsed(DiscussionResult, outcome, "the outcome in the index")
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
)


def discussion_results(measures: Sequence[Measure] = MEASURES) -> ResultsSpec:
    """How discussions are counted by some measures, and shown."""
    return ResultsSpec(
        counter=lambda: DiscussionResults(measures),
        noun="discussions",
        headline=discussion_headline,
        measures=measures,
        lines=discussion_lines,
        tables=lambda summary: discussion_tables(summary, measures),
        figures=lambda summary: discussion_figures(summary, measures),
        comparisons=compare_discussions,
        comparison_tables=paired_tables,
        compared=tuple(COMPARED),
        differences=grid_differences,
        undeclared=UNDECLARED,
        columns=DISCUSSION_COLUMNS,
        rewards=discussion_rewards,
        exports={"answers": ANSWERS},
        conversation_columns=DISCUSSION_CONVERSATION_COLUMNS,
        agent_columns=DISCUSSION_AGENT_COLUMNS,
        scene=discussion_scene,
        stances=STANCES,
    )


RESULTS: Final = discussion_results()
