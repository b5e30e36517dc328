"""The verbs of `mac-run fleet`, and their flags."""

from __future__ import annotations

from pathlib import Path

import click

from mac_runner.cli.ending import end
from mac_runner.cli.fleet_plan import show_plan
from mac_runner.runs.setup import RunRequest


@click.group(name="fleet", no_args_is_help=True)
def fleet_group() -> None:
    """Plan, start, watch and end engines on the GPUs of this machine.

    mac-run FILE does all of it by itself where models of FILE have the backend `fleet`.
    """


@fleet_group.command(name="plan")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--profile", metavar="NAME", help="One of the file's profiles; the file names its default.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set one key of the file.")
def plan_command(file: Path, profile: str | None, overrides: tuple[str, ...]) -> None:
    """Print the engines that FILE needs: where each runs, its share of memory, its port and its command line.

    Of a grid, the engines of all combinations. It asks nvidia-smi for the GPUs, and starts and writes nothing.

    Exit codes: 0 all of it fits, 2 bad input, with everything that does not fit and why.
    """
    end(lambda: show_plan(RunRequest(file=file, profile=profile, overrides=overrides)))
