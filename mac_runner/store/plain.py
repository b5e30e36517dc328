"""YAML that the store wrote → plain values, and a refusal of whatever it never writes.

A file that was edited or damaged may hold dates, sets, numbers that are none, keys that are no texts, values inside
themselves or a million copies of one by its anchor. None of them gets any further.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import yaml

from mac_runner import limits
from mac_runner.errors import RunDirectoryError
from mac_runner.printable import printable
from mac_runner.store.disk import Disk
from mac_runner.types import JsonObject, JsonValue

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""With its C parser where the wheel has it: ten times as fast, and a grid has hundreds of files to read."""


def read_plain(disk: Disk, path: Path) -> JsonObject:
    """The mapping in a file that the store wrote. Raises RunDirectoryError when it holds anything else."""
    data = b""
    for chunk in disk.chunks(path):
        data += chunk
        if len(data) > limits.STORE_YAML_BYTES_MAX:
            raise _unreadable(path, f"it is larger than {limits.STORE_YAML_BYTES_MAX} bytes")
    try:
        value = yaml.load(data, Loader=_Loader)  # noqa: S506 - it is the safe one
    except yaml.MarkedYAMLError as fault:
        line = "" if fault.problem_mark is None else f"line {fault.problem_mark.line + 1} is "
        raise _unreadable(path, f"{line}not what a run writes ({fault.problem})") from fault
    except (ValueError, TypeError, yaml.YAMLError, RecursionError) as fault:
        reason = "nested too deeply" if isinstance(fault, RecursionError) else str(fault)
        raise _unreadable(path, f"it is not valid YAML ({' '.join(reason.split())})") from fault
    if not isinstance(value, dict):
        raise _unreadable(path, "it holds no mapping")
    if (flaw := flaw_of(value)) is not None:
        raise _unreadable(path, flaw)
    return value


def flaw_of(root: JsonValue) -> str | None:
    """What of a value the store never writes; None when all of it may be its own."""
    left: list[tuple[str, object, int]] = [("", root, 1)]
    nodes = 0
    while left:
        where, value, depth = left.pop()
        nodes += 1
        if nodes > limits.STORE_YAML_NODES_MAX:
            return f"it holds more than {limits.STORE_YAML_NODES_MAX} values"
        if depth > limits.STORE_YAML_DEPTH_MAX:
            return f"it is nested deeper than {limits.STORE_YAML_DEPTH_MAX} levels"
        if isinstance(value, dict):
            if (odd := next((key for key in value if not isinstance(key, str)), None)) is not None:
                return f"{where or 'it'} has the key {odd!s:.80}, which is no text"
            left += [(f"{where}.{key}".lstrip("."), part, depth + 1) for key, part in value.items()]
        elif isinstance(value, list):
            left += [(f"{where}.{place}", part, depth + 1) for place, part in enumerate(value)]
        elif not isinstance(value, str | int | float | None):
            return f"{where} holds {value!s:.80}, which is no text, no number and no list"
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{where} holds {value}, which is no finite number"
    return None


def _unreadable(path: Path, why: str) -> RunDirectoryError:
    return RunDirectoryError(f"{path} cannot be read: {printable(why)}; put back the file that the run wrote")
