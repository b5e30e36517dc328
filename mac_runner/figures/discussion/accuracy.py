"""How often answers were right: over the rounds, by model and agent, and in combinations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mac_runner.figures.discussion.rates import cases, rate_columns, rate_methods, rate_row
from mac_runner.figures.model import Figure, Value
from mac_runner.figures.plots import by_round, forest
from mac_runner.results import section
from mac_runner.types import JsonObject

KINDS: Final = {"first": "first answers", "final": "last answers", "group": "answer of the group"}
_CONTEXTS: Final = {
    "ambiguous": "ambiguous",
    "disambiguated": "disambiguated",
    "agrees": "evidence agrees with the stereotype",
    "disagrees": "evidence disagrees with it",
}
_SPEAKERS: Final = {"by_model": "model", "by_agent": "agent"}


def accuracy_figures(report: JsonObject) -> Iterator[Figure]:
    """By round, by context, and by who answered; none where no question had a right answer."""
    accuracy = section(report, "accuracy")
    if not accuracy:
        return
    rounds = section(report, "accuracy_by_round")
    rows = [rate_row(section(rounds, number), round=float(number), of="participants") for number in rounds]
    rows.append(rate_row(section(accuracy, "group"), round=float(len(rounds)) + 1, of="group"))
    yield Figure(
        id="accuracy-by-round",
        title="Do answers get better as the discussion goes on?",
        caption="Right answers of the participants in each round, and of the group at the end (the last point), with "
        "95 % intervals. A pass counts as wrong.",
        n=cases(rows),
        unit="answers",
        columns=rate_columns(("of", "of"), ("round", "round"), value="right", kind="rate"),
        rows=tuple(rows),
        spec=by_round(rows, title="right answers", unit="rate", group="of", x_title="round", last="group"),
        methods=rate_methods(rows),
    )
    yield from _by_context(section(report, "accuracy_by_context"))
    for key, word in _SPEAKERS.items():
        yield from _by_speaker(section(report, key), word)


def _by_context(found: JsonObject) -> Iterator[Figure]:
    rows = [
        rate_row(section(section(found, kind), context), context=words, answers=KINDS[kind])
        for context, words in _CONTEXTS.items()
        for kind in KINDS
        if section(section(found, kind), context).get("n")
    ]
    if rows:
        yield _forest(
            rows,
            name="accuracy-by-context",
            title="In which contexts are answers right?",
            label=("context", "context"),
            group=("answers", "answers"),
        )


def _by_speaker(found: JsonObject, word: str) -> Iterator[Figure]:
    rows = [
        rate_row(section(section(section(found, name), "accuracy"), kind), of=name, answers=KINDS[kind])
        for name in found
        for kind in ("first", "final")
        if section(section(found, name), "accuracy")
    ]
    if len({row["of"] for row in rows}) > 1:
        yield _forest(
            rows,
            name=f"accuracy-by-{word}",
            title=f"Which {word} answers right most often?",
            label=("of", word),
            group=("answers", "answers"),
        )


def compared_accuracy(reports: Sequence[tuple[str, JsonObject]]) -> Iterator[Figure]:
    """First, last and group answers of each combination."""
    rows = [
        rate_row(section(section(report, "accuracy"), kind), run=name, answers=KINDS[kind])
        for name, report in reports
        for kind in KINDS
        if section(section(report, "accuracy"), kind).get("n")
    ]
    if rows:
        yield _forest(
            rows,
            name="accuracy-compared",
            title="In which run are answers right most often?",
            label=("run", "run"),
            group=("answers", "answers"),
        )


def _forest(
    rows: list[dict[str, Value]], *, name: str, title: str, label: tuple[str, str], group: tuple[str, str]
) -> Figure:
    return Figure(
        id=name,
        title=title,
        caption="Share of right answers with 95 % interval; a pass counts as wrong.",
        n=cases(rows),
        unit="answers",
        columns=rate_columns(label, group, value="right", kind="rate"),
        rows=tuple(rows),
        spec=forest(rows, label=label[0], unit="rate", title="right answers", units="questions", group=group[0]),
        methods=rate_methods(rows),
    )
