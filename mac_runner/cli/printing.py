"""Where a verb's words go: its report to stdout, everything else to stderr.

Neither may change how a verb ends. A reader that has gone (`mac-run … | head -1`) is nothing to complain about, nor is
a stream that was closed from the start; words on stderr are expendable, and a report that cannot be stored is told like
any other failed write. A character that the encoding of a stream lacks is written as `printable.spelt_out` has it.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

from mac_runner.errors import StoreError
from mac_runner.printable import spelt_out

_SPELT_OUT: Final = "mac_runner.spelt_out"


def ready_streams() -> None:
    """Have stdin, stdout and stderr open, and the two that are written take every character.

    A file opened where one of the three is closed would get its number, and whatever is printed to it by others.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest number that is free, which is this one.
    codecs.register_error(_SPELT_OUT, spelt_out)
    sys.stdout, sys.stderr = _ready(sys.stdout, 1), _ready(sys.stderr, 2)


def _ready(stream: TextIO | None, descriptor: int) -> TextIO:
    """The stream, or a new one where Python found none."""
    if stream is None:
        return open(descriptor, "w", encoding="utf-8", errors=_SPELT_OUT, closefd=False)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_SPELT_OUT)
    return stream


@contextmanager
def report() -> Iterator[TextIO]:
    """Stdout, flushed at the end of the block. Raises StoreError when what was printed could not be stored."""
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as fault:
        _discard(sys.stdout)
        raise StoreError(f"cannot print the report: {fault.strerror}; run the same command again to see it") from fault


def say(text: str) -> None:
    """Words for people, on stderr; lost when nobody takes them."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - the one place that does


def settle() -> None:
    """Leave nothing behind that the interpreter would try, and fail, to print at its exit, with a code of its own."""
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Send what is still buffered nowhere, or the interpreter would try to print it again at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
