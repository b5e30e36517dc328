"""Results of discussions for readers: tables of rates and bias scores, and the figures of a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from mac_runner.environments.discussion.influence import NOT_SHOWN
from mac_runner.environments.discussion.results.agents import agent_tables
from mac_runner.environments.discussion.results.answer_table import (
    ANSWERS,
    DISCUSSION_AGENT_COLUMNS,
    DISCUSSION_CONVERSATION_COLUMNS,
)
from mac_runner.environments.discussion.results.comparison_tables import (
    UNDECLARED,
    grid_differences,
    paired_tables,
    primary_words,
)
from mac_runner.environments.discussion.results.comparisons import COMPARED, compare_discussions
from mac_runner.environments.discussion.results.contexts import context_tables
from mac_runner.environments.discussion.results.counter import DiscussionResults
from mac_runner.environments.discussion.results.difference_awareness import (
    difference_awareness_figures,
    difference_awareness_tables,
)
from mac_runner.environments.discussion.results.discrim_eval import discrim_eval_figures, discrim_eval_tables
from mac_runner.environments.discussion.results.grid_figures import CASES, further_figures
from mac_runner.environments.discussion.results.judges import judge_tables
from mac_runner.environments.discussion.results.movers import mover_tables
from mac_runner.environments.discussion.results.outcome import ALL, DiscussionResult, discussion_rewards
from mac_runner.environments.discussion.results.positions import position_tables
from mac_runner.environments.discussion.results.power import power_lines
from mac_runner.environments.discussion.results.repetition import repetition_lines
from mac_runner.environments.discussion.results.transitions import transition_tables
from mac_runner.environments.discussion.scene import STANCES, discussion_scene
from mac_runner.results import (
    DEFAULTS_HEAD,
    DEFAULTS_NOTE,
    RATE_HEADS,
    UNKNOWN,
    Column,
    Columns,
    Figure,
    ResultsSpec,
    Table,
    Value,
    count_text,
    default_shares,
    figure,
    integer,
    interval_text,
    parsed,
    percent_text,
    rate_texts,
    rate_words,
    section,
    signed_text,
    with_defaults_column,
)
from mac_runner.types import JsonObject, JsonValue

_BIAS_HEADS: Final = ("n", "clusters", "biased", "counter", "unscored", "score", "95% interval")
_RIGHT: Final = {"first": "at first", "group": "as a group"}
_WHOSE: Final = {"agent": "definition", "author": "definition", "identity": "definition", "model": "model"}
"""Whose defaults the rows of a table are marked with, by the head of their names.

An agent without a persona is its own identity.
"""
_CONTEXTS: Final = {"ambiguous": "ambig", "disambiguated": "disambig"}


def discussion_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """How many discussions there were and what ended them."""
    if report := section(summary, "discussions"):
        endings = section(report, "ended_by").items()
        ended = ", ".join(f"{count_text(count)} {name.replace('_', ' ')}" for name, count in endings)
        rounds = report.get("rounds_mean")
        mean = f"{rounds:.1f}" if isinstance(rounds, int | float) else UNKNOWN
        yield "discussions", f"{count_text(report.get('n'))}; {mean} rounds on average; ended by: {ended}"
        yield from power_lines(report)
    yield from repetition_lines(summary)


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
    return " to ".join(map(_short_signed, interval)) if isinstance(interval, list) else UNKNOWN


def discussion_tables(summary: JsonObject) -> Iterator[Table | str]:
    """A table for each thing that was counted; rows of agents and models say how often they took their default."""
    has_defaults = False
    for part in _tables(summary):
        if isinstance(part, str) or (whose := _WHOSE.get(part.words[0])) is None:
            yield part
            continue
        shares = default_shares(summary, whose)
        marked = with_defaults_column(part, [[shares.get(name)] for name, *_ in part.rows], len(part.numbers))
        has_defaults = has_defaults or DEFAULTS_HEAD in marked.numbers
        yield marked
    if has_defaults:
        yield DEFAULTS_NOTE


def _tables(summary: JsonObject) -> Iterator[Table | str]:
    report = section(summary, "discussions")
    if not report:
        return
    right = {f"right, {name}": rate for name, rate in section(report, "accuracy").items()}
    yield _answers({**right, "consensus at the end": report.get("consensus")}, has_accuracy=bool(right))
    by_round = {
        **{f"right in round {name}": rate for name, rate in section(report, "accuracy_by_round").items()},
        **{f"changed in round {name}": rate for name, rate in section(report, "changes_by_round").items()},
    }
    if by_round:
        yield _rates("by round", "", by_round)
    yield from _identities(report, "changes_by", "changed answers, by", "who gave them", "of who gave them")
    yield from _identities(report, "followed_by", "another's answer taken over, by", "whose it was", "")
    yield from _roles(section(report, "roles"))
    yield from judge_tables(report)
    yield from context_tables(report)
    yield from _bias(section(report, "bias"))
    yield from _bias_by_round(section(report, "bias_by_round"))
    yield from transition_tables(report)
    yield from agent_tables(report)
    yield from mover_tables(report)
    yield from position_tables(summary)
    yield from discrim_eval_tables(section(report, "discrim_eval"))
    yield from difference_awareness_tables(section(report, "difference_awareness"))


def _answers(rates: Mapping[str, JsonValue], *, has_accuracy: bool) -> Table:
    """Rates of right answers with passes counted as wrong, and among those given."""
    if not has_accuracy:
        return _rates("answers", "", rates)
    rows = [
        (key, *_counts(rate, "n", "clusters", "count"), *rate_texts(rate), *_given(rate))
        for key, rate in rates.items()
        if isinstance(rate, dict)
    ]
    heads = ("n", "clusters", "count", *RATE_HEADS, "passes", "rate without passes")
    return Table("answers; passes count as wrong", ("",), heads, rows)


def _given(rate: JsonObject) -> tuple[str, str]:
    if "answered" not in rate:
        return "", ""
    return count_text(rate.get("passes")), percent_text(section(rate, "answered").get("rate"))


def _identities(report: JsonObject, key: str, what: str, whose: str, of_whom: str) -> Iterator[Table]:
    """Rates by own identity, with what was shown of it; then by what was shown alone."""
    own = section(report, f"{key}_own_identity")
    if own:
        rows = [
            (name, _shown(rate), *_counts(rate, "n", "clusters", "count"), *rate_texts(rate))
            for name, rate in own.items()
            if isinstance(rate, dict)
        ]
        yield Table(f"{what} {whose}", ("identity", "shown as"), ("n", "clusters", "count", *RATE_HEADS), rows)
    shown = section(report, f"{key}_identity")
    if shown and len(shown) != len(own):  # Otherwise the table above says it all.
        yield _rates(f"{what} the identity shown {of_whom}".rstrip(), "identity", shown)


def _shown(rate: JsonObject) -> str:
    shown = rate.get("shown")
    return "; ".join(str(each) or NOT_SHOWN for each in shown) if isinstance(shown, list) else ""


def _rates(title: str, name: str, rates: Mapping[str, JsonValue]) -> Table:
    rows = [
        (key, *_counts(rate, "n", "clusters", "count"), *rate_texts(rate))
        for key, rate in rates.items()
        if isinstance(rate, dict)
    ]
    return Table(title, (name,), ("n", "clusters", "count", *RATE_HEADS), rows)


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


def _bias(bias: JsonObject) -> Iterator[Table | str]:
    over_all = [
        (kind, short, *_score(section(section(section(bias, kind), ALL), context)))
        for context, short in _CONTEXTS.items()
        for kind in bias
        if _has_answers(section(section(section(bias, kind), ALL), context))
    ]
    if over_all:
        yield Table("bias scores of BBQ, from -1 to 1", ("answers", "context"), _BIAS_HEADS, over_all)
    # What talking did is shown over all; the summary has it by category too.
    by_category = section(bias, "group")
    rows = [
        (category, short, *_score(section(section(by_category, category), context)))
        for category in by_category
        for context, short in _CONTEXTS.items()
        if category != ALL and _has_answers(section(section(by_category, category), context))
    ]
    if rows:
        yield Table("bias scores of the groups' answers by category", ("category", "context"), _BIAS_HEADS, rows)
    for kind in bias:
        left_out: Counter[str] = Counter()
        for context in _CONTEXTS:
            reasons = section(section(section(section(bias, kind), ALL), context), "left_out")
            left_out.update({reason: integer(count) or 0 for reason, count in reasons.items()})
        if left_out:
            counted = "; ".join(f"{count_text(count)}: {reason}" for reason, count in left_out.most_common())
            yield f"Left out of the bias scores, {kind} answers: {counted}."


def _bias_by_round(rounds: JsonObject) -> Iterator[Table]:
    rows = [
        (number, short, *_score(section(section(rounds, number), context)))
        for number in rounds
        for context, short in _CONTEXTS.items()
        if _has_answers(section(section(rounds, number), context))
    ]
    if rows and len(rounds) > 1:
        yield Table("bias scores of the participants by round", ("round", "context"), _BIAS_HEADS, rows)


def _has_answers(scored: JsonObject) -> bool:
    return bool(scored.get("n") or scored.get("unscored"))


def _score(scored: JsonObject) -> tuple[str, ...]:
    ends = interval_text(scored.get("interval"), _short_signed)
    counts = _counts(scored, "n", "clusters", "biased", "counter", "unscored")
    return (*counts, signed_text(scored.get("score")), ends)


def _short_signed(value: JsonValue) -> str:
    return f"{value:+.2f}" if isinstance(value, int | float) else UNKNOWN


def _counts(record: JsonObject, *keys: str) -> tuple[str, ...]:
    return tuple(count_text(record.get(key)) for key in keys)


def discussion_figures(summary: JsonObject) -> dict[str, Figure]:
    """How often answers were right, changed and taken over, how often all agreed, and the bias scores.

    The headlines are those of the whole group, and how right its members were at first.
    """
    report = section(summary, "discussions")
    accuracy, bias = section(report, "accuracy"), section(report, "bias")
    found = {f"accuracy.{kind}": figure(section(accuracy, kind), is_headline=kind != "final") for kind in accuracy}
    found["consensus"] = figure(section(report, "consensus"))
    for kind in bias:
        scores = section(section(bias, kind), ALL)
        for context in scores:
            scored = figure(section(scores, context), cases=CASES[context], is_headline=kind == "group")
            found[f"bias.{kind}.{context}"] = scored
    found |= dict(further_figures(report))
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
        "right": Column("truth", is_headline=True),
        "consensus": Column("truth", is_headline=True),
        "rounds": Column("number"),
        "ended_by": Column("word"),
        "passes": Column("number"),
        "agent": Column("words", is_listed=False),
    },
    discussion_values,
)

RESULTS: Final = ResultsSpec(
    counter=DiscussionResults,
    noun="discussions",
    headline=discussion_headline,
    lines=discussion_lines,
    tables=discussion_tables,
    figures=discussion_figures,
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
