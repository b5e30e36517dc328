"""`mac-run status`, `export` and `import`: how far a run is, its tables, and files of others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mac_runner.cli.process import Exit, report, say
from mac_runner.clock import SystemClock
from mac_runner.config import Written
from mac_runner.config.document import parse_document
from mac_runner.errors import ConfigError
from mac_runner.files import read_material
from mac_runner.printable import printable
from mac_runner.problems import dotted
from mac_runner.registry import Converter, Importer, environment_specs
from mac_runner.reports import (
    fitted,
    lanes_json,
    status_json,
    status_text,
)
from mac_runner.reports.metrics import metric_tables
from mac_runner.reports.tables import write_tables
from mac_runner.runs.export import ExportRequest, exported, followed, measure_run, named_metrics
from mac_runner.runs.recorded import recorded_only
from mac_runner.runs.stream import metrics_of
from mac_runner.section import KeyPath
from mac_runner.store import Disk, is_grid, read_run, read_standing
from mac_runner.store.standing import read_lanes


def status(directory: Path, *, as_json: bool) -> Exit:
    """Print how far a run or a grid is. Takes no lock and changes nothing."""
    now = SystemClock().utc_now()
    found = status_json(read_standing(directory), now)
    if lanes := read_lanes(directory):
        found["lanes"] = lanes_json(lanes)
    with report() as stream:
        stream.write(json.dumps(found, indent=2) + "\n" if as_json else fitted(status_text(found), stream))
    return Exit.OK


def export_tables(request: ExportRequest, *, is_followed: bool) -> Exit:
    """Write the tables of a run or a grid as files."""
    with report() as stream:
        for each in followed(request) if is_followed else exported(request):
            parts = f" in {each.parts} parts, {each.written} written now" if each.parts else ""
            stream.write(f"{each.path}: {each.rows} rows of {each.ended} of {each.planned} conversations{parts}\n")
            stream.flush()
    return Exit.OK


def compute_metrics(directory: Path, names: Sequence[str], to: Path | None) -> Exit:
    """Print the metrics of a run over its finished conversations, computed now; with `to`, write them there."""
    if is_grid(directory):
        raise ConfigError(f"{directory} is a grid; name the directory of one of its combinations")
    run = read_run(directory)
    metrics = named_metrics(names) if names else metrics_of(recorded_only(run))
    if not metrics:
        raise ConfigError(f"{directory} has no metrics; name some, such as --metric ./metrics.py:words")
    if to is not None:
        _refuse(to, "--to")
    found = measure_run(run, metrics, to)
    with report() as stream:
        write_tables(metric_tables(found.summary()), stream)
    say(f"{found.conversations} finished conversations of {run.counts.done}; nothing in {directory} was changed")
    if found.differing:
        say(f"note: {found.differing} of them keep another value of the same name, computed when they ended")
    return Exit.OK


def import_formats() -> dict[str, Converter | Importer]:
    """What can be imported."""
    return {**converters(), **importers()}


def import_files(name: str, files: Sequence[Path], out: Path | None, metadata: Path | None) -> Exit:
    """Write files of a public benchmark, or the experiment of another runner, as a file of ours."""
    if name in converters():
        if out is None:
            raise ConfigError("--out: name the file of questions to write")
        return import_questions(name, files, out, metadata)
    if metadata is not None:
        raise ConfigError(f"--metadata: the format {name} takes no such file; leave it out")
    if len(files) > 1:
        raise ConfigError(f"FILE: an experiment of {name} is one file; leave out {', '.join(map(str, files[1:]))}")
    return import_experiment(name, files[0], out)


def converters() -> Mapping[str, Converter]:
    """Each benchmark format, with what turns its files into a question file."""
    return {name: found for spec in environment_specs().values() for name, found in spec.converters.items()}


def import_questions(name: str, files: Sequence[Path], out: Path, metadata: Path | None = None) -> Exit:
    """Write the questions of `files`, in the format `name`, to the new file `out`."""
    converter = converters()[name]
    if metadata is not None and not converter.metadata:
        raise ConfigError(f"--metadata: the format {name} takes no such file; leave it out")
    _refuse(out)
    known = None if metadata is None else (str(metadata), read_material(metadata))
    written = converter.convert({str(file): read_material(file) for file in files}, known)
    Disk().write_atomic(out, [written])
    with report() as stream:
        lines = written.count(b"\n")
        stream.write(f"{out}: {lines} questions\n")
    return Exit.OK


def importers() -> Mapping[str, Importer]:
    """Each other runner whose experiment files can be read, with what turns them into ours."""
    return {name: found for spec in environment_specs().values() for name, found in spec.importers.items()}


def import_experiment(runner: str, file: Path, out: Path | None) -> Exit:
    """Write the experiment `file` of another runner as one of ours to `out`, or print it; list what it leaves out."""
    if out is not None:
        _refuse(out)
    document = parse_document(read_material(file), str(file))
    if not isinstance(document.value, dict):
        raise ConfigError(f"{file}:1: an experiment file is a mapping of sections")
    imported = importers()[runner].convert(document.value, file, Path() if out is None else out.parent)
    placed = sorted((_line(problem.path, document), problem) for problem in imported.left_out)
    left_out = [printable(f"{line}: {dotted(path)}: {text}") for line, (path, text) in placed]
    heading = [f"Imported from {file} ({runner}); docs/from_mac_fairness.md says what became of each key."]
    heading += [_carried(len(left_out)), *(f"- line {line}" for line in left_out)]
    written = "".join(f"# {printable(line)}\n" for line in heading) + f"\n{imported.text}"
    if out is None:
        with report() as stream:
            stream.write(written)
    else:
        Disk().write_atomic(out, [written.encode()])
    for line in (*(f"{file}:{line}" for line in left_out), _carried(len(left_out))):
        say(printable(line))
    return Exit.OK


def _carried(count: int) -> str:
    return f"Keys that are not carried over: {count}" if count else "All keys are carried over"


def _line(path: KeyPath, document: Written) -> int:
    """The line of a key, or of the nearest one above it."""
    return next(line for n in range(len(path), -1, -1) if (line := document.lines.get(path[:n])) is not None)


def _refuse(out: Path, flag: str = "--out") -> None:
    """Raises ConfigError where no new file can be written."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{flag}: {out} is there already; name another file, or remove it")
    if not out.parent.is_dir():
        raise ConfigError(f"{flag}: there is no directory {out.parent}; make it, or name another file")
