"""What a directory holds, and whether it belongs to the experiment at hand. Takes no lock.

`experiment.yaml` is what a run was started with. A run continues in its directory while nothing of its identity
changes. A directory in which nothing was played may take on a corrected experiment: there are no results that others
would be mixed with. What counts is what is there, and not how earlier sessions ended.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from mac_runner.config import Difference, IdentityDiff, differences, foreign_edition
from mac_runner.errors import IdentityError, RunDirectoryError, StoreError
from mac_runner.plan import Plan, Shard
from mac_runner.printable import printable
from mac_runner.results import section
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.layout import (
    CONFIG,
    EXPERIMENTS,
    FORK,
    GRID,
    INDEX_SUFFIX,
    LEASE_DIRECTORIES,
    LEASES,
    MERGE_MARK,
    SHARD,
    WORKERS,
    Layout,
    refuse_in_grid,
    refuse_strays,
    task_id_of,
    visible,
)
from mac_runner.store.lock import read_owner
from mac_runner.store.records import encode_json, entry, foreign_format
from mac_runner.types import JsonObject, JsonValue

# What a YAML file of a run directory may cost. One written by a run comes nowhere near.
YAML_BYTES_MAX: Final = 64 << 20
YAML_NODES_MAX: Final = 2_000_000
YAML_DEPTH_MAX: Final = 100
_TOO_DEEP: Final = f"it is nested deeper than {YAML_DEPTH_MAX} levels"

_DIGEST: Final = re.compile(rb"^# Digest of its values: ([0-9a-f]{64})\r?$", re.MULTILINE)
"""The line of a YAML file of a run directory by which a reader knows that its values are those that were written."""

_LISTED_MAX = 50

_BESIDE: Final = frozenset({SHARD, LEASES, LEASE_DIRECTORIES, WORKERS})
"""What may be in a directory before there is a run."""

_CODE: Final = "plugins."
"""The beginning of a changed field of the code that an experiment names."""
_CODE_KEYS: Final = ("distribution", "version", "sha256")

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""With its C parser where the wheel has it: ten times as fast, and a grid has hundreds of files to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What is to be played, and where: the `tasks` of an experiment whose settings are `resolved`.

    `shard` is the part of the experiment that the directory is for, if it is not all of it.
    """

    layout: Layout
    resolved: JsonObject
    tasks: Plan
    shard: Shard | None = None


def encode_config(resolved: JsonObject) -> bytes:
    """The resolved config as YAML for a person; reading it back gives the same values."""
    head = b"# What this run was started with. Do not edit: start another run instead.\n"
    text: str = yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True, width=120)
    return with_digest(head, text.encode("utf-8"))


def with_digest(head: bytes, text: bytes) -> bytes:
    """A YAML file of a run directory: a comment for a person, the digest of its values, and its text."""
    digest = _digest(yaml.load(text, Loader=_Loader))  # noqa: S506 - it is the safe one
    return head + f"# Digest of its values: {digest}\n".encode("ascii") + text


def _digest(values: JsonObject) -> str:
    return hashlib.sha256(encode_json(values)).hexdigest()


def read_config(disk: Disk, layout: Layout) -> JsonObject:
    """The resolved config of a run. Raises RunDirectoryError for none, and for one of another edition."""
    path = _config(disk, layout)
    return _current(path, read_yaml(disk, path))


def _current(path: Path, config: JsonObject) -> JsonObject:
    if (edition := foreign_edition(config)) is not None:
        raise RunDirectoryError(f"{path}: {foreign_format(edition.path, edition.old, edition.new)}")
    return config


def _config(disk: Disk, layout: Layout) -> Path:
    directory, path = layout.directory, layout.config
    if not disk.exists(path):
        if disk.exists(directory / GRID):
            raise RunDirectoryError(
                f"{directory} holds a grid of runs; name one of its combinations, such as {directory}/SLUG"
            )
        if (owner := read_owner(disk, layout.root)) is not None:
            raise RunDirectoryError(f"{directory} is no run directory yet: nothing was played by {owner}; look later")
        if layout.grid is not None:
            raise RunDirectoryError(
                f"{layout.grid} is a grid, and no combination {directory.name} of it has begun; `mac-run status "
                f"{layout.grid}` lists them"
            )
        raise RunDirectoryError(
            f"{directory} is not a run directory: it has no {path.name} in it; name one made by a run"
        )
    return path


def is_untouched(disk: Disk, layout: Layout) -> bool:
    """Whether a run can begin here. Raises RunDirectoryError when the directory is used for something else."""
    # The names first: the config is written before everything else, so a run that begins at the same time, let in by a
    # broken lock, is not mistaken for something else.
    directory = layout.directory
    names = visible(disk, directory) if layout.grid is None else ()
    if disk.exists(layout.config):
        return False
    if layout.grid is None:
        refuse_in_grid(disk, directory)
    if disk.exists(directory / MERGE_MARK):
        raise RunDirectoryError(
            f"a merge into {directory} was broken off; finish it by the same command, or choose another directory "
            "with --out"
        )
    # A run killed before its config was written left at most dot files, its shard or its leases, and empty directories.
    refuse_strays(directory, (name for name in names if name not in _BESIDE), CONFIG, "a run directory")
    return True


def changes(disk: Disk, layout: Layout, resolved: JsonObject) -> IdentityDiff:
    """What changed since the run was started; nothing of its identity, unless nothing was played.

    Values that are not those that were written are damage where the digest of these is that of `resolved`. Raises
    IdentityError naming every field that may not change.
    """
    path = _config(disk, layout)
    try:
        there, digest = _values(disk, path)
    except RunDirectoryError:
        # What was cut off within a value is often no YAML any more, and its second line still says whose it is.
        if (digest := _written(next(disk.chunks(path), b""))) is None or digest != _digest(resolved):
            raise
        return IdentityDiff((), (Difference(f"the digest of {CONFIG}", None, digest),))
    found = differences(there, resolved)
    if digest in (None, _digest(there)):
        _current(path, there)
    else:
        damage = Difference(f"the digest of {CONFIG}", digest, _digest(resolved))
        if digest == damage.new:
            damage, found = damage._replace(old=_digest(there)), IdentityDiff((), (*found.identity, *found.runtime))
        found = found._replace(runtime=(*found.runtime, damage))
    if found.identity and not is_unplayed(disk, layout):
        raise IdentityError(_refusal(layout.directory, found.identity))
    return found


def begun_with(disk: Disk, asked: Invocation) -> IdentityDiff | None:
    """What the settings of now change; None where no run is yet. Raises IdentityError for another experiment."""
    layout = asked.layout
    found = None if (is_fresh := is_untouched(disk, layout)) else changes(disk, layout, asked.resolved)
    # All combinations of a grid are of one part.
    if not is_fresh or (layout.grid is not None and disk.names(layout.root / EXPERIMENTS)):
        check_shard(disk, layout.root, asked.shard)
    return found


def describe(difference: Difference, *, old: str = "there", new: str = "now") -> str:
    """A changed field in words: its path, the value in the run directory and the value now."""
    path = difference.path
    if path.startswith(_CODE) and (key := path.rpartition(".")[2]) in _CODE_KEYS:
        path = f"the code of {path.removeprefix(_CODE).removesuffix(f'.{key}')} changed: its {key}"
    elif difference.file:
        path = f"{path.removesuffix('.sha256')}: {difference.file} changed: its sha256"
    return f"{path}: {_short(difference.old)} {old}, {_short(difference.new)} {new}"


def _refusal(directory: Path, changed: Sequence[Difference]) -> str:
    fields = "".join(f"\n  {describe(difference)}" for difference in changed)
    code = any(difference.path.startswith(_CODE) for difference in changed)
    files = any(difference.file for difference in changed)
    back = f"put the {'code' if code else 'files'} and the values back" if code or files else "set the values back"
    return (
        f"{directory} belongs to another experiment; its results and these could not be mixed:{fields}\n"
        f"{back}, or give this run a directory of its own with --out DIR"
    )


def _short(value: JsonValue) -> str:
    return f"{encode_json(value).decode('ascii'):.120}"


def is_unplayed(disk: Disk, layout: Layout) -> bool:
    """Whether a run has no reply, transcript, ending or death, and its directory no unknown file."""
    transcripts = filter(None, map(task_id_of, visible(disk, layout.transcripts)))
    if any(map(layout.holds, transcripts)) or not journal.is_blank(disk, layout):
        return False
    if layout.grid is not None:
        return True
    opened = (layout.config, layout.manifest, layout.summary, layout.events, layout.journal, layout.transcripts)
    known = {*_BESIDE, *(path.name for path in opened)}
    others = (name for name in visible(disk, layout.directory) if name not in known)
    return all(name.endswith(INDEX_SUFFIX) and not any(disk.chunks(layout.directory / name)) for name in others)


def forget_plan(disk: Disk, layout: Layout) -> None:
    """Remove, durably, what the experiment that was never played here planned and counted.

    Raises StoreError where a process that a broken lock let in has played meanwhile.
    """
    if not is_unplayed(disk, layout):
        raise StoreError(f"another process has played another experiment in {layout.directory}; choose another --out")
    disk.remove(layout.leases)
    for name in visible(disk, layout.journal):
        disk.remove(layout.journal / name)
    if layout.grid is not None:
        disk.sync_directory(layout.journal)
        return
    for name in visible(disk, layout.directory):
        if name.endswith(INDEX_SUFFIX):
            disk.remove(layout.directory / name)
    disk.remove(layout.manifest)
    disk.remove(layout.summary)
    disk.sync_directory(layout.directory)


def encode_shard(shard: Shard) -> bytes:
    return encode_json({"shard": shard.number, "of": shard.of}) + b"\n"


def read_shard(disk: Disk, directory: Path) -> Shard | None:
    """The part of the experiment that a directory holds; None for all of it. Raises RunDirectoryError."""
    path = directory / SHARD
    if not disk.exists(path):
        return None
    try:
        record = json.loads(disk.read(path))
        return Shard(entry(record, "shard", int), entry(record, "of", int))
    except (ValueError, AttributeError, RecursionError) as fault:
        raise RunDirectoryError(f"{path} cannot be read: {fault}; put back the file that the run wrote") from fault


def check_shard(disk: Disk, directory: Path, shard: Shard | None) -> None:
    """Raises IdentityError when the directory holds another part of the experiment than `shard`."""
    found = read_shard(disk, directory)
    if found != shard:
        raise IdentityError(
            f"{directory} holds {_part(found)}, and {_part(shard)} was asked for; "
            "ask for what it holds, or give this run a directory of its own with --out DIR"
        )


def _part(shard: Shard | None) -> str:
    return "the whole experiment" if shard is None else f"shard {shard} of the experiment"


def run_command(disk: Disk, directory: Path) -> str:
    """The command that continues a run; a combination of a grid is run with its grid."""
    root = Layout.at(disk, directory).root
    shard = read_shard(disk, root)
    part = "" if shard is None else f" --shard {shard}"
    return f"mac-run FILE{part} --out {root}"


def listed(lines: Sequence[str], most: int = _LISTED_MAX) -> str:
    """Lines below each other; of very many the first."""
    hidden = len(lines) - most
    return "\n".join([*lines[:most], *([f"… and {hidden} more"] if hidden > 0 else [])])


def read_yaml(disk: Disk, path: Path) -> JsonObject:
    """The mapping in a file that the store wrote. Raises RunDirectoryError when it holds anything else.

    So are values that are not those that were written. A file that was edited or damaged may hold dates, sets, NaN,
    keys that are not text, values inside themselves or a million copies of one through its anchor. All of them are
    refused.
    """
    value, digest = _values(disk, path)
    if digest not in (None, _digest(value)):
        raise _unreadable(path, "its values are not those that were written, whose digest it has")
    return value


def _values(disk: Disk, path: Path) -> tuple[JsonObject, str | None]:
    """The values of a file, and the digest of those that were written; None of one by an earlier version."""
    data = b""
    for chunk in disk.chunks(path):
        data += chunk
        if len(data) > YAML_BYTES_MAX:
            raise _unreadable(path, f"it is larger than {YAML_BYTES_MAX} bytes")
    try:
        if _is_too_deep(data):
            raise _unreadable(path, _TOO_DEEP)
        value = yaml.load(data, Loader=_Loader)  # noqa: S506 - it is the safe one
    except yaml.MarkedYAMLError as fault:
        line = "" if fault.problem_mark is None else f"line {fault.problem_mark.line + 1} is "
        raise _unreadable(path, f"{line}not what a run writes ({fault.problem})") from fault
    except RecursionError as fault:  # Of values that are merged into values, and so on.
        raise _unreadable(path, _TOO_DEEP) from fault
    except (ValueError, TypeError, yaml.YAMLError) as fault:
        raise _unreadable(path, f"it is not valid YAML ({' '.join(str(fault).split())})") from fault
    if not isinstance(value, dict):
        raise _unreadable(path, "it holds no mapping")
    if (flaw := _flaw_of(value)) is not None:
        raise _unreadable(path, flaw)
    return value, _written(data)


def _written(data: bytes) -> str | None:
    """The digest that a file has of the values that were written."""
    digest = _DIGEST.search(data)
    return None if digest is None else digest[1].decode("ascii")


def _is_too_deep(data: bytes) -> bool:
    """Told from the events: a loader without a limit of its own, as PyYAML's is before 6.0.4, ends the process."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > YAML_DEPTH_MAX:
            return True
    return False


def _flaw_of(root: JsonValue) -> str | None:
    """What in a value the store never writes; None when there is nothing."""
    left: list[tuple[str, object, int]] = [("", root, 1)]
    nodes = 0
    while left:
        where, value, depth = left.pop()
        nodes += 1
        if nodes > YAML_NODES_MAX:
            return f"it holds more than {YAML_NODES_MAX} values"
        if depth > YAML_DEPTH_MAX:
            return _TOO_DEEP
        if isinstance(value, dict):
            if (odd := next((key for key in value if not isinstance(key, str)), None)) is not None:
                return f"{where or 'it'} has the key {odd!s:.80}, which is not text"
            left += [(f"{where}.{key}".lstrip("."), part, depth + 1) for key, part in value.items()]
        elif isinstance(value, list):
            left += [(f"{where}.{place}", part, depth + 1) for place, part in enumerate(value)]
        elif not isinstance(value, str | int | float | None):
            return f"{where} holds {value!s:.80}, which is not text, a number or a list"
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{where} holds {value}, which is not a finite number"
    return None


def _unreadable(path: Path, why: str) -> RunDirectoryError:
    return RunDirectoryError(f"{path} cannot be read: {printable(why)}; put back the file that the run wrote")


def has_run(directory: Path, *, disk: Disk | None = None) -> bool:
    disk = disk or Disk()
    layout = Layout.at(disk, directory)
    return disk.exists(layout.config) and (layout.grid is not None or disk.exists(layout.manifest))


def read_head(directory: Path, *, disk: Disk | None = None) -> tuple[Layout, JsonObject]:
    """The layout of the run in a directory and its experiment. Raises RunDirectoryError when there is none."""
    disk = disk or Disk()
    layout = Layout.at(disk, directory)
    resolved = read_config(disk, layout)
    if not has_run(directory, disk=disk):
        command = f"`{run_command(disk, directory)}`"
        raise RunDirectoryError(
            f"{layout.manifest} is missing: the run was stopped while it began, or the file was removed; "
            f"{'the same `mac-run fork`' if disk.exists(directory / FORK) else command} writes it again"
        )
    name = section(resolved, "experiment_metadata").get("experiment_name")
    if not isinstance(name, str):
        raise RunDirectoryError(f"{layout.config} names no experiment; put back the file that the run wrote")
    return replace(layout, experiment_name=name), resolved


def layout_of(directory: Path, *, disk: Disk | None = None) -> Layout:
    """The layout of a run or a grid, whose name counts where the directory is shared: that of a combination."""
    disk = disk or Disk()
    layout = Layout.at(disk, directory)
    return layout if layout.grid is None else read_head(directory, disk=disk)[0]
