"""Tables as text of a given width.

The name of a row is its first cell. It stays whole as long as it is shorter than a line: words are broken at blanks,
and columns of numbers that do not fit beside the names follow below, with the names again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

from rich.cells import cell_len, set_cell_size

from mac_runner.printable import printable
from mac_runner.results import Table

_GAP: Final = "   "
_WRAPPED_CHARS_MIN: Final = 16
"""A column of words is not made narrower to have room for others."""
_WORD: Final = re.compile(r" *[^ ]+")
_INDENT: Final = "    "
_HEAD: Final = re.compile(r" *(?:[a-z]+(?: [a-z]+)* {2,})?")
"""What the text of a line stands behind: blanks, or a label in a column of its own."""


def drawn(parts: Iterable[Table | str], *, width: int, has_style: bool) -> str:
    """Tables and notes one below the other."""
    texts = (_note(part, width) if isinstance(part, str) else _table(part, width, has_style) for part in parts)
    return "\n\n".join("\n".join(line.rstrip() for line in lines) for lines in texts) + "\n"


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, broken at blanks. A word that is longer than a line is cut."""
    lines, line = list[str](), ""
    for word in _WORD.findall(text):
        if cell_len(line) + cell_len(word) <= width:
            line += word
            continue
        if line:
            lines.append(line)
        *full, line = _chopped(word.lstrip(), width)
        lines += full
    return [*lines, line]


def hanging(text: str, width: int) -> Iterator[str]:
    """The lines of a text, broken at blanks; each goes on below its own text, behind its label or indent."""
    for line in text.split("\n"):
        match = _HEAD.match(line)
        head = "" if match is None or match.end() > width // 2 else match[0]
        first, *further = wrapped(line[len(head) :], width - len(head))
        yield from (head + first, *(" " * len(head) + more for more in further))


def _chopped(word: str, width: int) -> Iterator[str]:
    piece = ""
    for char in word:
        if piece and cell_len(piece + char) > width:
            yield piece
            piece = ""
        piece += char
    yield piece


def bold(text: str, has_style: bool) -> str:
    """A heading on a terminal."""
    return f"\x1b[1m{text}\x1b[0m" if has_style and text else text


def _note(text: str, width: int) -> Iterator[str]:
    for line in text.split("\n"):
        yield from wrapped(printable(line), width)


def _table(table: Table, width: int, has_style: bool) -> Iterator[str]:
    yield from (bold(line, has_style) for line in wrapped(printable(table.title), width))
    heads = [*map(printable, (*table.words, *table.numbers))]
    rows = [[*map(printable, row)] for row in table.rows]
    widths = [max(map(cell_len, cells)) for cells in zip(heads, *rows, strict=True)]
    count = len(table.words)
    names, numbers = widths[:count], widths[count:]
    least = [
        min(
            natural,
            max([_WRAPPED_CHARS_MIN, *(cell_len(word) for row in (heads, *rows) for word in row[place].split())]),
        )
        for place, natural in enumerate(names)
    ]
    # All numbers beside the names, then as many as fit: at best beside names as they are.
    for beside in (numbers, [max(numbers, default=0)] if numbers else []):
        for chosen in (names, _narrowed(names, least, width - sum(beside) - len(_GAP) * len(beside))):
            if _total([*chosen, *beside]) <= width:
                yield from _blocks(heads, rows, [*chosen, *numbers], count, width, has_style)
                return
    for row in rows:
        yield from _record(heads, row, width)


def _narrowed(names: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widths of columns of words that have so much room together; the first one stays as it is."""
    found = [*names[:1], *least[1:]]
    for place in range(1, len(found)):
        found[place] = min(names[place], found[place] + max(0, room - _total(found)))
    return found


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _blocks(
    heads: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], words: int, width: int, has_style: bool
) -> Iterator[str]:
    """The columns one block below the other: each has all names, and as many numbers as fit."""
    names = [*range(words)]
    block = [*names]
    for place in range(words, len(heads)):
        if len(block) > words and _total([widths[each] for each in (*block, place)]) > width:
            yield from (*_block(heads, rows, widths, block, words, has_style), "")
            block = [*names]
        block.append(place)
    yield from _block(heads, rows, widths, block, words, has_style)


def _block(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    places: Sequence[int],
    words: int,
    has_style: bool,
) -> Iterator[str]:
    def lines(row: Sequence[str]) -> Iterator[str]:
        cells = [wrapped(row[place], widths[place]) if place < words else [row[place]] for place in places]
        for line in zip_longest(*cells, fillvalue=""):
            yield _GAP.join(
                set_cell_size(cell, widths[place]) if place < words else " " * (widths[place] - cell_len(cell)) + cell
                for place, cell in zip(places, line, strict=True)
            )

    if any(heads):
        yield from (bold(line.rstrip(), has_style) for line in lines(heads))
        yield "─" * _total([widths[place] for place in places])
    for row in rows:
        yield from lines(row)


def _record(heads: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """A row whose names leave no room for anything beside them: its other cells follow below."""
    yield from wrapped(row[0], width)
    for head, cell in zip(heads[1:], row[1:], strict=True):
        for line in wrapped(f"{head}: {cell}" if head else cell, max(1, width - len(_INDENT))):
            yield f"{_INDENT}{line}"
