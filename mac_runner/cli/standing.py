"""`mac-run status RUN`: how a run stands, from another terminal while it runs, or after."""

from __future__ import annotations

import json
from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import report
from mac_runner.clock import SystemClock
from mac_runner.reports import grid_status_json, grid_status_text, status_json, status_text
from mac_runner.store import is_grid, read_grid_standing, read_standing


def status(directory: Path, *, as_json: bool) -> Exit:
    """Look, and print what is seen: of a run, or of a grid and all its combinations. Takes no lock, changes nothing."""
    now = SystemClock().utc_now()
    if is_grid(directory):
        told, tell = grid_status_json(read_grid_standing(directory), now), grid_status_text
    else:
        told, tell = status_json(read_standing(directory), now), status_text
    with report() as stream:
        stream.write(json.dumps(told, indent=2) + "\n" if as_json else tell(told))
    return Exit.OK
