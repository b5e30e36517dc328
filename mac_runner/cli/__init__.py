"""The command line: `mac-run FILE` runs an experiment, verbs look at what it wrote.

Everything comes together here and nothing is decided here: the rooms do the work, this one reads flags, wires them
up, prints, and is the only one that ends the process.
"""

from __future__ import annotations

from mac_runner.cli.entry import main

__all__ = ["main"]
