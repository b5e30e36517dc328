"""The page of a run or a grid: its head, with its state, its engines and its headline results, and its list.

The head says what `mac-run status` and the printed summary say, from the same functions. A summary takes long to make
for a large run; without one there are no results.

The list has its conversations by column. A hundred thousand rows are small as columns: a word is sent once, and each
row has its number. Columns are those of `mac-run show RUN`, and all that `--where` can compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Final, Generic, TypeVar

from msgspec.structs import replace

from mac_runner.reports.conversations import Listed, words_of
from mac_runner.reports.failures import noted_defaults
from mac_runner.reports.grid import figures_of
from mac_runner.reports.status import duration_text, status_json
from mac_runner.reports.summary import slots_used
from mac_runner.reports.tables import figure_text, value_text
from mac_runner.results import DEFAULTS_HEAD, Value, count_text, integer, number, section
from mac_runner.store import Standing
from mac_runner.store.rows import DoneRow
from mac_runner.types import JsonObject, JsonValue
from mac_runner.view_model import (
    ColumnView,
    CombinationView,
    EngineView,
    Fact,
    IndexColumns,
    NumberColumn,
    RunPage,
    WordColumn,
    WordsColumn,
)

T = TypeVar("T")

_ADDRESSES: Final = ("base_urls", "base_url", "host")
"""Where the sections of backends say which server they use."""
_NUMBER: Final = (int, float)
READING: Final = "reading"
"""The state while it is not known yet."""


def run_page(
    standing: Standing,
    resolved: JsonObject,
    how: Listed,
    now: datetime,
    *,
    name: str = "",
    summary: JsonObject | None = None,
    is_reading: bool = False,
) -> RunPage:
    """The head of one run. `resolved` is its experiment as it was recorded, `now` the reader's wall time.

    `name` is what the page calls it where that is not the name of the experiment. While the journal is being read
    (`is_reading`), `summary` says what `standing` cannot.
    """
    if is_reading:
        standing = _foreseen(standing, summary or {})
    status = status_json(standing, now)
    head = _head(standing, resolved, status, is_known=not is_reading or summary is not None)
    return replace(
        head,
        name=name or head.name,
        columns=column_views(how),
        facts=(*_figure_facts(summary), *_status_facts(status)),
        is_reading=is_reading,
    )


def grid_page(
    standing: Standing,
    resolved: JsonObject,
    now: datetime,
    *,
    summaries: Mapping[str, JsonObject] | None = None,
    is_reading: bool = False,
) -> RunPage:
    """The head of a grid, with a row for each combination that is asked for.

    `resolved` is the experiment of any combination that has begun, or empty; `summaries` are by combination.
    """
    status = status_json(standing, now)
    combinations = standing.combinations or ()
    planned = f"{standing.complete} of {len(combinations)} complete"
    return replace(
        _head(standing, resolved, status, is_known=not is_reading),
        facts=(Fact("combinations", planned), *_status_facts({"session": None, "eta_s": None, **status})),
        combinations=tuple(
            CombinationView(
                slug=slug,
                values={key: value_text(value) for key, value in values.items()},
                planned=0 if found is None else found.planned,
                done=0 if found is None else found.ended,
                failed=0 if found is None else found.failed,
                figures=combination_figures((summaries or {}).get(slug, {})),
            )
            for slug, values, found in combinations
        ),
        is_reading=is_reading,
    )


def _head(standing: Standing, resolved: JsonObject, status: JsonObject, *, is_known: bool) -> RunPage:
    """What the heads of a run and of a grid have in common.

    The state is that of `mac-run status`; of a run without a process it follows from counts, which may not be known.
    """
    return RunPage(
        name=standing.experiment_name,
        directory=str(standing.directory),
        environment=_text(section(resolved, "conversation_config").get("environment")),
        description=_text(section(resolved, "experiment_metadata").get("description")),
        state=_text(status["state"]) if is_known or section(status, "owner") else READING,
        planned=standing.planned,
        done=standing.ended,
        failed=standing.failed,
        is_live=bool(standing.holder.is_alive),
        columns=(),
        engines=tuple(_engines(status, section(resolved, "model_definitions"))),
        facts=(),
    )


def _foreseen(standing: Standing, summary: JsonObject) -> Standing:
    """The standing of a run that was read in part, with what its summary counts; amounts of a part are left out."""
    counts = section(summary, "conversations")
    return dataclasses.replace(
        standing,
        finished=integer(counts.get("finished")) or standing.finished,
        failed=integer(counts.get("failed")) or standing.failed,
        half_done=0,
        failures=(),
        sessions=integer(summary.get("sessions")) or 0,
        latest=None,
        usage={key: summary[key] for key in ("wall_s", "played_s") if key in summary},
        counts={},
    )


def combination_figures(summary: JsonObject) -> dict[str, str]:
    noted = noted_defaults(summary)
    return _figures(summary) | ({f"{DEFAULTS_HEAD} of": noted} if noted else {})


def _figures(summary: JsonObject) -> dict[str, str]:
    return {
        name: figure_text(figure, has_n=True, has_unit=True)
        for name, figure in figures_of(summary).items()
        if figure.is_headline
    }


def _figure_facts(summary: JsonObject | None) -> Iterator[Fact]:
    if summary is not None:
        yield from (Fact(name, text) for name, text in _figures(summary).items())
        yield from (Fact(name, count_text(summary.get(name))) for name in ("turns", "corrections", "defaults"))


def _status_facts(status: JsonObject) -> Iterator[Fact]:
    """What stopped it, how long it took, how fast it is, how long it goes on, and what is wrong."""
    if stopped_by := status.get("stopped_by"):
        yield Fact("stopped by", _text(stopped_by), "warn")
    counts = section(status, "conversations")
    if half_done := integer(counts.get("half_done")):
        yield Fact("half done", count_text(half_done))
    if status["wall_s"]:
        yield Fact("wall time", duration_text(status["wall_s"]))
    if (sessions := integer(status["sessions"])) and sessions > 1:
        yield Fact("sessions", count_text(sessions))
    if (turns_per_s := number(section(status, "session").get("turns_per_s"))) is not None:
        yield Fact("turns per second", f"{turns_per_s:,.1f}")
    if status["eta_s"]:
        yield Fact("to go", duration_text(status["eta_s"]))
    if status["shard"] is not None:
        yield Fact("shard", _text(status["shard"]))
    if status["warning"]:
        yield Fact("warning", _text(status["warning"]), "warn")


def _engines(status: JsonObject, definitions: JsonObject) -> Iterator[EngineView]:
    """The engines that `mac-run status` lists; of a run whose engines have not begun, its models."""
    accounts = section(status, "models")
    for model in accounts or definitions:
        definition, account = section(definitions, model), section(accounts, model)
        tokens = section(account, "tokens")
        requests, busy_s = integer(account.get("requests")) or 0, number(account.get("busy_slot_s"))
        backend = _text(definition.get("backend"))
        own = section(definition, f"{backend}_config")
        yield EngineView(
            model=model,
            backend=backend,
            address=_address(own),
            slots=integer(account.get("capacity")) or integer(own.get("capacity")) or 0,
            requests=requests,
            retries=integer(account.get("faults")) or 0,
            prompt_tokens=integer(tokens.get("prompt")) or 0,
            completion_tokens=integer(tokens.get("completion")) or 0,
            cached_tokens=integer(tokens.get("cached")) or 0,
            latency_s=round(busy_s / requests, 6) if busy_s is not None and requests else None,
            slots_used=slots_used(account),
        )


def _address(settings: JsonObject) -> str:
    for key in _ADDRESSES:
        match settings.get(key):
            case str(address):
                return address
            case list(addresses):
                return ", ".join(map(str, addresses))
    return ""


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def column_views(how: Listed) -> tuple[ColumnView, ...]:
    return tuple(ColumnView(name, column.kind, column.is_listed) for name, column in how.columns.items())


def index_columns(rows: Iterable[JsonObject | DoneRow], how: Listed, *, since: int = 0) -> IndexColumns:
    """The columns of index rows, which follow the first `since` rows of the run.

    Raises RunDirectoryError for a damaged row.
    """
    table = IndexTable(how)
    table.add([*rows])
    return replace(table.columns(), since=since)


class IndexTable:
    """The list of conversations by column, which grows by rows. `version` counts replacements of rows before."""

    def __init__(self, how: Listed, version: int = 0) -> None:
        self.rows = 0
        self.how = how
        self.version = version
        kinds = {name: column.kind for name, column in how.columns.items()}
        self._words = {name: _Coded[str]() for name, kind in kinds.items() if kind == "word"}
        self._lists = {name: _Coded[tuple[str, ...]]() for name, kind in kinds.items() if kind == "words"}
        self._numbers = {name: list[float | None]() for name, kind in kinds.items() if kind in ("number", "truth")}

    def add(self, rows: Sequence[JsonObject | DoneRow]) -> None:
        """Add index rows, which may still be JSON. Raises RunDirectoryError for a damaged one, and then adds none."""
        for name, values in self.how.by_column(rows):
            if name in self._words:
                self._words[name].add(map(_word, values))
            elif name in self._lists:
                self._lists[name].add(map(_words, values))
            else:
                self._numbers[name] += map(_number, values)
        self.rows += len(rows)

    def columns(self, since: int = 0, most: int | None = None) -> IndexColumns:
        """The columns from row `since` on, or `most` rows of them, with the words that those rows have."""
        since = min(since, self.rows)
        until = self.rows if most is None else min(self.rows, since + most)
        part = slice(since, until)
        return IndexColumns(
            since=since,
            rows=until - since,
            words={name: WordColumn(*words.part(part)) for name, words in self._words.items()},
            lists={name: _words_column(*lists.part(part)) for name, lists in self._lists.items()},
            numbers={name: NumberColumn(tuple(numbers[part])) for name, numbers in self._numbers.items()},
            version=self.version,
        )


class _Coded(Generic[T]):
    """The values of a column by number: the same ones come again and again, and are kept once."""

    def __init__(self) -> None:
        self._known: dict[T, int] = {}
        self._codes: list[int] = []

    def add(self, values: Iterable[T | None]) -> None:
        known = self._known
        self._codes += [-1 if value is None else known.setdefault(value, len(known)) for value in values]

    def part(self, part: slice) -> tuple[tuple[T, ...], tuple[int, ...]]:
        """The values of some rows in the order in which they come, and their number in each of the rows, or -1."""
        codes, known = self._codes[part], tuple(self._known)
        numbers = _numbered(code for code in codes if code >= 0)
        values = tuple(known[code] for code in numbers)
        return values, tuple(map({**numbers, -1: -1}.__getitem__, codes))


def _word(value: Value) -> str | None:
    return value if value is None or isinstance(value, str) else ", ".join(words_of(value))


def _words(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else tuple(words_of(value))


def _number(value: Value) -> float | None:
    return value + 0 if isinstance(value, _NUMBER) else None


def _words_column(known: Sequence[tuple[str, ...]], codes: Sequence[int]) -> WordsColumn:
    numbers = _numbered(chain.from_iterable(known))
    lists = [tuple(map(numbers.__getitem__, words)) for words in known]
    return WordsColumn(tuple(numbers), tuple(map(lists.__getitem__, codes)))


def _numbered(values: Iterable[T]) -> dict[T, int]:
    """Each value with its number, in the order in which they come."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}
