"""How far answers follow stereotypes: by category and context, over the rounds, and in combinations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mac_runner.environments.discussion.results.grid_figures import CASES
from mac_runner.figures.discussion.accuracy import KINDS
from mac_runner.figures.discussion.rates import cases, rate_columns, rate_methods, rate_row
from mac_runner.figures.model import Figure, Value
from mac_runner.figures.plots import by_round, forest, heat
from mac_runner.results import figure, section
from mac_runner.types import JsonObject

_CONTEXTS: Final = ("ambiguous", "disambiguated")
_SHORT: Final = {"first": "first", "final": "last", "group": "group"}
_ALL: Final = "all"
_READ: Final = "+1: all answers follow the stereotype; −1: all go against it."


def bias_figures(report: JsonObject) -> Iterator[Figure]:
    """A heat map of categories and contexts, and the scores over the rounds; none where no target is known."""
    bias = section(report, "bias")
    if not bias:
        return
    yield _heat(bias)
    rounds = section(report, "bias_by_round")
    rows = [
        _row(section(rounds, number), context, round=float(number), context=context)
        for number in rounds
        for context in _CONTEXTS
        if section(section(rounds, number), context).get("score") is not None
    ]
    if len(rounds) > 1 and rows:
        yield Figure(
            id="bias-by-round",
            title="Do answers become more biased as the discussion goes on?",
            caption=f"Bias score of the participants' answers in each round, with 95 % interval. {_READ}",
            n=cases(rows),
            unit="answers",
            columns=rate_columns(("context", "context"), ("round", "round"), value="bias score", kind="score"),
            rows=tuple(rows),
            spec=by_round(rows, title="bias score", unit="score", group="context"),
            methods=rate_methods(rows, is_score=True),
        )


def _row(scores: JsonObject, context: str, /, **words: Value) -> dict[str, Value]:
    """The score in a context on the answers that it is taken over, which tables over a grid give too."""
    record = section(scores, context)
    scored = figure(record, cases=CASES[context])
    return {**rate_row(record, **words), "n": None if scored is None else scored.n}


def _heat(bias: JsonObject) -> Figure:
    rows: list[dict[str, Value]] = []
    for kind in KINDS:
        by_category = section(bias, kind)
        for category in sorted(by_category, key=lambda name: (name == _ALL, name)):
            for context in _CONTEXTS:
                scores = section(by_category, category)
                row = _row(scores, context, category=category.replace("_", " "), context=context, answers=KINDS[kind])
                value = row["value"]
                text = "–" if not isinstance(value, float) else f"{value:+.2f}".replace("-", "−")
                rows.append({**row, "place": f"{context}, {_SHORT[kind]}", "text": text})
    order = [f"{context}, {words}" for context in _CONTEXTS for words in _SHORT.values()]
    rows.sort(key=lambda row: order.index(str(row["place"])))
    return Figure(
        id="bias-by-category",
        title="In which categories and contexts do answers follow stereotypes?",
        caption=f"Bias score of first answers, last answers and the answer of the group. {_READ} The data has the "
        "interval of each.",
        n=cases(rows),
        unit="answers",
        columns=rate_columns(
            ("category", "category"), ("context", "context"), ("answers", "answers"), value="bias score", kind="score"
        ),
        rows=tuple(rows),
        spec=heat(rows, across="place", down="category", value="value", text="text", titles=("", ""), is_score=True),
        methods=rate_methods(rows, is_score=True),
    )


def compared_bias(reports: Sequence[tuple[str, JsonObject]]) -> Iterator[Figure]:
    """The scores of each combination over all categories."""
    for context in _CONTEXTS:
        rows = [
            _row(section(section(section(report, "bias"), kind), _ALL), context, run=name, answers=KINDS[kind])
            for name, report in reports
            for kind in KINDS
        ]
        rows = [row for row in rows if row["n"]]
        if rows:
            yield Figure(
                id=f"bias-compared-{context}",
                title=f"In which run do answers follow stereotypes, in {context} contexts?",
                caption=f"Bias score over all categories with 95 % interval. {_READ}",
                n=cases(rows),
                unit="answers",
                columns=rate_columns(("run", "run"), ("answers", "answers"), value="bias score", kind="score"),
                rows=tuple(rows),
                spec=forest(
                    rows,
                    label="run",
                    unit="score",
                    title="bias score",
                    units="questions",
                    group="answers",
                    reference=0.0,
                ),
                methods=rate_methods(rows, is_score=True),
            )
