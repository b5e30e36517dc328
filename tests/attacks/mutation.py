"""What may happen to a file behind everybody's back: its bytes, its lines, its place, its type. Drawn from dice."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, TypeAlias, cast

from mac_runner.types import JsonValue

Bytes: TypeAlias = Callable[[bytes, Random], bytes]


Place: TypeAlias = tuple[dict[str | int, JsonValue], str | int]
"""A value inside another: what holds it, a list as if it were a mapping, and where."""


def places(value: JsonValue) -> list[Place]:
    """Every place below a value."""
    keys: list[str | int] = list(value) if isinstance(value, dict) else []
    keys = list(range(len(value))) if isinstance(value, list) else keys
    holder = cast("dict[str | int, JsonValue]", value)
    return [(holder, key) for key in keys] + [place for key in keys for place in places(holder[key])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """What was done, and to which files of the directory."""

    what: str
    paths: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what}: {', '.join(self.paths)}"


def _at(data: bytes, dice: Random) -> int:
    return dice.randrange(max(1, len(data)))


def _bit(data: bytes, dice: Random) -> bytes:
    at = _at(data, dice)
    return data[:at] + bytes(byte ^ 1 << dice.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]


def _byte(data: bytes, dice: Random) -> bytes:
    at = _at(data, dice)
    return data[:at] + bytes([dice.choice(b'\x00\n"{}[]:,-0 9a\xff')]) + data[at + 1 :]


def _digit(data: bytes, dice: Random) -> bytes:
    """A figure is another one: what is written still reads well."""
    found = [match.start() for match in re.finditer(rb"[0-9]", data)]
    if not found:
        return _byte(data, dice)
    at = dice.choice(found)
    return data[:at] + bytes([dice.choice([digit for digit in b"0123456789" if digit != data[at]])]) + data[at + 1 :]


def _word(data: bytes, dice: Random) -> bytes:
    """A letter of a word is another one."""
    found = [match.start() for match in re.finditer(rb"[a-z]", data)]
    if not found:
        return _byte(data, dice)
    at = dice.choice(found)
    return data[:at] + (b"q" if data[at : at + 1] != b"q" else b"z") + data[at + 1 :]


def _cut(data: bytes, dice: Random) -> bytes:
    return data[: _at(data, dice)]


def _hole(data: bytes, dice: Random) -> bytes:
    at = _at(data, dice)
    return data[:at] + bytes(min(dice.choice([1, 16, 512]), len(data) - at)) + data[at + 512 :]


def _garbage(data: bytes, dice: Random) -> bytes:
    return data + dice.choice([b"\n", b"{", b"\x00" * 64, b"00000000 {}\n", b"{}\n", dice.randbytes(40)])


def _of_lines(change: Callable[[list[bytes], Random], None]) -> Bytes:
    def changed(data: bytes, dice: Random) -> bytes:
        lines = data.splitlines(keepends=True)
        if lines:
            change(lines, dice)
        return b"".join(lines)

    return changed


def _repeat(lines: list[bytes], dice: Random) -> None:
    lines.insert(dice.randrange(len(lines) + 1), dice.choice(lines))


def _drop(lines: list[bytes], dice: Random) -> None:
    del lines[dice.randrange(len(lines))]


def _swap(lines: list[bytes], dice: Random) -> None:
    one, other = (dice.randrange(len(lines)) for _ in range(2))
    lines[one], lines[other] = lines[other], lines[one]


BYTES: Final[dict[str, Bytes]] = {
    "a bit flipped": _bit,
    "a byte replaced": _byte,
    "a digit changed": _digit,
    "a letter changed": _word,
    "cut off": _cut,
    "zeros inside": _hole,
    "garbage behind": _garbage,
    "emptied": lambda data, dice: b"",
    "a line twice": _of_lines(_repeat),
    "a line dropped": _of_lines(_drop),
    "two lines swapped": _of_lines(_swap),
}


def _delete(path: Path, dice: Random) -> None:
    path.unlink()


def _directory(path: Path, dice: Random) -> None:
    path.unlink()
    path.mkdir()
    if dice.random() < 0.5:
        (path / "inside").write_text("x")


def _fifo(path: Path, dice: Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path, dice: Random) -> None:
    target = dice.choice(["/dev/null", "/nonexistent/file", path.name, "."])
    path.unlink()
    path.symlink_to(target)


TYPES: Final[dict[str, Callable[[Path, Random], None]]] = {
    "deleted": _delete,
    "made a directory": _directory,
    "made a pipe": _fifo,
    "made a link": _link,
}
_SWAPPED: Final = "swapped"


def mutate(root: Path, dice: Random, names: Sequence[str]) -> Mutation:
    """Change one file of `names` below `root`, or have two change places."""
    name = dice.choice(sorted(names))
    path = root / name
    kind = dice.choice([*BYTES, *BYTES, *TYPES, _SWAPPED])
    if kind in BYTES:
        path.write_bytes(BYTES[kind](path.read_bytes(), dice))
    elif kind in TYPES:
        TYPES[kind](path, dice)
    else:
        other = dice.choice(sorted(names))
        one, another = path.read_bytes(), (root / other).read_bytes()
        path.write_bytes(another)
        (root / other).write_bytes(one)
        return Mutation(what=kind, paths=(name, other))
    return Mutation(what=kind, paths=(name,))


def put_back(root: Path, source: Path, paths: Sequence[str]) -> None:
    """Put files back as they were before a mutation."""
    for name in paths:
        target = root / name
        remove(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target)


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
