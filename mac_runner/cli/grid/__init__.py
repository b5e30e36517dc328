"""A grid on the command line: many experiments of one file, one run.

Each combination is an experiment with a run directory of its own; here they are set up, given the engines that they
share, run together, and laid out in one table.
"""

from __future__ import annotations

from mac_runner.cli.grid.describing import describe_grid
from mac_runner.cli.grid.running import run_grid

__all__ = ["describe_grid", "run_grid"]
