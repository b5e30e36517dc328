"""The entry point: signals and streams are in order before anything of size is imported.

The imports take most of the time of a short command, and most of its memory. This module and what it imports are small,
so that a signal finds its handler, and a process that may take next to nothing can still say so.
"""

from __future__ import annotations

import sys

from mac_runner.cli.exits import exit_of
from mac_runner.cli.printing import ready_streams, say, settle
from mac_runner.cli.stopping import take_over_signals
from mac_runner.errors import MacRunnerError, shortage_of


def main() -> None:
    """The console script."""
    take_over_signals()
    try:
        ready_streams()
        from mac_runner.cli.commands import obey

        code = obey()
    except Exception as fault:
        error = fault if isinstance(fault, MacRunnerError) else shortage_of(fault, "the command could not start")
        if error is not None:
            say(f"mac-run: {error}")
            sys.exit(exit_of(error))
        raise
    settle()
    sys.exit(code)
