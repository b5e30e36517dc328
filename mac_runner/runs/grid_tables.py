"""Checks the tables of a grid: derives each from the run directories of the combinations and compares.

The tables are written when a session of the grid ends, `summary.json` last. It records how many sessions the grid and
each combination had then, so it can be derived as of that moment, whatever was played since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mac_runner.reports import (
    GridRow,
    GridTable,
    TextTable,
    cell_discrepancies,
    compare_combinations,
    csv_table,
    declared_in,
    expected_csv,
    expected_parquet,
    grid_table,
    has_parquet,
    is_difference,
    is_made_alike,
    parquet_table,
    summarise_grid,
)
from mac_runner.results import Declared, objects
from mac_runner.runs.summary import COMPARISONS, summary_of
from mac_runner.store import (
    Disk,
    Finding,
    FindingKind,
    GridEntry,
    GridRecord,
    VerifyReport,
    grid_accounting,
    grid_usage,
    has_run,
    read_run,
)
from mac_runner.store.verify import (
    check_log,
    compared,
    read_json,
    sessions_of,
    with_planned_of,
)
from mac_runner.types import JsonObject, JsonValue

_REMEDY = "the grid's own command writes it anew"
_CSV, _PARQUET = "grid.csv", "grid.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What the tables must hold, as of the moment when the summary was written."""

    sessions: int | None
    """How many sessions the grid had; None when that is all it has now."""
    rows: tuple[GridRow, ...]
    behind: tuple[str, ...]
    """Combinations that were played since."""
    declared: Declared | None
    """What the differences in them are from; the summary says it, because the file may have another `report` now."""


def check_tables(directory: Path, grid: GridRecord) -> VerifyReport:
    """Check the files of the grid's own directory. Reads only."""
    disk = Disk()
    # Read before the journals they are derived from, so conversations played meanwhile are in neither. The summary is
    # written last: where it is another one afterwards, what was read in between may be of the session before.
    while True:
        summary = read_json(disk, directory / "summary.json", _REMEDY)
        files = {name: disk.read(directory / name) for name in (_CSV, _PARQUET) if disk.exists(directory / name)}
        comparisons = read_json(disk, directory / COMPARISONS, _REMEDY)
        if read_json(disk, directory / "summary.json", _REMEDY) == summary:
            break
    findings, notes = check_log(directory, grid.name, disk=disk)
    if isinstance(summary, Finding):
        findings.append(summary)
    elif summary is None:
        notes.append("no summary.json yet: no session of the grid has ended")
    else:
        written = _written(directory, grid, summary)
        findings += _summary_findings(directory, grid, summary, written)
        expected = _expected_comparisons(directory, comparisons, written)
        for name, data in files.items():
            findings += _table_findings(directory, grid, name, data, written, expected, notes)
        findings += _comparison_findings(comparisons, written, expected, notes)
        if _CSV not in files:
            findings.append(Finding(FindingKind.LOST, f"{_CSV} is not there; {_REMEDY}"))
        notes += _lag(written, grid)
    return VerifyReport(attempted=0, acknowledged=0, findings=tuple(findings), notes=tuple(notes))


def _written(directory: Path, grid: GridRecord, summary: JsonObject) -> _Written:
    sessions = sessions_of(summary, _count(grid_accounting(directory, grid.name).get("sessions")))
    entries = {known.slug: known for known in grid.entries}
    results = {str(result.get("combination")): result for result in objects(summary.get("results"))}
    slugs = [slug for slug in results if slug in entries]
    if sessions is None:
        slugs = [slug for slug in slugs if entries[slug].is_asked]
        slugs += [known.slug for known in grid.entries if known.is_asked and known.slug not in results]
    rows = [_row(directory, entries[slug], results.get(slug, {}), is_latest=sessions is None) for slug in slugs]
    behind = tuple(row.slug for row, is_behind in rows if is_behind)
    return _Written(
        sessions=sessions,
        rows=tuple(row for row, _ in rows),
        behind=behind,
        declared=declared_in(summary),
    )


def _row(directory: Path, known: GridEntry, result: JsonObject, *, is_latest: bool) -> tuple[GridRow, bool]:
    """The row of a combination as of when `result` was written, and whether it was played since."""
    values, session = result.get("values"), result.get("session")
    if is_latest or not isinstance(values, dict) or not isinstance(session, int):
        values, session = dict(known.values), known.session
    begun = has_run(directory / known.slug) and (is_latest or result.get("conversations") is not None)
    if not begun:
        return GridRow(slug=known.slug, values=values, session=session, summary=None), False
    latest = summary_of(read_run(directory / known.slug))
    sessions = sessions_of(result, _count(latest.get("sessions")))
    if sessions is None:
        return GridRow(slug=known.slug, values=values, session=session, summary=latest), False
    earlier = with_planned_of(summary_of(read_run(directory / known.slug, sessions=sessions)), result)
    return GridRow(slug=known.slug, values=values, session=session, summary=earlier), True


def _summary_findings(directory: Path, grid: GridRecord, found: JsonObject, written: _Written) -> Iterator[Finding]:
    is_latest = written.sessions is None
    combinations = found.get("combinations")
    complete = combinations.get("complete") if isinstance(combinations, dict) else None
    begun = sum(row.summary is not None for row in written.rows)
    # Whether a combination is complete depends on how many conversations were asked for, by --limit too.
    is_possible = isinstance(complete, int) and not isinstance(complete, bool) and 0 <= complete <= begun
    expected = summarise_grid(
        name=grid.name,
        profile=grid.profile,
        rows=written.rows,
        complete=complete if is_possible and isinstance(complete, int) else begun,
        left_out=[known.slug for known in grid.entries if not known.is_asked],
        accounting=grid_usage(directory, grid.name)
        if is_latest
        else grid_accounting(directory, grid.name, sessions=written.sessions),
        declared=written.declared,
    )
    if not is_latest:
        # grid.yaml holds only what is asked for now.
        expected |= {key: found[key] for key in ("profile", "left_out") if key in found}
    yield from compared("summary.json", found, expected, _REMEDY)


def _table_findings(
    directory: Path,
    grid: GridRecord,
    name: str,
    data: bytes,
    written: _Written,
    compared: JsonObject | None,
    notes: list[str],
) -> Iterator[Finding]:
    """Differences from the baseline are judged where `compared` says what they are."""
    if name == _PARQUET and not has_parquet():
        notes.append(f"{name} is not judged: pyarrow is not installed here")
        return
    try:
        found = csv_table(data) if name == _CSV else parquet_table(data)
    except ValueError as fault:
        yield Finding(FindingKind.DAMAGED, f"{name} cannot be read ({fault}); {_REMEDY}")
        return
    differences = [
        place
        for place in cell_discrepancies(found, _expected(name, grid_table(written.rows, compared)))
        if not (compared is None and is_difference(place.column))
    ]
    if not differences:
        return
    is_behind = written.sessions is not None or written.behind
    if is_behind and _without_differences(found) == _expected(name, _table_now(directory, grid, found)):
        return  # The session was killed after this table and before the summary.
    if written.sessions is not None:
        notes.append(f"{name} is not judged: it may be of a session that was killed before its summary; {_REMEDY}")
        return
    for place in differences:
        yield Finding(FindingKind.MISMATCHED, f"{name}: {place}; {_REMEDY}")


def _expected_comparisons(directory: Path, found: JsonObject | Finding | None, written: _Written) -> JsonObject | None:
    """What the comparisons must be; None where that cannot be known here, or they are of other conversations."""
    if found is None or isinstance(found, Finding) or written.sessions is not None or written.behind:
        return None
    if not is_made_alike(found):
        return None
    has_stats = found.get("libraries") is not None
    rows = written.rows
    return (
        compare_combinations(
            rows, lambda slug: read_run(directory / slug).rows(), written.declared, has_stats=has_stats
        )
        or {}
    )


def _comparison_findings(
    found: JsonObject | Finding | None, written: _Written, expected: JsonObject | None, notes: list[str]
) -> Iterator[Finding]:
    if isinstance(found, Finding):
        yield found
    elif found is None:
        if written.declared is not None:
            yield Finding(FindingKind.LOST, f"{COMPARISONS} is not there, and the summary names a baseline; {_REMEDY}")
    elif expected is not None:
        yield from compared(COMPARISONS, found, expected, _REMEDY)
    elif written.sessions is not None or written.behind:
        notes.append(f"{COMPARISONS} is not judged: combinations were played since; {_REMEDY}")
    else:
        notes.append(
            f"{COMPARISONS} and what the tables have of it are not judged: SciPy or numpy is another version here, or "
            "is not installed"
        )


def _without_differences(table: TextTable) -> TextTable:
    """The table without its columns of differences."""
    kept = [place for place, name in enumerate(table[0] if table else []) if not is_difference(name)]
    return [[row[place] for place in kept if place < len(row)] for row in table]


def _expected(name: str, table: GridTable) -> TextTable:
    return expected_csv(table) if name == _CSV else expected_parquet(table)


def _table_now(directory: Path, grid: GridRecord, found: TextTable) -> GridTable:
    """The table as of now, with its rows in the order of `found`."""
    asked = {known.slug: known for known in grid.entries if known.is_asked}
    cells = dict.fromkeys(row[0].strip("'") for row in found[1:] if row)
    order = [*(slug for slug in cells if slug in asked), *(slug for slug in asked if slug not in cells)]
    return grid_table([_row(directory, asked[slug], {}, is_latest=True)[0] for slug in order])


def _lag(written: _Written, grid: GridRecord) -> Iterator[str]:
    if written.sessions is not None:
        yield f"the tables are of session {written.sessions}: the later ones did not end; {_REMEDY}"
    elif written.behind:
        yield f"{len(written.behind)} combinations of {grid.name} were played since the tables were written; {_REMEDY}"


def _count(value: JsonValue) -> int:
    return len(value) if isinstance(value, dict) else value if isinstance(value, int) else 0
