"""Where a verb's words go: its report to stdout, everything else to stderr.

Neither may change how a verb ends. A reader that has gone (`mac-run … | head -1`) is nothing to complain about, words
on stderr are expendable, and a report that cannot be stored is told like any other failed write.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from mac_runner.errors import StoreError


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
