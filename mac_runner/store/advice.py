"""The commands that errors about a damaged run directory name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mac_runner.store.disk import Disk
from mac_runner.store.identity import read_shard
from mac_runner.store.layout import grid_path

_NAMED_MAX = 50


def repair_advice(directory: Path) -> str:
    """How to get back a transcript that is damaged or gone."""
    return f"`mac-run repair {directory}` writes it again from the journal"


def run_command(disk: Disk, directory: Path) -> str:
    """The command that goes on with a run; a combination of a grid is run with its grid."""
    shard = read_shard(disk, directory)
    part = "" if shard is None else f" --shard {shard}"
    return f"mac-run FILE{part} --out {grid_of(disk, directory) or directory}"


def grid_of(disk: Disk, directory: Path) -> Path | None:
    """The directory of the grid that a run is a combination of; None for a run by itself."""
    return directory.parent if disk.exists(grid_path(directory.parent)) else None


def listed(lines: Sequence[str]) -> str:
    """Some lines below each other; of very many the first."""
    hidden = len(lines) - _NAMED_MAX
    return "\n".join([*lines[:_NAMED_MAX], *([f"… and {hidden} more"] if hidden > 0 else [])])
