"""The verbs about time and cost, and their flags: `mac-run calibrate`."""

from __future__ import annotations

from pathlib import Path

import click

from mac_runner.cli.ending import end
from mac_runner.runs.setup import RunRequest

_CALIBRATION_FILE = Path("calibration.json")


@click.command(name="calibrate")
@click.argument("file", metavar="[EXPERIMENT]", type=click.Path(path_type=Path), required=False)
@click.option("--profile", metavar="NAME", help="One of the file's profiles; the file names its default.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set one key of the file.")
@click.option("--base-url", metavar="URL", help="Without EXPERIMENT: a server of the OpenAI protocol.")
@click.option("--model", metavar="NAME", help="With --base-url: the model's name there.")
@click.option("--gpu", metavar="NAME", help="The name of the GPU, where the engine does not say it.")
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    metavar="N",
    help="Requests at once in the last sweep [as many as the engine serves, at most 256].",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=3600),
    metavar="S",
    default=5.0,
    help="How long each of the sweeps takes [5].",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default=_CALIBRATION_FILE,
    help="The file that keeps what was measured [calibration.json].",
)
def calibrate_command(
    file: Path | None,
    profile: str | None,
    overrides: tuple[str, ...],
    base_url: str | None,
    model: str | None,
    gpu: str | None,
    in_flight: int | None,
    seconds: float,
    out: Path,
) -> None:
    """Measure how long the engines of EXPERIMENT take, and keep it for `mac-run plan` and for `latency`.

    One engine after the other is started and sent requests, 1, 4, 16 and N at a time. Of several servers of a model the
    first is measured. FILE keeps what it has of other models, GPUs and versions of engines.

    Exit codes: 0 all were measured, 2 bad input, 3 an engine did not start, or a signal ended it.
    """
    if (file is None) == (base_url is None):
        raise click.UsageError("name an EXPERIMENT, or a server with --base-url and --model")
    if (base_url is None) != (model is None):
        raise click.UsageError("--base-url and --model belong together: give both, or an EXPERIMENT")
    if base_url is not None and (profile is not None or overrides):
        raise click.UsageError("--profile and --set are about an EXPERIMENT: leave them out beside --base-url")
    # Here, because every verb would wait for the fleet.
    from mac_runner.cli.calibrate import show_calibration
    from mac_runner.runs.calibration import Sweeps, server_experiment

    source = file if file is not None else server_experiment(base_url or "", model or "")
    request = RunRequest(file=source, profile=profile, overrides=overrides)
    end(lambda: show_calibration(request, out, Sweeps(seconds=seconds, in_flight=in_flight, gpu=gpu)))
