"""The verbs of `mac-run fleet` and their flags."""

from __future__ import annotations

from pathlib import Path

import click

from mac_runner.cli.ending import end
from mac_runner.cli.options import LOCAL_PATH, profile_option, quiet_option, set_option
from mac_runner.runs.setup import RunRequest

_FLEET_FILE = Path("fleet.json")


@click.group(name="fleet", no_args_is_help=True)
def fleet() -> None:
    """Start, watch and end engines on the GPUs of this machine.

    `mac-run FILE` does all of it by itself. A fleet that is held outlives runs, so several of them share engines that
    took long to load.
    """


_file_argument = click.argument("file", metavar="[FLEET]", type=LOCAL_PATH, required=False, default=_FLEET_FILE)


@fleet.command(name="up")
@click.argument("file", metavar="EXPERIMENT", type=LOCAL_PATH)
@profile_option
@set_option
@click.option(
    "--out",
    type=LOCAL_PATH,
    metavar="FLEET",
    default=_FLEET_FILE,
    help="The file that describes the fleet [fleet.json].",
)
@click.option("--logs", type=LOCAL_PATH, metavar="DIR", help="Where the engines' logs go.")
@quiet_option
def up_command(
    file: Path, profile: str | None, overrides: tuple[str, ...], out: Path, logs: Path | None, quiet: bool
) -> None:
    """Start the fleet of EXPERIMENT and hold it until Ctrl-C, SIGTERM or `mac-run fleet down`.

    Engines that end are started again. FLEET is readable by this user alone, and removed at the end.

    Exit codes: 0 ended when asked, 2 bad input, 3 an engine did not start, or all have ended for good, 4 storage
    failed, 5 another process holds a fleet with this file.
    """
    from mac_runner.cli import fleet as fleets

    request = RunRequest(file=file, profile=profile, overrides=overrides)
    end(lambda: fleets.up(request, out, logs, is_quiet=quiet))


@fleet.command(name="status")
@_file_argument
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status_command(file: Path, as_json: bool) -> None:
    """Print the lanes of the fleet that FLEET describes [fleet.json].

    Exit codes: 0 printed, 2 there is no such fleet, 3 it has ended.
    """
    from mac_runner.cli import fleet as fleets

    end(lambda: fleets.status(file, as_json=as_json))


@fleet.command(name="drain")
@click.argument("lane", metavar="LANE")
@_file_argument
@click.option("--undo", "is_undone", is_flag=True, help="Start it again.")
def drain_command(lane: str, file: Path, is_undone: bool) -> None:
    """Take LANE out of service: it gets no new requests, and ends after those in flight.

    Other lanes take over its conversations. It stays down until --undo.

    Exit codes: 0 done, 2 there is no such fleet or lane, 3 the fleet has ended.
    """
    from mac_runner.cli import fleet as fleets

    end(lambda: fleets.drain(file, lane, is_undone=is_undone))


@fleet.command(name="down")
@_file_argument
def down_command(file: Path) -> None:
    """End the fleet that FLEET describes [fleet.json], and wait until its engines have ended.

    Exit codes: 0 it has ended, 1 it has not ended in time, 2 there is no such fleet.
    """
    from mac_runner.cli import fleet as fleets

    end(lambda: fleets.down(file))
