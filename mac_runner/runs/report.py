"""The report of a run, of a grid, or of two runs: what its figures read, and the figures of all rooms put together.

Nothing is locked, so a report can be made while the run goes on; it then says as of when it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner import __version__
from mac_runner.clock import iso
from mac_runner.config import shareable, yaml_text
from mac_runner.data.sources import Source
from mac_runner.errors import ConfigError
from mac_runner.figures.engines import engine_section
from mac_runner.figures.every_run import comparison_sections, endings_figure, last_sections, outcome_sections
from mac_runner.figures.model import IsWanted, RunData, Section, Study
from mac_runner.figures.page import Line, Report
from mac_runner.figures.registry import run_sections, study_sections
from mac_runner.flat import Row
from mac_runner.printable import counted
from mac_runner.reports import status_json
from mac_runner.results import count_text, decimal_text, number, section
from mac_runner.runs.summary import recorded_baseline, run_sources, summary_of
from mac_runner.store import (
    Standing,
    is_grid,
    read_grid,
    read_standing,
)
from mac_runner.store.fork import ForkRecord
from mac_runner.store.leases import event_logs
from mac_runner.store.records import lines
from mac_runner.store.run import damaged_words
from mac_runner.types import JsonObject, JsonValue
from mac_runner.views.engines import EngineClock

_PACKAGES: Final = ("altair", "numpy", "scipy", "vl-convert-python")
_NAME_CHARS_MAX: Final = 32
"""A longer name of one of two runs is cut to what differs."""
_VALUE_CHARS_MIN: Final = 3
"""Values of combinations with so many characters or fewer do not say what they are of."""
_LOGS_MAX: Final = 200
"""So many event logs are read side by side; a grid with more has no figures over time."""
_LEFT_OUT: Final = (
    "Left out: what engines did over time. The grid has {logs} event logs, and a report reads {most} at most. The "
    "report of one combination has these figures."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What a report is about: its runs, the engines that served them, and what is said at its head."""

    title: str
    description: str
    runs: Sequence[RunData]
    study: Study | None
    engines: EngineClock
    notes: tuple[str, ...] = ()
    """What is to be said of the engines' figures."""
    experiments: tuple[Line, ...]
    usage: JsonObject
    """What the runs used, with an account of each model."""
    state: str
    fork: ForkRecord | None


def report_of(directories: Sequence[Path], now: datetime, *, viewer: str = "") -> Report:
    """The report of a run or a grid, or of two runs compared.

    Raises RunDirectoryError for what is not a run directory, ConfigError for two
    that cannot be compared.
    """
    if len(directories) > 1:
        subject = _two(directories, now)
    else:
        subject = (_grid if is_grid(directories[0]) else _run)(directories[0], now)
    return Report(
        title=subject.title,
        description=subject.description,
        state=subject.state,
        facts=tuple(_facts(subject)),
        sections=tuple(_sections(subject)),
        experiments=subject.experiments,
        versions=tuple(_versions()),
        commands=tuple(_commands(directories, subject)),
        viewer=viewer,
    )


def run_data(source: Source, name: str, values: Mapping[str, str] | None = None, slug: str | None = "") -> RunData:
    """A run, read when it is asked for. `name` is what figures call it, `values` what it differs in from others."""
    contents = source.contents

    def read_table(table: str, is_wanted: IsWanted) -> Iterator[Row]:
        columns = frozenset(source.tables[table].columns)
        for ended in source.conversations():
            if is_wanted(ended.row):
                yield from source.tables[table].rows(ended, columns)

    return RunData(
        name=name,
        slug=slug,
        environment=contents.environment_name,
        experiment=contents.resolved,
        summary=summary_of(contents),
        read_rows=contents.rows_in_task_order,
        read_table=read_table,
        values=values or {},
    )


def _run(directory: Path, now: datetime) -> _Subject:
    (source,) = run_sources([directory]).runs
    contents = source.contents
    run = run_data(source, contents.experiment_name)
    return _Subject(
        title=run.name,
        description=_description(run),
        runs=[run],
        study=None,
        engines=_clock([source]),
        experiments=(Line("The experiment as it was played", _yaml(run)),),
        usage=contents.accounting,
        state=_state([read_standing(directory)], [run], now),
        fork=contents.fork,
    )


def _grid(directory: Path, now: datetime) -> _Subject:
    record = read_grid(directory)
    assert record is not None, "it is a grid"
    # First: what begins meanwhile may be among the runs, and nothing is missed.
    standing = read_standing(directory)
    sources = run_sources([directory]).runs
    labels = _labels([entry.values for entry in record.entries if any(entry.slug == one.name for one in sources)])
    runs = [
        run_data(source, name, by_value, source.name) for source, (name, by_value) in zip(sources, labels, strict=True)
    ]
    names = {run.slug: run.name for run in runs}
    baseline = recorded_baseline(record)
    primary = record.report.get("primary")
    logs = event_logs(directory)
    # What all say; descriptions of combinations may be made of their values.
    descriptions = {_description(run) for run in runs}
    return _Subject(
        title=record.name,
        description=descriptions.pop() if len(descriptions) == 1 else "",
        runs=runs,
        study=Study(
            runs=runs,
            baseline=names.get(baseline) if baseline else None,
            primary=primary if isinstance(primary, str) else None,
        ),
        engines=_clock(sources, logs),
        notes=(_LEFT_OUT.format(logs=len(logs), most=_LOGS_MAX),) if len(logs) > _LOGS_MAX else (),
        experiments=(
            Line("What the grid varies", yaml_text({"_grid": record.asked, "report": record.report})),
            Line(f"The experiment of its first combination: {runs[0].name}", _yaml(runs[0])),
        ),
        usage=standing.usage,
        state=_state([standing], runs, now, not_begun=standing.not_begun),
        fork=sources[0].contents.fork,
    )


def _two(directories: Sequence[Path], now: datetime) -> _Subject:
    for directory in directories:
        if is_grid(directory):
            raise ConfigError(
                f"{directory} is a grid: its report compares its combinations already; to compare two of them, name "
                "their directories"
            )
    sources = run_sources(directories).runs
    environments = [source.contents.environment_name for source in sources]
    if len(set(environments)) > 1:
        raise ConfigError(
            f"{' and '.join(map(str, directories))} are of different environments ({', '.join(environments)}), so "
            "their outcomes cannot be compared; make a report of each"
        )
    names = [source.name for source in sources]
    runs = [run_data(source, name, slug=None) for source, name in zip(sources, _short(names), strict=True)]
    accounts: JsonObject = {
        f"{run.name}: {model}": account
        for run, source in zip(runs, sources, strict=True)
        for model, account in section(source.contents.accounting, "models").items()
    }
    return _Subject(
        title=" and ".join(names),
        description="",
        runs=runs,
        study=Study(runs=runs, baseline=runs[0].name),
        engines=_clock(sources),
        experiments=tuple(Line(run.name, _yaml(run)) for run in runs),
        usage={"models": accounts},
        state=_state([*map(read_standing, directories)], runs, now),
        fork=sources[0].contents.fork,
    )


def _yaml(run: RunData) -> str:
    """The experiment for readers, without keys that are null."""
    return yaml_text(_written(shareable(run.experiment)))


def _written(value: JsonObject) -> JsonObject:
    return {
        key: _written(inner) if isinstance(inner, dict) else inner
        for key, inner in value.items()
        if inner is not None and inner not in ({}, [])
    }


class _Label(NamedTuple):
    name: str
    by_value: Mapping[str, str]


def _labels(values: Sequence[Mapping[str, JsonValue]]) -> list[_Label]:
    """What combinations are called in figures: their values, one behind the other."""
    texts = [{key.rpartition(".")[2]: _text(value) for key, value in one.items()} for one in values]
    short = {key for one in texts for key in one if all(len(each.get(key, "")) <= _VALUE_CHARS_MIN for each in texts)}
    names = [" · ".join(_words(key, text, key in short) for key, text in one.items()) for one in texts]
    if len(set(names)) < len(names):
        names = [" · ".join(f"{key}={value}" for key, value in one.items()) for one in texts]
    return [_Label(name, one) for name, one in zip(names, texts, strict=True)]


def _words(key: str, text: str, is_short: bool) -> str:
    """A value that can be read without its key: what is true or false is called by the key, a short value has it."""
    if text in ("true", "false"):
        return key if text == "true" else f"no {key}"
    return f"{key}={text}" if is_short else text


def _short(names: Sequence[str]) -> list[str]:
    """The parts of long names that differ, as of two combinations of a grid."""
    if max(map(len, names)) <= _NAME_CHARS_MAX:
        return [*names]
    parts = [name.split("_") for name in names]
    first = next((n for n, each in enumerate(zip(*parts, strict=False)) if len(set(each)) > 1), 0)
    ends = [each[::-1] for each in parts]
    last = next((n for n, each in enumerate(zip(*ends, strict=False)) if len(set(each)) > 1), 0)
    found = ["_".join(each[first : len(each) - last]) for each in parts]
    return found if all(found) and len(set(found)) == len(found) else [*names]


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else yaml_text({"": value}).partition(":")[2].strip()


def _clock(sources: Sequence[Source], of_grid: Sequence[Path] = ()) -> EngineClock:
    """What engines did, from the event logs of a grid, or from what the logs of some runs say of them."""
    clock = EngineClock()
    layouts = [source.contents.layout for source in sources]
    logs = of_grid or [*dict.fromkeys(log for layout in layouts for log in event_logs(layout.directory))]
    if len(logs) > _LOGS_MAX:
        return clock
    disk = sources[0].contents.disk
    events = [(line.data for line in lines(disk.chunks(log)) if line.data) for log in logs]
    for event in merge(*events, key=lambda line: line[:34]):  # Each begins with its time.
        if of_grid or any(layout.has_event(event) for layout in layouts):
            clock.add(event)
    return clock


def _sections(subject: _Subject) -> Iterator[Section]:
    runs, study = subject.runs, subject.study
    yield Section(id="conversations-ended", title="Endings", figures=(endings_figure(runs),))
    yield from outcome_sections(runs)
    if study is None:
        yield from run_sections(runs[0])
    else:
        yield from study_sections(study)
        yield from comparison_sections(study)
    yield from last_sections(runs)
    definitions = {
        name: definition
        for run in runs
        for name, definition in section(run.experiment, "model_definitions").items()
        if isinstance(definition, dict)
    }
    finished = sum(run.count("finished") for run in runs)
    engines, accounts = subject.engines, section(subject.usage, "models")
    yield from engine_section(engines.page(), engines.reply_tokens(), definitions, accounts, finished, subject.notes)


def _state(standings: Sequence[Standing], runs: Sequence[RunData], now: datetime, *, not_begun: int = 0) -> str:
    """How far the runs are. As long as anything is left, the report says as of when it is."""
    counts = {key: sum(run.count(key) for run in runs) for key in ("planned", "finished", "failed")}
    ended = counts["finished"] + counts["failed"]
    failed = f", {counts['failed']:,} of them failed" if counts["failed"] else ""
    text = f"{ended:,} of {counts['planned']:,} conversations have ended{failed}"
    damaged = sum(each.damaged_lines for each in standings)
    warning = f" Warning: {damaged_words(damaged)}." if damaged else ""
    if not_begun:
        text += f" in the {counted(len(runs), 'combinations')} that have begun, of {len(runs) + not_begun}"
    elif ended == counts["planned"]:
        return f"Complete: {text}.{warning}"
    works = any(each.holder.may_work for each in standings)
    stopped = [f"stopped by {by}" for each in standings if (by := status_json(each, now).get("stopped_by"))]
    is_going_on = "the run goes on" if works else "; ".join(stopped) or "nothing is at work on the rest"
    return f"As of {iso(now)}: {text}; {is_going_on}.{warning}"


def _facts(subject: _Subject) -> Iterator[Line]:
    experiments = [run.experiment for run in subject.runs]
    yield Line("Environment", subject.runs[0].environment)
    if len(subject.runs) > 1:
        yield Line("Runs compared", str(len(subject.runs)))
    if subject.study is not None and subject.study.runs[0].values:
        yield Line("Combinations are named by", " · ".join(subject.study.runs[0].values))
    yield Line("Conversations", f"{sum(run.count('finished') for run in subject.runs):,} finished")
    failed = sum(run.count("failed") for run in subject.runs)
    if failed:
        yield Line("", f"{failed:,} failed; they are counted apart")
    yield Line("Seed", _each(str(experiment.get("seed")) for experiment in experiments))
    definitions = [section(experiment, "model_definitions") for experiment in experiments]
    for name in dict.fromkeys(name for each in definitions for name in each):
        yield Line(f"Model {name}", _each(_model(section(each, name)) for each in definitions if name in each))
    if (wall_s := number(subject.usage.get("wall_s"))) is not None:
        played = decimal_text(number(subject.usage.get("played_s")))
        yield Line("Time", f"{decimal_text(wall_s)} s over all sessions, {played} s of it at play")
    if subject.fork is not None:
        yield Line("Fork of", f"{count_text(len(subject.fork.plan()))} conversations that leave others at a turn")


def _each(texts: Iterable[str]) -> str:
    """Different texts, each once."""
    return ", ".join(dict.fromkeys(texts))


def _model(definition: JsonObject) -> str:
    backend = str(definition.get("backend"))
    name = section(definition, f"{backend}_config").get("model")
    policy = section(definition, f"{backend}_config").get("policy")
    shown = shareable({"name": name if isinstance(name, str) else policy})["name"]
    return backend if shown is None else f"{shown} ({backend})"


def _description(run: RunData) -> str:
    found = section(run.experiment, "experiment_metadata").get("description")
    return found if isinstance(found, str) else ""


def _versions() -> Iterator[Line]:
    yield Line("mac_runner", __version__)
    yield Line("Python", ".".join(map(str, sys.version_info[:3])))
    for package in _PACKAGES:
        try:
            yield Line(package, version(package))
        except PackageNotFoundError:
            continue


def _commands(directories: Sequence[Path], subject: _Subject) -> Iterator[Line]:
    # An absolute path says how the machine's folders are called.
    for directory in (Path(path.name) if path.is_absolute() else path for path in directories):
        yield Line("Look at them in a browser", f"mac-run view {directory}")
        yield Line("List them", f"mac-run show {directory}")
        if len(directories) == 1 and subject.study is not None:
            yield Line("A report of one combination", f"mac-run report {directory / (subject.runs[0].slug or '')}")
