"""The summary of a run or a grid as tables for a terminal.

Made from `summary.json`, so a table can be printed from a run directory at any time. A file or a pipe gets plain
characters only.

Tables as text of a given width.

The name of a row is its first cell. It stays whole as long as it is shorter than a line: words are broken at blanks,
and columns of numbers that do not fit beside the names follow below, with the names again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final, TextIO

from rich.cells import cell_len, set_cell_size

from mac_runner.errors import ConfigError
from mac_runner.measures import ResultsSpec
from mac_runner.paired import compared_figures, paired_tables
from mac_runner.printable import printable
from mac_runner.registry import results_specs
from mac_runner.reports.failures import noted_defaults, usability_warning, warnings
from mac_runner.reports.grid import ROWS_SHOWN_MAX, GridRow, declared_in, figure_names, figures_of
from mac_runner.reports.metrics import metric_tables
from mac_runner.reports.outcomes import outcome_tables
from mac_runner.results import (
    DEFAULTS_HEAD,
    UNKNOWN,
    Figure,
    Table,
    count_text,
    decimal_text,
    integer,
    number,
    objects,
    percent_text,
    section,
)
from mac_runner.store.run import damaged_words
from mac_runner.types import JsonObject, JsonValue

_GAP: Final = "   "
_WRAPPED_CHARS_MIN: Final = 16
"""A column of words is not made narrower to have room for others."""
_WORD: Final = re.compile(r" *[^ ]+")
_INDENT: Final = "    "
_HEAD: Final = re.compile(r" *(?:[a-z]+(?: [a-z]+)* {2,})?")
"""What the text of a line stands behind: blanks, or a label in a column of its own."""


def drawn(parts: Iterable[Table | str], *, width: int, has_style: bool) -> str:
    """Tables and notes one below the other."""
    texts = (_note(part, width) if isinstance(part, str) else _table(part, width, has_style) for part in parts)
    return "\n\n".join("\n".join(line.rstrip() for line in lines) for lines in texts) + "\n"


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, broken at blanks. A word that is longer than a line is cut."""
    lines, line = list[str](), ""
    for word in _WORD.findall(text):
        if cell_len(line) + cell_len(word) <= width:
            line += word
            continue
        if line:
            lines.append(line)
        *full, line = _chopped(word.lstrip(), width)
        lines += full
    return [*lines, line]


def hanging(text: str, width: int) -> Iterator[str]:
    """The lines of a text, broken at blanks; each goes on below its own text, behind its label or indent."""
    for line in text.split("\n"):
        match = _HEAD.match(line)
        head = "" if match is None or match.end() > width // 2 else match[0]
        first, *further = wrapped(line[len(head) :], width - len(head))
        yield from (head + first, *(" " * len(head) + more for more in further))


def _chopped(word: str, width: int) -> Iterator[str]:
    piece = ""
    for char in word:
        if piece and cell_len(piece + char) > width:
            yield piece
            piece = ""
        piece += char
    yield piece


def bold(text: str, has_style: bool) -> str:
    """A heading on a terminal."""
    return f"\x1b[1m{text}\x1b[0m" if has_style and text else text


def _note(text: str, width: int) -> Iterator[str]:
    for line in text.split("\n"):
        yield from wrapped(printable(line), width)


def _table(table: Table, width: int, has_style: bool) -> Iterator[str]:
    yield from (bold(line, has_style) for line in wrapped(printable(table.title), width))
    heads = [*map(printable, (*table.words, *table.numbers))]
    rows = [[*map(printable, row)] for row in table.rows]
    widths = [max(map(cell_len, cells)) for cells in zip(heads, *rows, strict=True)]
    count = len(table.words)
    names, numbers = widths[:count], widths[count:]
    least = [
        min(
            natural,
            max([_WRAPPED_CHARS_MIN, *(cell_len(word) for row in (heads, *rows) for word in row[place].split())]),
        )
        for place, natural in enumerate(names)
    ]
    # All numbers beside the names, then as many as fit: at best beside names as they are.
    for beside in (numbers, [max(numbers, default=0)] if numbers else []):
        for chosen in (names, _narrowed(names, least, width - sum(beside) - len(_GAP) * len(beside))):
            if _total([*chosen, *beside]) <= width:
                yield from _blocks(heads, rows, [*chosen, *numbers], count, width, has_style)
                return
    for row in rows:
        yield from _record(heads, row, width)


def _narrowed(names: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widths of columns of words that have so much room together; the first one stays as it is."""
    found = [*names[:1], *least[1:]]
    for place in range(1, len(found)):
        found[place] = min(names[place], found[place] + max(0, room - _total(found)))
    return found


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _blocks(
    heads: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], words: int, width: int, has_style: bool
) -> Iterator[str]:
    """The columns one block below the other: each has all names, and as many numbers as fit."""
    names = [*range(words)]
    block = [*names]
    for place in range(words, len(heads)):
        if len(block) > words and _total([widths[each] for each in (*block, place)]) > width:
            yield from (*_block(heads, rows, widths, block, words, has_style), "")
            block = [*names]
        block.append(place)
    yield from _block(heads, rows, widths, block, words, has_style)


def _block(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    places: Sequence[int],
    words: int,
    has_style: bool,
) -> Iterator[str]:
    def lines(row: Sequence[str]) -> Iterator[str]:
        cells = [wrapped(row[place], widths[place]) if place < words else [row[place]] for place in places]
        for line in zip_longest(*cells, fillvalue=""):
            yield _GAP.join(
                set_cell_size(cell, widths[place]) if place < words else " " * (widths[place] - cell_len(cell)) + cell
                for place, cell in zip(places, line, strict=True)
            )

    if any(heads):
        yield from (bold(line.rstrip(), has_style) for line in lines(heads))
        yield "─" * _total([widths[place] for place in places])
    for row in rows:
        yield from lines(row)


def _record(heads: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """A row whose names leave no room for anything beside them: its other cells follow below."""
    yield from wrapped(row[0], width)
    for head, cell in zip(heads[1:], row[1:], strict=True):
        for line in wrapped(f"{head}: {cell}" if head else cell, max(1, width - len(_INDENT))):
            yield f"{_INDENT}{line}"


NOT_COUNTED: Final = "not counted by the engine"
_FURTHER_COMBINATIONS_MAX: Final = 16
PARTS_MAX: Final = 12
"""How many sessions are printed with their part of the result."""
_WIDTH_DEFAULT: Final = 100
_WAIT_S_MIN: Final = 0.1
_ENGINE_HEADS: Final = ("capacity", "slots", "slots used", "requests")


def write_tables(parts: Iterable[Table | str], stream: TextIO) -> None:
    """Print tables and notes on `stream`, in colour and to its width where it is a terminal."""
    stream.write(drawn(parts, width=stream_width(stream), has_style=has_style(stream)))
    stream.flush()


def summary_tables(summary: JsonObject) -> list[Table | str]:
    """The tables of a run, and notes below them; the first one is on the run as a whole."""
    return [
        Table(str(summary.get("experiment_name")), ("", ""), (), [*_overview_lines(summary)]),
        *(part for spec in results_specs().values() for part in spec.tables(summary)),
        *outcome_tables(summary),
        *metric_tables(summary),
        *_unusable(summary),
        *_engines(summary, "models", "model"),
        *_failures(summary),
        *_parts(summary),
    ]


def grid_tables(summary: JsonObject, rows: Sequence[GridRow], compared: JsonObject | None = None) -> list[Table | str]:
    """The tables of a grid, and notes below them. `compared` is what `compare_combinations` found."""
    return [
        _grid_table(summary, rows),
        "\n".join(_grid_notes(summary, rows)),
        *_further_figures(rows),
        *(part for kind, spec in results_specs().items() for part in _compared(kind, spec, compared or {})),
        *_undeclared(summary, rows),
        *_engines(summary, "engines, over all combinations", "engine"),
    ]


def _compared(kind: str, spec: ResultsSpec, compared: JsonObject) -> Iterable[Table | str]:
    return paired_tables(compared, kind) if spec.comparisons is None else spec.comparison_tables(compared)


def tables_named(parts: Iterable[Table | str], name: str) -> list[Table | str]:
    """The tables with `name` in their title, and the notes below them. Raises ConfigError where there is none."""
    found, titles, is_chosen = list[Table | str](), list[str](), False
    for part in parts:
        if isinstance(part, Table):
            titles.append(printable(part.title))
            is_chosen = name.casefold() in part.title.casefold()
        if is_chosen:
            found.append(part)
    if not found:
        raise ConfigError(f"--tables: no table is called {name!r}; there are: {'; '.join(titles)}")
    return found


def has_style(stream: TextIO) -> bool:
    """Whether headings on `stream` are in bold."""
    return stream.isatty() and "NO_COLOR" not in os.environ


def stream_width(stream: TextIO) -> int:
    """The columns of a terminal; of a file or a pipe, as many as most readers have room for."""
    if not stream.isatty():
        return _WIDTH_DEFAULT
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH_DEFAULT
    except (OSError, ValueError):
        return _WIDTH_DEFAULT


def fitted(text: str, stream: TextIO) -> str:
    """A text as a terminal shows it without breaking a word. A file or a pipe gets it as it is."""
    return "\n".join(hanging(text, stream_width(stream))) if stream.isatty() else text


def _overview_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    conversations = section(summary, "conversations")
    planned = count_text(conversations.get("planned"))
    yield "conversations", f"{_listed(conversations, ('finished', 'failed'))}, of {planned} planned"
    if fork := section(summary, "fork"):
        by_arm = section(fork, "arms")
        arms = (f"{name} {count_text(section(by_arm, name).get('ended'))}" for name in by_arm)
        yield "fork", f"conversations forked: {count_text(fork.get('of'))}; ended by arm: {', '.join(arms)}"
    for spec in results_specs().values():
        yield from spec.lines(summary)
    yield "turns", f"{count_text(summary.get('turns'))}; {_listed(summary, ('corrections', 'defaults'))}"
    for warning in warnings(summary):
        yield "warning", warning
    yield "tokens", _tokens(section(summary, "tokens"), summary.get("turns"))
    yield from _times(summary)
    if retried := section(summary, "retried"):
        counts = f"{count_text(retried.get('conversations'))}: {_listed(retried, ('finished', 'failed'))}"
        yield "tried again", f"{counts}; {count_text(retried.get('failed_attempts'))} failed attempts before"
    yield from caveats(summary)


def caveats(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """What is to be known of all numbers of a run or a grid."""
    if damaged := integer(summary.get("damaged_lines")):
        yield "damaged", damaged_words(damaged)
    if section(summary, "fork").get("off_policy"):
        yield "off-policy", "every number: replies were kept for other prompts, or written by hand"


def _listed(source: JsonObject, keys: Iterable[str]) -> str:
    """`3 finished, 1 failed`."""
    return ", ".join(f"{count_text(source.get(key))} {key}" for key in keys)


def _tokens(tokens: JsonObject, turns: JsonValue) -> str:
    """What was counted, and whose tokens were not."""
    uncounted, models = tokens.get("uncounted_turns"), tokens.get("uncounted_models")
    if isinstance(uncounted, int) and uncounted == turns:
        return NOT_COUNTED
    cached = section(tokens, "timing").get("cached")
    counted = _listed({**tokens, "cached": cached}, ("prompt", "cached", "completion"))
    if isinstance(models, list):
        return f"{counted}; {', '.join(map(str, models))}: {NOT_COUNTED}"
    return f"{counted}; {uncounted:,} turns were not counted" if isinstance(uncounted, int) else counted


def _times(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """How long it took, and how fast it went while it was played."""
    wall_s, played_s, merged = (summary.get(key) for key in ("wall_s", "played_s", "merged_runs"))
    over = f", added up over {merged} merged runs" if isinstance(merged, int) and merged else ""
    waited = ""
    if isinstance(wall_s, int | float) and isinstance(played_s, int | float) and wall_s - played_s >= _WAIT_S_MIN:
        waited = f", {decimal_text(wall_s - played_s)} s of it waiting for engines"
    yield "wall time", f"{decimal_text(wall_s)} s{over}{waited}"
    conversations, turns = (decimal_text(summary.get(f"{each}_per_s")) for each in ("conversations", "turns"))
    yield "played", f"{decimal_text(played_s)} s; {conversations} conversations/s, {turns} turns/s"


def _unusable(summary: JsonObject) -> Iterator[Table]:
    """The replies that could not be used, and why, where there were any."""
    if unusable := section(summary, "unusable"):
        rows = [
            (name, cause.replace("_", " "), count_text(count))
            for name in unusable
            for cause, count in section(unusable, name).items()
        ]
        yield Table("unusable replies", ("agent", "cause"), ("count",), rows)


def _engines(summary: JsonObject, title: str, head: str) -> Iterator[Table | str]:
    """What each engine did. The slots are a mean, and what is used is a part of them, not of the capacity."""
    models = section(summary, "models")
    # A combination of a grid has no account of the engines.
    if engines := {name: section(models, name) for name in models if "requests" in section(models, name)}:
        # Where no engine is held to anything, as with scripted players, there is nothing to distinguish.
        has_forms = any(model.get("constrained_decoding", "none") != "none" for model in engines.values())
        heads = (head, "replies") if has_forms else (head,)
        rows = [(name, *([_form(model)] if has_forms else []), *_engine(model)) for name, model in engines.items()]
        yield Table(title, heads, _ENGINE_HEADS, rows)
        played_s = number(summary.get("played_s"))
        took = [(name, _request_s(model, played_s)) for name, model in engines.items()]
        if known := [f"{name} {decimal_text(seconds)}" for name, seconds in took if seconds is not None]:
            yield f"Seconds that a request took: {', '.join(known)}."


def _request_s(model: JsonObject, played_s: float | None) -> float | None:
    """The time that slots were busy, for each request."""
    slots, used, requests = (number(model.get(key)) for key in ("slots_mean", "slot_utilisation", "requests"))
    if slots is None or used is None or played_s is None or not requests:
        return None
    return slots * used * played_s / requests


def _form(model: JsonObject) -> str:
    """The form of a model's replies, and what holds them to it."""
    decoding, form = model.get("constrained_decoding", UNKNOWN), model.get("reply_form")
    held = "free" if decoding == "none" else f"held to {decoding}"
    return held if form is None else f"{form}, {held}"


def _engine(model: JsonObject) -> tuple[str, ...]:
    slots = model.get("slots_mean")
    mean = f"{slots:,.1f}" if isinstance(slots, int | float) else UNKNOWN
    used = percent_text(model.get("slot_utilisation"))
    return (count_text(model.get("capacity")), mean, used, count_text(model.get("requests")))


def _failures(summary: JsonObject) -> Iterator[Table]:
    if failures := objects(summary.get("failures")):
        rows = [
            (str(failure.get("reason")), names_text(failure.get("task_ids")), count_text(failure.get("count")))
            for failure in failures
        ]
        yield Table("failures", ("reason", "first tasks"), ("count",), rows)


def names_text(names: JsonValue) -> str:
    """The names of a list in one line."""
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


def _parts(summary: JsonObject) -> Iterator[Table | str]:
    """Which part came when, where there are several."""
    parts = objects(summary.get("parts"))
    if len(parts) < 2:
        return
    shown = parts[-PARTS_MAX:]
    runs = ("run",) if any("run" in part for part in shown) else ()
    rows = [
        (
            str(part.get("started_at")),
            *(str(part.get(key, UNKNOWN)) for key in runs),
            str(part.get("indexes")),
            *(count_text(part.get(key)) for key in ("finished", "failed")),
        )
        for part in shown
    ]
    yield Table("parts", ("began", *runs, "conversations"), ("finished", "failed"), rows)
    if len(parts) > len(shown):
        yield f"and {len(parts) - len(shown)} earlier sessions: summary.json has them all."


def _undeclared(summary: JsonObject, rows: Sequence[GridRow]) -> Iterator[str]:
    """How to declare a baseline, where there are combinations to compare and none is declared."""
    if declared_in(summary) is not None:
        return
    for spec in results_specs().values():
        count = sum(row.summary is not None and bool(spec.figures(row.summary)) for row in rows)
        if spec.comparisons is None and compared_figures(spec.measures) and count > 1:
            yield (
                "The combinations are not compared: declare the one they are compared with as `report.baseline`, by "
                "its values or its directory's name, and the figure that the study is about as `report.primary`."
            )


def _grid_table(summary: JsonObject, rows: Sequence[GridRow]) -> Table:
    """One row per combination: its values and the figures that there is room for."""
    shown = rows[:ROWS_SHOWN_MAX]
    figures = [_headlines(row.summary) for row in shown]
    values = list(dict.fromkeys(name for row in shown for name in row.values))
    units = figure_names(figures)
    # Where all figures of each row are on equally many cases, one column says how many.
    is_alike = bool(units) and all(len({figure.n for figure in found.values()}) <= 1 for found in figures)
    lines = []
    for row, found in zip(shown, figures, strict=True):
        cells = [value_text(row.values[name]) if name in row.values else UNKNOWN for name in values]
        n = next((f"{figure.n:,}" for figure in found.values()), UNKNOWN)
        cells += [*_ended(row.summary), *((n,) if is_alike else ())]
        lines.append((*cells, *(figure_text(found.get(name), has_n=not is_alike) for name in units)))
    heads = [f"{name} %" if unit == "rate" else name for name, unit in units.items()]
    if any(noted := [noted_defaults(row.summary or {}) for row in shown]):
        heads.append(DEFAULTS_HEAD)
        lines = [(*line, each) for line, each in zip(lines, noted, strict=True)]
    numbers = ("ended", "failed", *(("n",) if is_alike else ()), *heads)
    return Table(f"grid {summary.get('grid')}", (*_short(values),), numbers, lines)


def _further_figures(rows: Sequence[GridRow]) -> Iterator[Table]:
    """A row for each further figure that is printed, a column for each combination, by its number in the table above.

    Without intervals, which the files have. Only of grids that fit.
    """
    figures = [{} if row.summary is None else figures_of(row.summary) for row in rows]
    names = sorted({name for found in figures for name, one in found.items() if one.is_printed})
    if names and len(rows) <= _FURTHER_COMBINATIONS_MAX:
        units = figure_names(figures)
        lines = [
            (f"{name} %" if units[name] == "rate" else name, *(_bare(found.get(name)) for found in figures))
            for name in names
        ]
        numbers = tuple(str(number) for number in range(1, len(rows) + 1))
        yield Table("further figures of the combinations, in their order above", ("figure",), numbers, lines)


def _bare(figure: Figure | None) -> str:
    """A figure without its interval."""
    if figure is None or figure.value is None:
        return UNKNOWN
    return f"{100 * figure.value:.1f}" if figure.unit == "rate" else f"{figure.value:.2f}"


def _headlines(summary: JsonObject | None) -> dict[str, Figure]:
    figures = {} if summary is None else figures_of(summary)
    return {name: figure for name, figure in figures.items() if figure.is_headline}


def _short(names: Sequence[str]) -> list[str]:
    """The last part of each dotted path, or all of it where two end alike."""
    ends = [name.rsplit(".", 1)[-1] for name in names]
    return [end if ends.count(end) == 1 else name for end, name in zip(ends, names, strict=True)]


def value_text(value: JsonValue) -> str:
    """What a combination has of a value that the grid varies."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _ended(summary: JsonObject | None) -> tuple[str, str]:
    conversations = section(summary or {}, "conversations")
    if not conversations:
        return UNKNOWN, UNKNOWN
    finished, failed = conversations.get("finished"), conversations.get("failed")
    ended = finished + failed if isinstance(finished, int) and isinstance(failed, int) else None
    return f"{count_text(ended)}/{count_text(conversations.get('planned'))}", count_text(failed)


def figure_text(figure: Figure | None, *, has_n: bool, has_unit: bool = False) -> str:
    """A rate in percent, `41.0 (31.9–50.8)`, or a score as it is, `0.12 (-0.03 to 0.27)`.

    `has_unit` puts a percent sign behind a rate.
    """
    if figure is None or figure.value is None:
        return UNKNOWN
    scale, digits = (100, 1) if figure.unit == "rate" else (1, 2)
    value, *ends = (f"{scale * end:.{digits}f}" for end in (figure.value, figure.lo, figure.hi) if end is not None)
    value += " %" if has_unit and figure.unit == "rate" else ""
    if len(ends) == 2:
        value += f" ({' to '.join(ends)})" if ends[0].startswith("-") else f" ({'–'.join(ends)})"
    return f"{value}, n {figure.n:,}" if has_n else value


def _grid_notes(summary: JsonObject, rows: Sequence[GridRow]) -> Iterator[str]:
    yield "Figures with their 95% interval, each on n cases."
    found = [(row.slug, usability_warning(row.summary)) for row in rows if row.summary is not None]
    yield from (f"{slug}: warning: {warning}." for slug, warning in found[:ROWS_SHOWN_MAX] if warning)
    if len(rows) > ROWS_SHOWN_MAX:
        yield f"{len(rows) - ROWS_SHOWN_MAX} more combinations: grid.csv has all of them."
    yield from (f"{name}: {words}." for name, words in caveats(summary))
    parts = objects(summary.get("parts"))
    for part in parts if len(parts) > 1 else ():
        combinations = part.get("combinations")
        count = len(combinations) if isinstance(combinations, list) else 0
        yield f"{count} combinations came with session {part.get('session')}, {part.get('started_at')}."
    left_out = summary.get("left_out")
    if isinstance(left_out, list) and left_out:
        yield f"{len(left_out)} combinations of earlier are not asked for any more and stay as they are."
