"""`mac-run status RUN`: how a run stands, from another terminal while it runs, or after."""

from __future__ import annotations

import json
from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import report
from mac_runner.clock import SystemClock
from mac_runner.reports import standing_json, tell_standing
from mac_runner.store import read_standing


def status(directory: Path, *, as_json: bool) -> Exit:
    """Look, and print what is seen. Takes no lock, and changes nothing."""
    told = standing_json(read_standing(directory), SystemClock().utc_now())
    with report() as stream:
        stream.write(json.dumps(told, indent=2) + "\n" if as_json else tell_standing(told))
    return Exit.OK
