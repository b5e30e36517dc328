"""The figures of measures: forests, lines over rounds and heat maps, drawn from the rows of summaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mac_runner.figures.charts import Unit, forest, heat, over_time, shares
from mac_runner.figures.differences import UNITS_FEW, rate_columns, rate_method
from mac_runner.figures.model import ColumnKind, DataColumn, Figure, Method, RunData, Section, Value
from mac_runner.intervals import one_cluster
from mac_runner.measures import Drawn, Kind, Measure, Row
from mac_runner.registry import results_specs
from mac_runner.results import Figure as GridFigure
from mac_runner.results import Results, figure, integer, number, section
from mac_runner.types import JsonObject

_COLUMNS_MAX: Final = 16
"""A heat map of more columns cannot be read. One of means has no colours: they have no least and no most."""
_DOWN_AND_ACROSS: Final = 2
_ROUND: Final = "round"
_ITSELF: Final = "measure"
_UNITS: Final[Mapping[Kind, Unit]] = {"rate": "rate", "score": "score", "mean": "number", "lift": "difference"}
_COLUMNS: Final[Mapping[Kind, ColumnKind]] = {"rate": "rate", "score": "score", "mean": "number", "lift": "score"}
_OF_MEANS: Final = "Means have the normal interval of a ratio estimated from clusters (Cochran 1977, section 9A.1)"
_NOTHING: Final = GridFigure(0, None, None, None)


def measured_sections(runs: Sequence[RunData]) -> tuple[Section, ...]:
    """The chapter of an environment that declares measures, of a run or of several compared; else none."""
    if (kind := measured_kind(runs)) is None:
        return ()
    spec = results_specs()[kind]
    summaries = {data.name: counted(spec.counter(), data).report() for data in runs}
    figures = tuple(measured_figures(spec.measures, summaries, has_runs=len(runs) > 1))
    return (Section(id="results", title="Results", figures=figures),) if figures else ()


def measured_kind(runs: Sequence[RunData]) -> str | None:
    """The kind of the outcomes of runs; None for one without measures."""
    kinds = (str(ended.result.get("kind")) for data in runs for ended in data.ended() if ended.result is not None)
    kind = next(kinds, None)
    spec = None if kind is None else results_specs().get(kind)
    return None if spec is None or not spec.measures else kind


def counted(counter: Results, data: RunData) -> Results:
    """Count the finished conversations of a run."""
    for ended in data.ended():
        if ended.result is not None:
            with one_cluster(ended.cluster):
                counter.add(ended.result, f"the index row of {ended.task_id!r}, outcome")
    return counter


def measured_figures(
    measures: Sequence[Measure], summaries: Mapping[str, JsonObject], *, has_runs: bool, chapter: str = ""
) -> Iterator[Figure]:
    """The figures of a chapter: of one summary, or of the summaries of several runs by name."""
    found: dict[str, list[tuple[Measure, Drawn]]] = {}
    for measure in measures:
        for drawn in _drawn(measure, has_runs=has_runs):
            if drawn.chapter == chapter and ("run" in drawn.by) is has_runs:
                found.setdefault(drawn.id, []).append((measure, drawn))
    for drawings in found.values():
        yield from _figure(drawings, summaries)


def _drawn(measure: Measure, *, has_runs: bool) -> Iterator[Drawn]:
    """The figures of a measure; a forest of all rows, where it declares none."""
    name = "-".join(part.replace("_", "-") for part in measure.place.split(".")[1:] if part[0] != "{")
    forest = Drawn(f"{name}-compared", by=("run", *measure.names)) if has_runs else Drawn()
    for drawn in (forest,) if measure.figures is None else measure.figures:
        yield drawn._replace(
            id=drawn.id or name,
            by=drawn.by or measure.names or (_ITSELF,),
            title=drawn.title or measure.title,
            caption=drawn.caption or measure.caption,
            axis=drawn.axis or measure.value,
            chapter=drawn.chapter or measure.chapter,
        )


def _figure(drawings: Sequence[tuple[Measure, Drawn]], summaries: Mapping[str, JsonObject]) -> Iterator[Figure]:
    measure, drawn = drawings[0]
    found = [
        (run, row)
        for measure, drawn in drawings
        for run, summary in summaries.items()
        for row in _rows(measure, drawn, run, summary)
    ]
    rows = [row for _, row in found]
    label = drawn.by[-1 if drawn.chart == "rounds" else 0]
    if not rows or len({row[label] for row in rows}) < drawn.least:
        return
    _, path, last = drawn.ends_with
    if last:
        for summary in summaries.values():
            end = numbers_of(measure, Row((), _section_at(summary, path)))
            rows.append({drawn.by[0]: last, label: float(len(rows)) + 1, **end})
    counts = [[int(row["n"] or 0) for run, row in found if run == name] for name in summaries]
    n = sum(sum(each) if drawn.is_whole else max(each, default=0) for each in counts)
    words = [
        DataColumn(name=name, title=head, kind="count" if name == _ROUND else "word")
        for name, head in zip(drawn.by, drawn.heads or [measure.told(name).head for name in drawn.by], strict=True)
    ]
    value = measure.value if len(drawings) == 1 else drawn.axis
    extremes = (DataColumn(name=end, title=end, kind="number") for end in ("min", "max") if end in rows[0])
    yield Figure(
        id=drawn.id,
        title=drawn.title,
        caption=drawn.caption.replace("{n}", f"{n:,}"),
        n=n,
        unit=measure.unit,
        columns=(*words, *rate_columns(value, _COLUMNS[measure.kind], measure.unit), *extremes),
        rows=tuple(rows),
        spec=_spec(measure, drawn, rows),
        methods=rate_methods(measure, rows),
        notes=tuple(_notes(measure, rows)),
    )


def _notes(measure: Measure, rows: Sequence[Mapping[str, Value]]) -> Iterator[str]:
    if any(int(row["clusters"] or row["n"] or 0) < UNITS_FEW for row in rows if row["lo"] is not None):
        yield f"With fewer than {UNITS_FEW} {measure.cluster}s an interval may be too narrow."


def _rows(measure: Measure, drawn: Drawn, run: str, summary: JsonObject) -> Iterator[dict[str, Value]]:
    rows = [row for row in measure.rows(summary, drawn.order) if drawn.only(row.keys)]
    for row in rows if drawn.sort is None else sorted(rows, key=drawn.sort):
        found = _row(measure, drawn, run, row)
        if found["value"] is not None or drawn.chart == "heat":
            yield found


def _row(measure: Measure, drawn: Drawn, run: str, row: Row) -> dict[str, Value]:
    keys = dict(zip(measure.names, row.keys, strict=True))
    beside = {drawn.by[0]: drawn.ends_with[0], "run": run, _ITSELF: measure.value}
    words: dict[str, Value] = {
        name: measure.told(name).said(keys[name]) if name in keys else beside[name] for name in drawn.by
    }
    words[drawn.by[0]] = drawn.label(str(words[drawn.by[0]]), row)
    if _ROUND in words:
        words[_ROUND] = float(keys[_ROUND])
    found = {**words, **numbers_of(measure, row)}
    if drawn.chart == "heat":
        found["text"] = _text(found["value"], measure.kind)
        if len(drawn.by) > _DOWN_AND_ACROSS:
            found["place"] = ", ".join(measure.told(name).short.get(keys[name], keys[name]) for name in drawn.by[1:])
    return found


def _text(value: Value, kind: Kind) -> str:
    """What is written in a cell."""
    if not isinstance(value, float):
        return "" if kind == "rate" else "–"
    return f"{value:.0%}" if kind == "rate" else f"{value:{'' if kind == 'mean' else '+'}.2f}".replace("-", "−")


def numbers_of(measure: Measure, row: Row) -> dict[str, Value]:
    """A rate or a score with its interval, and how many cases in how many clusters it is on."""
    found = figure(row.record, cases=measure.n(row.keys)) or _NOTHING
    clusters = integer(row.record.get("clusters", row.record.get(f"{measure.cluster}s")))
    extremes: dict[str, Value] = {end: number(row.record[end]) for end in ("min", "max") if end in row.record}
    return {"n": found.n, "clusters": clusters, "value": found.value, "lo": found.lo, "hi": found.hi, **extremes}


def _spec(measure: Measure, drawn: Drawn, rows: Sequence[dict[str, Value]]) -> JsonObject | None:
    unit = _UNITS[measure.kind]
    title, (first, *rest) = drawn.axis, drawn.by
    match drawn.chart:
        case "table":
            return None
        case "rounds":
            return over_time(
                [row for row in rows if row[first] != drawn.reference or not drawn.reference],
                x=_ROUND,
                x_title=measure.told(_ROUND).head,
                title=title,
                unit=unit,
                group=first if rest else "",
                last=drawn.ends_with[2],
                reference=[row for row in rows if row[first] == drawn.reference],
            )
        case "shares":
            words = {"label": first, "part": rest[0], "share": "value"}
            parts = [{**row, **{key: row[name] for key, name in words.items()}} for row in rows]
            return shares([{**row, "words": f"{row['n']:,} {measure.unit}"} for row in parts], title=title)
        case "forest":
            return forest(
                rows,
                label=first,
                unit=unit,
                title=title,
                units=f"{measure.cluster}s",
                group=rest[0] if rest else "",
                reference=0.0 if measure.kind in ("score", "lift") else None,
            )
        case "heat":
            is_matrix = len(drawn.by) == _DOWN_AND_ACROSS
            across = rest[0] if is_matrix else "place"
            if len({row[across] for row in rows}) > _COLUMNS_MAX or measure.kind == "mean":
                return None
            return heat(
                rows,
                across=across,
                down=first,
                titles=(across, first) if is_matrix else ("", ""),
                is_score=measure.kind != "rate",
                is_sorted=is_matrix,
            )


def rate_methods(measure: Measure, rows: Sequence[Mapping[str, Value]]) -> tuple[Method, ...]:
    """How the intervals of rows were made."""
    clusters = max((int(row["clusters"] or 0) for row in rows), default=0)
    if measure.kind == "rate" and not measure.method:
        return (rate_method(measure.cluster, clusters),)
    interval = f"clustered by {measure.cluster}, 95 %"
    return (Method(statement=measure.method or _OF_MEANS, unit="cluster", n=clusters, interval=interval),)


def _section_at(summary: JsonObject, path: str) -> JsonObject:
    for part in path.split("."):
        summary = section(summary, part)
    return summary
