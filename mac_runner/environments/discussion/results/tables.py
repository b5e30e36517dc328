"""Results of discussions for readers: tables of rates and bias scores, and the figures of a grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from mac_runner.environments.discussion.results.answer_table import ANSWERS
from mac_runner.environments.discussion.results.counter import DiscussionResults
from mac_runner.environments.discussion.results.difference_awareness import (
    difference_awareness_figures,
    difference_awareness_tables,
)
from mac_runner.environments.discussion.results.discrim_eval import discrim_eval_figures, discrim_eval_tables
from mac_runner.environments.discussion.results.outcome import ALL, DiscussionResult
from mac_runner.results import (
    RATE_HEADS,
    UNKNOWN,
    Column,
    Columns,
    Figure,
    ResultsSpec,
    Table,
    Value,
    count_text,
    figure,
    interval_text,
    parsed,
    percent_text,
    rate_texts,
    section,
    signed_text,
)
from mac_runner.types import JsonObject, JsonValue

_CONTEXTS: Final = {"ambiguous": "ambig", "disambiguated": "disambig"}


def discussion_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """How many discussions there were and what ended them."""
    if report := section(summary, "discussions"):
        endings = section(report, "ended_by").items()
        ended = ", ".join(f"{count_text(count)} {name.replace('_', ' ')}" for name, count in endings)
        rounds = report.get("rounds_mean")
        mean = f"{rounds:.1f}" if isinstance(rounds, int | float) else UNKNOWN
        yield "discussions", f"{count_text(report.get('n'))}; {mean} rounds on average; ended by: {ended}"


def discussion_tables(summary: JsonObject) -> Iterator[Table | str]:
    """A table for each thing that was counted."""
    report = section(summary, "discussions")
    if not report:
        return
    right = {f"right, {name}": rate for name, rate in section(report, "accuracy").items()}
    yield _rates("answers", "", {**right, "consensus at the end": report.get("consensus")})
    by_round = {
        **{f"right in round {name}": rate for name, rate in section(report, "accuracy_by_round").items()},
        **{f"changed in round {name}": rate for name, rate in section(report, "changes_by_round").items()},
    }
    if by_round:
        yield _rates("by round", "", by_round)
    if changed := section(report, "changes_by_identity"):
        yield _rates("changed answers, by the identity shown of who gave them", "identity", changed)
    if followed := section(report, "followed_by_identity"):
        yield _rates("another's answer taken over, by the identity shown", "identity", followed)
    yield from _roles(section(report, "roles"))
    yield from _bias(section(report, "bias"))
    yield from discrim_eval_tables(section(report, "discrim_eval"))
    yield from difference_awareness_tables(section(report, "difference_awareness"))


def _rates(title: str, name: str, rates: Mapping[str, JsonValue]) -> Table:
    rows = [
        (key, *_counts(rate, "n", "count"), *rate_texts(rate)) for key, rate in rates.items() if isinstance(rate, dict)
    ]
    return Table(title, (name,), ("n", "count", *RATE_HEADS), rows)


def _roles(roles: JsonObject) -> Iterator[Table]:
    """One table for those whose answers do not count."""
    rows = [_part(agent, section(roles, agent)) for agent in roles]
    if rows:
        numbers = ("statements", "questions", "verdicts", "could follow", "followed", "rate")
        yield Table("the other roles", ("agent", "role"), numbers, rows)


def _part(agent: str, part: JsonObject) -> tuple[str, ...]:
    followed = section(part, "followed")
    counts = (*_counts(part, "statements", "questions", "verdicts"), *_counts(followed, "n", "count"))
    return (agent, str(part.get("role")).replace("_", " "), *counts, percent_text(followed.get("rate")))


def _bias(bias: JsonObject) -> Iterator[Table]:
    rows = [
        (category, kind, short, *_score(section(section(section(bias, kind), category), context)))
        for category in section(bias, "group")
        for context, short in _CONTEXTS.items()
        # What talking did is shown over all; the summary has it by category too.
        for kind in (bias if category == ALL else ("group",))
    ]
    if rows:
        numbers = ("n", "biased", "counter", "score", "95% interval")
        yield Table("bias scores of BBQ, from -1 to 1", ("category", "answers", "context"), numbers, rows)


def _score(scored: JsonObject) -> tuple[str, ...]:
    ends = interval_text(scored.get("interval"), signed_text)
    return (*_counts(scored, "n", "biased", "counter"), signed_text(scored.get("score")), ends)


def _counts(record: JsonObject, *keys: str) -> tuple[str, ...]:
    return tuple(count_text(record.get(key)) for key in keys)


def discussion_figures(summary: JsonObject) -> dict[str, Figure]:
    """How often answers were right and how often all agreed, and the bias scores over all questions.

    The headlines are those of the whole group, and how right its members were at first.
    """
    report = section(summary, "discussions")
    accuracy, bias = section(report, "accuracy"), section(report, "bias")
    found = {f"accuracy.{kind}": figure(section(accuracy, kind), is_headline=kind != "final") for kind in accuracy}
    found["consensus"] = figure(section(report, "consensus"))
    for kind in bias:
        scores = section(section(bias, kind), ALL)
        for context in scores:
            # Answers that it cannot be known count in the ambiguous score alone.
            cases = ("biased", "counter") if context == "disambiguated" else ("n",)
            scored = figure(section(scores, context), cases=cases, is_headline=kind == "group")
            found[f"bias.{kind}.{context}"] = scored
    return {
        **{name: one for name, one in found.items() if one is not None},
        **dict(discrim_eval_figures(section(report, "discrim_eval"))),
        **dict(difference_awareness_figures(section(report, "difference_awareness"))),
    }


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
        "right": Column("truth"),
        "consensus": Column("truth"),
        "rounds": Column("number"),
        "ended_by": Column("word"),
        "passes": Column("number"),
        "agent": Column("words", is_listed=False),
    },
    discussion_values,
)

RESULTS: Final = ResultsSpec(
    counter=DiscussionResults,
    lines=discussion_lines,
    tables=discussion_tables,
    figures=discussion_figures,
    columns=DISCUSSION_COLUMNS,
    exports={"answers": ANSWERS},
)
