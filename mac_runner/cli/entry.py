"""The entry point: sets up signals and streams before anything large is imported.

Imports take most of the time and memory of a short command. This module and its imports are small, so that signals are
handled from the start, and a process without memory can still say so.
"""

from __future__ import annotations

import gc
import mmap
import sys
from typing import Final

from mac_runner.cli.process import (
    flush_stderr,
    keep_reserve,
    ready_streams,
    shortage_behind,
    take_over_signals,
    told,
)
from mac_runner.errors import MacRunnerError

_IMPORTS_BYTES: Final = 48 << 20
"""Less than the imports of a command take: about 56 MiB of addresses, measured with CPython 3.11."""


def main() -> None:
    """The console script."""
    take_over_signals()
    try:
        ready_streams()
        keep_reserve()
        # An extension module that finds no memory while it is imported ends the process by a signal.
        mmap.mmap(-1, _IMPORTS_BYTES).close()
        gc.disable()  # Imports leave no garbage behind, and a tenth of their time would go into looking for it.
        from mac_runner.cli.commands import obey

        gc.enable()
        code = obey()
    except Exception as fault:
        error = fault if isinstance(fault, MacRunnerError) else shortage_behind(fault, "the command could not start")
        if error is not None:
            sys.exit(told(error))
        raise
    flush_stderr()
    sys.exit(code)
