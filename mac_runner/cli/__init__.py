"""The command line: reads flags, calls the other rooms, prints, and ends the process.

`mac-run FILE` runs an experiment; verbs work on what it wrote.
"""

from __future__ import annotations

from mac_runner.cli.process import main

__all__ = ["main"]
