"""`mac-run status`, `export` and `format`: how far a run is, its tables, and benchmarks as files of questions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mac_runner.cli.process import Exit, report
from mac_runner.clock import SystemClock
from mac_runner.config.materials import read_material
from mac_runner.errors import ConfigError
from mac_runner.registry import Converter, environment_specs
from mac_runner.reports import grid_status_json, grid_status_text, status_json, status_text
from mac_runner.runs.export import export
from mac_runner.store import Disk, is_grid, read_grid_standing, read_standing


def status(directory: Path, *, as_json: bool) -> Exit:
    """Print how far a run or a grid is. Takes no lock and changes nothing."""
    now = SystemClock().utc_now()
    if is_grid(directory):
        found, tell = grid_status_json(read_grid_standing(directory), now), grid_status_text
    else:
        found, tell = status_json(read_standing(directory), now), status_text
    with report() as stream:
        stream.write(json.dumps(found, indent=2) + "\n" if as_json else tell(found))
    return Exit.OK


def export_tables(directory: Path, to: Path, *, tables: Sequence[str], formats: Sequence[str]) -> Exit:
    """Write the tables of a run or a grid to new files in `to`."""
    with report() as stream:
        for path, rows, ended, planned in export(directory, to, tables=tables, formats=formats):
            stream.write(f"{path}: {rows} rows of {ended} of {planned} conversations\n")
    return Exit.OK


def formats() -> Mapping[str, Converter]:
    """Each benchmark format, with what turns its files into a question file."""
    return {name: found for spec in environment_specs().values() for name, found in spec.converters.items()}


def format_questions(name: str, files: Sequence[Path], out: Path) -> Exit:
    """Write the questions of `files`, in the format `name`, to the new file `out`."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"--out: {out} is there already; name another file, or remove it")
    if not out.parent.is_dir():
        raise ConfigError(f"--out: there is no directory {out.parent}; make it, or name another file")
    written = formats()[name].convert({str(file): read_material(file) for file in files})
    Disk().write_atomic(out, [written])
    with report() as stream:
        lines = written.count(b"\n")
        stream.write(f"{out}: {lines} questions\n")
    return Exit.OK
