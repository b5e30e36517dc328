"""Runs: from a request to a played set of experiments, and work on a run directory afterwards.

Read `setup` (what is played), `engines` (on what), `stream` (conversations and run directories), `play` (all together).
The command line and programs call the same functions.
"""

from __future__ import annotations

from mac_runner.runs.play import Player, Results, results_if_complete
from mac_runner.runs.setup import ExperimentSet, RunRequest, Setup, set_up

__all__ = ["ExperimentSet", "Player", "Results", "RunRequest", "Setup", "results_if_complete", "set_up"]
