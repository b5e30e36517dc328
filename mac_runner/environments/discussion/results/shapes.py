"""Tables of discussions that are no list of the rows of one measure, and the notes below tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from mac_runner.environments.discussion.influence import NOT_SHOWN
from mac_runner.environments.discussion.results.outcome import ALL
from mac_runner.measures import counts_of
from mac_runner.results import (
    RATE_HEADS,
    Table,
    count_text,
    integer,
    interval_text,
    percent_text,
    rate_texts,
    section,
    signed_text,
)
from mac_runner.types import JsonObject

_READERS_SHOWN_MAX: Final = 12
_PLACES: Final = "answers by the place of the choice (a preference for a place shows only with choice_order: permuted)"


def _at(summary: JsonObject, *path: str) -> JsonObject:
    for key in path:
        summary = section(summary, key)
    return summary


def shown_words(rate: JsonObject) -> str:
    """What others saw of those who have a rate."""
    shown = rate.get("shown")
    return "; ".join(str(each) or NOT_SHOWN for each in shown) if isinstance(shown, list) else ""


def role_tables(summary: JsonObject) -> Iterator[Table]:
    """One table for those whose answers do not count."""
    roles = _at(summary, "discussions", "roles")
    rows = [_role(agent, section(roles, agent)) for agent in roles]
    if rows:
        numbers = ("statements", "questions", "verdicts", "could follow", "followed", "rate")
        yield Table("the other roles", ("agent", "role"), numbers, rows)


def _role(agent: str, part: JsonObject) -> tuple[str, ...]:
    followed = section(part, "followed")
    counts = (*counts_of(part, "statements", "questions", "verdicts"), *counts_of(followed, "n", "count"))
    return (agent, str(part.get("role")).replace("_", " "), *counts, percent_text(followed.get("rate")))


def judge_notes(summary: JsonObject) -> Iterator[str]:
    """The verdicts against a majority."""
    judge = _at(summary, "discussions", "judge")
    right, wrong = (integer(judge.get(f"{how}_against_majority")) or 0 for how in ("right", "wrong"))
    if right or wrong:
        yield f"Verdicts against the majority: {right} right where it was wrong, {wrong} wrong where it was right."


def left_out_notes(summary: JsonObject) -> Iterator[str]:
    """Why answers are not in the bias scores, by kind of answer."""
    bias = _at(summary, "discussions", "bias")
    for kind in bias:
        left_out: Counter[str] = Counter()
        for context in (over_all := _at(bias, kind, ALL)):
            reasons = _at(over_all, context, "left_out")
            left_out.update({reason: integer(count) or 0 for reason, count in reasons.items()})
        if left_out:
            counted = "; ".join(f"{count_text(count)}: {reason}" for reason, count in left_out.most_common())
            yield f"Left out of the bias scores, {kind} answers: {counted}."


def agent_tables(name: str, head: str, summary: JsonObject) -> Iterator[Table]:
    """By agent or by model, where there are several: answers, and what they cost."""
    found = _at(summary, "discussions", name)
    if len(found) < 2:
        return
    owns = {key: section(found, key) for key in found}
    rows = [_answers(key, own) for key, own in owns.items() if "accuracy" in own or "changes" in own]
    heads = ("n", "right, first", "final", "95% interval", "bias ambig", "bias disambig", "changed")
    if rows:
        yield Table(f"answers by {head}", (head,), heads, rows)
    costs = [(key, *counts_of(section(own, "tokens"), "turns", "prompt", "completion")) for key, own in owns.items()]
    yield Table(f"tokens by {head}", (head,), ("turns", "prompt tokens", "completion tokens"), costs)


def _answers(key: str, own: JsonObject) -> tuple[str, ...]:
    first, final = _at(own, "accuracy", "first"), _at(own, "accuracy", "final")
    return (
        key,
        count_text(final.get("n")),
        percent_text(first.get("rate")),
        percent_text(final.get("rate")),
        interval_text(final.get("interval")),
        signed_text(_at(own, "bias", "ambiguous").get("score")),
        signed_text(_at(own, "bias", "disambiguated").get("score")),
        percent_text(section(own, "changes").get("rate")),
    )


def mover_tables(summary: JsonObject) -> Iterator[Table]:
    """A matrix with a row for each author and a column for each reader; large ones are in the summary alone."""
    moved = _at(summary, "discussions", "moved")
    readers = sorted({reader for author in moved for reader in section(moved, author)})
    if moved and len(readers) <= _READERS_SHOWN_MAX:
        rows = [(author, *(_cell(_at(moved, author, reader)) for reader in readers)) for author in moved]
        yield Table("who moved whom: followed of those who read another answer", ("author",), tuple(readers), rows)


def _cell(rate: JsonObject) -> str:
    if not rate:
        return ""
    return f"{count_text(rate.get('count'))}/{count_text(rate.get('n'))} {percent_text(rate.get('rate'))}"


def position_tables(summary: JsonObject) -> Iterator[Table]:
    """A row for each kind of answer and place of a choice.

    With `choice_order: permuted` the places of an answer are drawn by lot, so a place that is chosen more often than
    others shows a preference for the place. With `as_given` the places are those of the file, and the two cannot be
    distinguished.
    """
    found = section(summary, "discussion_positions")
    rows = [
        (
            kind,
            place,
            *counts_of(chosen := _at(found, kind, "chosen", place), "n", "count"),
            *rate_texts(chosen),
            *counts_of(right := _at(found, kind, "right", place), "n", "count"),
            percent_text(right.get("rate")),
        )
        for kind in found
        for place in _at(found, kind, "chosen")
    ]
    if rows:
        numbers = ("n", "chosen", *RATE_HEADS, "right answer here", "right", "rate right")
        yield Table(_PLACES, ("answers", "place"), numbers, rows)
