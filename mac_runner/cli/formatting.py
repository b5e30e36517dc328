"""`mac-run format NAME FILE…`: a public benchmark as a file of questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import report
from mac_runner.config.materials import read_material
from mac_runner.errors import ConfigError
from mac_runner.registry import Converter, environment_specs
from mac_runner.store.disk import Disk


def formats() -> Mapping[str, Converter]:
    """Every format, with what turns files of it into a question file."""
    return {name: found for spec in environment_specs().values() for name, found in spec.converters.items()}


def format_questions(name: str, files: Sequence[Path], out: Path) -> Exit:
    """Write the questions of `files`, which are in the format `name`, to `out`, which must not be there yet."""
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
