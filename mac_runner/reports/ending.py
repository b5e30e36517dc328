"""The end of a run on a terminal: how far it is, its answer, what went wrong, and what to do next.

What it cost so far, and which limit of its experiment it has reached, are read from its account alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from rich.cells import cell_len

from mac_runner.paired import primary_words
from mac_runner.printable import printable
from mac_runner.registry import results_specs
from mac_runner.reports.failures import warnings
from mac_runner.reports.grid import GridRow, figures_of
from mac_runner.reports.metrics import metric_warnings
from mac_runner.reports.tables import bold, caveats, figure_text, has_style, stream_width, wrapped
from mac_runner.results import NOUN, Figure, count_text, decimal_text, integer, number, objects, section
from mac_runner.types import JsonObject

LINES_MAX: Final = 12
"""With two lines of advice below it, a run ends in 14."""
_WIDTH_MAX: Final = 100
"""Sentences are not longer on a wide terminal."""
_FIGURES_MAX: Final = 4
_FAULTS_MAX: Final = 3
"""How many reasons of failure, or combinations with a warning, are named."""
_FAULT_LINES_MAX: Final = 2
_WIDTH_MIN: Final = 20
_WHOLE_S_MIN: Final = 10


def write_ending(
    summary: JsonObject,
    directory: Path,
    stream: TextIO,
    *,
    rows: Sequence[GridRow] | None = None,
    compared: JsonObject | None = None,
) -> None:
    """Print the end of a run, or of a grid with `rows`, on `stream`."""
    text = ending(
        summary, directory, rows=rows, compared=compared, width=stream_width(stream), is_bold=has_style(stream)
    )
    stream.write(text)
    stream.flush()


def ending(
    summary: JsonObject,
    directory: Path,
    *,
    rows: Sequence[GridRow] | None = None,
    compared: JsonObject | None = None,
    width: int = 80,
    is_bold: bool = False,
) -> str:
    """At most LINES_MAX lines of `width` columns; a command may be longer."""
    noun = _noun([summary] if rows is None else [row.summary for row in rows if row.summary])
    commands = [*_commands(summary, directory, noun, width)]
    room = max(_WIDTH_MIN, min(width, _WIDTH_MAX))
    name = printable(str(summary.get("experiment_name", summary.get("grid"))))
    status = wrapped(f"{name}   {_status(summary, noun)}", room)
    answer = wrapped(printable(_answer(summary, rows, compared or {})), room)
    faults = [
        line for fault in _faults(summary, rows) for line in _first(wrapped(printable(fault), room), _FAULT_LINES_MAX)
    ]
    lines = [*_first(status, 2), *_first([line for line in answer if line], LINES_MAX - 2 - 1 - 2 - len(commands))]
    lines += [_replies(summary)] if summary.get("turns") else []
    lines += [*_first(faults, LINES_MAX - len(lines) - len(commands)), *commands]
    lines[0] = lines[0].replace(name, bold(name, is_bold), 1)
    return "\n".join(lines) + "\n"


def _first(lines: Sequence[str], most: int) -> Sequence[str]:
    """So many lines; the tables have the rest."""
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1][:-2]} …"]


def _noun(summaries: Sequence[JsonObject]) -> str:
    """What the conversations are called, where all are of one environment."""
    nouns = {spec.noun for each in summaries for spec in results_specs().values() if any(spec.lines(each))}
    return nouns.pop() if len(nouns) == 1 else NOUN


def _status(summary: JsonObject, noun: str) -> str:
    conversations, combinations = section(summary, "conversations"), section(summary, "combinations")
    finished, failed, planned = (count_text(conversations.get(key)) for key in ("finished", "failed", "planned"))
    asked, begun = (integer(combinations.get(key)) or 0 for key in ("asked", "begun"))
    begun_only = f" ({begun} of them begun)" if begun < asked else ""
    of_grid = (
        f"{count_text(combinations.get('complete'))} of {count_text(asked)} combinations{begun_only}, "
        if combinations
        else ""
    )
    played_s = number(summary.get("played_s"))
    took = decimal_text(played_s) if played_s is None or played_s < _WHOLE_S_MIN else f"{played_s:,.0f}"
    played = f"{count_text(summary.get('turns'))} turns in {took} s"
    return f"{of_grid}{finished} of {planned} {noun} finished, {failed} failed; {played}"


def _answer(summary: JsonObject, rows: Sequence[GridRow] | None, compared: JsonObject) -> str:
    """What the environment says in a sentence, or the first figures of any."""
    if primary := primary_words(compared):
        return primary
    one = [row.summary for row in rows or () if row.summary is not None]
    of = one[0] if rows is not None and len(one) == 1 else summary
    said = [text for spec in results_specs().values() if (text := spec.headline(of, compared))]
    if said:
        return "; ".join(said)
    return "; ".join(_figures(of) if rows is None or len(one) == 1 else _ranges(rows))


def _figures(summary: JsonObject) -> Iterator[str]:
    for name, figure in _headlines(summary).items():
        if figure.value is not None:
            yield f"{name} {figure_text(figure, has_n=True, has_unit=True)}"


def _ranges(rows: Sequence[GridRow]) -> Iterator[str]:
    """Each figure with the combinations where it is least and greatest."""
    found: dict[str, list[tuple[float, Figure, str]]] = {}
    for row in rows:
        for name, figure in _headlines(row.summary or {}).items():
            if figure.value is not None:
                found.setdefault(name, []).append((figure.value, figure, row.slug))
    for name, of in islice(found.items(), _FIGURES_MAX):
        ends = [min(of), max(of)] if min(of)[0] < max(of)[0] else [of[0]]
        texts = [f"{figure_text(figure, has_n=False, has_unit=True)} with {slug}" for _, figure, slug in ends]
        yield f"{name} {' to '.join(texts)}{'' if len(ends) > 1 or len(of) == 1 else ', as with all'}"


def _headlines(summary: JsonObject) -> Mapping[str, Figure]:
    named = ((name, figure) for name, figure in figures_of(summary).items() if figure.is_headline)
    return dict(islice(named, _FIGURES_MAX))


def _replies(summary: JsonObject) -> str:
    corrections, defaults = (integer(summary.get(key)) or 0 for key in ("corrections", "defaults"))
    usable = "Replies" if corrections or defaults else "All replies usable"
    return f"{usable}: {corrections:,} corrections, {defaults:,} defaults"


def _faults(summary: JsonObject, rows: Sequence[GridRow] | None) -> Iterator[str]:
    """What went wrong, or changes what the numbers mean."""
    parts = [("", summary)] if rows is None else [(f"{row.slug}: ", row.summary) for row in rows if row.summary]
    told = [f"{name}warning: {text}" for name, each in parts for text in warnings(each)]
    failures = [
        f"{name}failed: {count_text(failure.get('count'))} × {failure.get('reason')}"
        for name, each in parts
        for failure in objects(each.get("failures"))
    ]
    for found in (told, failures):
        yield from found[:_FAULTS_MAX]
        if (hidden := len(found) - _FAULTS_MAX) > 0:
            yield f"and {hidden} more: --tables"
    yield from metric_warnings(summary)
    for name, value in caveats(summary):
        yield f"{name}: {value}"


def _commands(summary: JsonObject, directory: Path, noun: str, width: int) -> Iterator[str]:
    path = printable(shlex.quote(str(directory)))
    has_failures = bool(section(summary, "conversations").get("failed"))
    commands = {
        f"mac-run view {path}": f"{noun}, in the browser",
        **(
            {f"mac-run show {path} --where failed": "those that failed, and why"}
            if has_failures
            else {f"mac-run report {path}": "figures with intervals, one page"}
        ),
        f"mac-run show {path} --tables": "all tables, here",
    }
    longest = max(map(cell_len, commands))
    has_room = 2 + longest + 3 + max(map(len, commands.values())) <= width
    for command, meaning in commands.items():
        yield f"  {command}{' ' * (longest - cell_len(command))}   {meaning}" if has_room else f"  {command}"


_MTOK: Final = 1_000_000
_HOUR_S: Final = 3600


class Cost(NamedTuple):
    """What one engine cost, in US dollars; None for a part without a price."""

    tokens: float | None
    hours: float | None

    @property
    def total(self) -> float | None:
        """Both parts; None where neither has a price."""
        parts = [part for part in self if part is not None]
        return sum(parts) if parts else None


def cost_of(definition: JsonObject, account: JsonObject) -> Cost:
    """What an engine cost: its entry of `model_definitions`, and its part of the accounting."""
    prices, tokens = section(definition, "usd_per_mtok"), section(account, "tokens")
    per_hour, played_s = number(definition.get("usd_per_hour")), number(account.get("played_s"))
    of_tokens = None
    if prices:
        counted = {key: number(tokens.get(key)) or 0.0 for key in ("prompt", "cached", "completion")}
        prompt, completion = (number(prices.get(key)) or 0.0 for key in ("prompt", "completion"))
        cached = number(prices.get("cached"))
        new = max(0.0, counted["prompt"] - counted["cached"])
        of_cached = counted["cached"] * (prompt if cached is None else cached)
        of_tokens = (new * prompt + of_cached + counted["completion"] * completion) / _MTOK
    return Cost(of_tokens, None if per_hour is None or played_s is None else per_hour * played_s / _HOUR_S)


def definition_of(engine: str, definitions: Mapping[str, JsonObject]) -> JsonObject:
    """The definition of an engine, whose name a digest may follow in a grid; empty where it is not known."""
    return definitions.get(engine) or definitions.get(engine.partition("#")[0]) or {}


def limit_reached(experiment: JsonObject, used: JsonObject) -> str | None:
    """The limit that a run has reached by what it used, in words; None for none.

    Of the experiment only `limits` and `model_definitions` are read, which have the prices.
    """
    limits = section(experiment, "limits")
    for key, measure in _MEASURES.items():
        limit = number(limits.get(key))
        if limit is not None and (found := measure(experiment, used)) >= limit:
            return f"limits.{key}: {_text(found)} used of {_text(limit)}"
    return None


def _tokens(_experiment: JsonObject, used: JsonObject) -> float:
    accounts = section(used, "models")
    counts = [section(section(accounts, name), "tokens") for name in accounts]
    return sum(number(tokens.get(key)) or 0 for tokens in counts for key in ("prompt", "completion"))


def _usd(experiment: JsonObject, used: JsonObject) -> float:
    definitions, accounts = section(experiment, "model_definitions"), section(used, "models")
    known = {name: section(definitions, name) for name in definitions}
    return sum(cost_of(definition_of(name, known), section(accounts, name)).total or 0.0 for name in accounts)


def _hours(_experiment: JsonObject, used: JsonObject) -> float:
    return (number(used.get("played_s")) or 0.0) / _HOUR_S


_MEASURES: Final = {"tokens": _tokens, "usd": _usd, "hours": _hours}


def _text(amount: float) -> str:
    if amount == int(amount):
        return f"{int(amount):,}"
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.3g}"
