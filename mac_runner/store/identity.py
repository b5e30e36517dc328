"""Whether a run directory belongs to the experiment at hand. Reads only, and takes no lock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from mac_runner.config import Difference, IdentityDiff, differences
from mac_runner.errors import IdentityError, RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store.disk import Disk
from mac_runner.store.frames import encode_json
from mac_runner.store.layout import Layout, config_path, grid_path, merge_path, shard_path
from mac_runner.store.plain import read_plain
from mac_runner.store.records import entry
from mac_runner.store.unplayed import is_unplayed
from mac_runner.types import JsonObject, JsonValue


def encode_config(resolved: JsonObject) -> bytes:
    """The resolved config as a person reads it; reading it back gives the same values."""
    head = "# What this run was started with. Do not edit: start another run instead.\n"
    text: str = yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True, width=120)
    return (head + text).encode("utf-8")


def read_config(disk: Disk, directory: Path) -> JsonObject:
    """The resolved config of a run directory. Raises RunDirectoryError when it is none."""
    path = config_path(directory)
    if not disk.exists(path):
        if disk.exists(grid_path(directory)):
            raise RunDirectoryError(
                f"{directory} holds a grid of runs; name the directory of one of its combinations, which stand in it"
            )
        raise RunDirectoryError(
            f"{directory} is no run directory: there is no {path.name} in it; name one made by a run"
        )
    return read_plain(disk, path)


def is_untouched(disk: Disk, directory: Path) -> bool:
    """Whether a run can begin here. Raises RunDirectoryError when the directory is used for something else."""
    # Listed before the config is looked for, which stands before all else does: so whoever begins at the same time, let
    # in by a broken lock, is not taken for something else.
    names = disk.names(directory)
    if disk.exists(config_path(directory)):
        return False
    if disk.exists(merge_path(directory)):
        raise RunDirectoryError(
            f"a merge into {directory} was broken off; finish it by the same command, or choose another directory "
            "with --out"
        )
    # A run that was killed before its config stood left dot files, its shard and empty directories at the most.
    known = shard_path(directory).name
    strays = [name for name in names if not name.startswith(".") and name != known]
    if strays:
        raise RunDirectoryError(
            f"{directory} holds {strays[0]!r} and no {config_path(directory).name}, so it is no run directory; "
            "choose an empty or a new directory with --out"
        )
    return True


def changes(disk: Disk, layout: Layout, resolved: JsonObject) -> IdentityDiff:
    """What changed since the run was started: of its identity nothing, unless nothing was played.

    Raises IdentityError naming all that may not change.
    """
    found = differences(read_config(disk, layout.directory), resolved)
    if found.identity and not is_unplayed(disk, layout):
        raise IdentityError(_refusal(layout.directory, found.identity))
    return found


def encode_shard(shard: Shard) -> bytes:
    """The file that says which part of the experiment a directory holds."""
    return encode_json({"shard": shard.number, "of": shard.of}) + b"\n"


def read_shard(disk: Disk, directory: Path) -> Shard | None:
    """Which part of the experiment a directory holds; None for all of it. Raises RunDirectoryError."""
    path = shard_path(directory)
    if not disk.exists(path):
        return None
    try:
        record = json.loads(disk.read(path))
        return Shard(entry(record, "shard", int), entry(record, "of", int))
    except (ValueError, AttributeError, RecursionError) as fault:
        raise RunDirectoryError(f"{path} cannot be read: {fault}; put back the file that the run wrote") from fault


def check_shard(disk: Disk, directory: Path, shard: Shard | None) -> None:
    """Raises IdentityError when the directory holds another part of the experiment than the one asked for."""
    found = read_shard(disk, directory)
    if found != shard:
        raise IdentityError(
            f"{directory} holds {_part(found)}, and {_part(shard)} was asked for; "
            "ask for what it holds, or give this run a directory of its own with --out DIR"
        )


def _part(shard: Shard | None) -> str:
    return "the whole experiment" if shard is None else f"shard {shard} of the experiment"


def describe(difference: Difference, *, old: str = "there", new: str = "now") -> str:
    """One field in words: its path, the value in the run directory and the value now."""
    return f"{difference.path}: {_short(difference.old)} {old}, {_short(difference.new)} {new}"


def _refusal(directory: Path, changed: Sequence[Difference]) -> str:
    fields = "".join(f"\n  {describe(difference)}" for difference in changed)
    return (
        f"{directory} belongs to another experiment; its results and these could not stand side by side:{fields}\n"
        "set the values back, or give this run a directory of its own with --out DIR"
    )


def _short(value: JsonValue) -> str:
    return f"{encode_json(value).decode('ascii'):.120}"
