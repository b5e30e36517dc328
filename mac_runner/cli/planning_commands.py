"""The verbs about time and cost, and their flags: `mac-run plan` and `mac-run calibrate`."""

from __future__ import annotations

import math
from pathlib import Path

import click

from mac_runner.cli.ending import end
from mac_runner.cli.options import LOCAL_PATH, counts, profile_option, set_option
from mac_runner.runs.setup import RunRequest

_CALIBRATION_FILE = Path("calibration.json")


@click.command(name="calibrate")
@click.argument("file", metavar="[EXPERIMENT]", type=LOCAL_PATH, required=False)
@profile_option
@set_option
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
    help="How long each of the sweeps takes; longer on a slow engine [5].",
)
@click.option(
    "--out",
    type=LOCAL_PATH,
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
    from mac_runner.planning.sweeps import Sweeps, server_experiment

    source = file if file is not None else server_experiment(base_url or "", model or "")
    request = RunRequest(file=source, profile=profile, overrides=overrides)
    end(lambda: show_calibration(request, out, Sweeps(seconds=seconds, in_flight=in_flight, gpu=gpu)))


def _price(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """The value of `--price`, which `nan` and `inf` pass as numbers of a range."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not an amount; name what a GPU costs for an hour", ctx, param)
    return value


@click.command(name="plan")
@click.argument("file", metavar="EXPERIMENT", type=LOCAL_PATH)
@click.option(
    "--calibration",
    type=LOCAL_PATH,
    metavar="RUN|FILE",
    required=True,
    help="A run of the experiment, such as a pilot of 20 conversations, or a file of mac-run calibrate.",
)
@profile_option
@set_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Plan the first N conversations at most.")
@click.option(
    "--lanes", callback=counts, metavar="N,...", help="Servers of each engine, such as 1,8,64 [as EXPERIMENT has it]."
)
@click.option(
    "--slots", callback=counts, metavar="N,...", help="Requests at once on each server [as EXPERIMENT has it]."
)
@click.option(
    "--price",
    type=click.FloatRange(min=0, min_open=True),
    callback=_price,
    metavar="X",
    help="What a GPU costs for an hour.",
)
@click.option("--kv-tokens", type=click.IntRange(min=64), metavar="N", help="Tokens in the KV cache of each server.")
@click.option("--gpu", metavar="NAME", help="Which GPU of a calibration file is meant, where it has several.")
@click.option("--policy", metavar="NAME", help="Take the replies of this scripted player, not those of the run.")
@click.option(
    "--reply-tokens", type=click.IntRange(min=1), metavar="N", help="The tokens of a scripted player's reply."
)
@click.option(
    "--resamplings", type=click.IntRange(min=0, max=1000), metavar="N", default=20, help="For the interval [20]."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def plan_command(
    file: Path,
    calibration: Path,
    profile: str | None,
    overrides: tuple[str, ...],
    limit: int | None,
    lanes: tuple[int, ...],
    slots: tuple[int, ...],
    price: float | None,
    kv_tokens: int | None,
    gpu: str | None,
    policy: str | None,
    reply_tokens: int | None,
    resamplings: int,
    as_json: bool,
) -> None:
    """Say how long EXPERIMENT will take, how many GPU-hours, and what limits it.

    The conversations are played in simulated time: by the scheduler and the environment of a run, on engines that take
    as long as the calibration says. No engine is started and nothing is written.

    Exit codes: 0 planned, 2 bad input, or a calibration that does not fit, 3 interrupted.
    """
    # Here, because every verb would wait for the scheduler and the backends.
    from mac_runner.cli.plan import show_cost
    from mac_runner.planning.cost import CostRequest

    request = CostRequest(
        run=RunRequest(file=file, profile=profile, overrides=overrides, limit=limit),
        calibration=calibration,
        lanes=lanes,
        slots=slots,
        kv_tokens=kv_tokens,
        gpu=gpu,
        policy=policy,
        reply_tokens=reply_tokens,
        resamplings=resamplings,
    )
    end(lambda: show_cost(request, price, as_json=as_json))
