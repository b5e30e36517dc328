"""`mac-run report`: one page of figures, with the numbers behind them."""

from __future__ import annotations

from mac_runner.cli.process import Exit, report, say
from mac_runner.clock import SystemClock
from mac_runner.runs.report_files import ReportRequest, report_files
from mac_runner.store import Disk


def write_report(request: ReportRequest) -> Exit:
    """Make a report, then write all its files; where anything fails before, nothing is written."""
    made = report_files(request, SystemClock().utc_now())
    disk = Disk()
    for path, data in made.files.items():
        disk.write_atomic(path, [data])
    with report() as stream:
        for path, data in made.files.items():
            stream.write(f"{path}: {made.figures} figures, {len(data):,} bytes\n")
    say(made.state)
    return Exit.OK
