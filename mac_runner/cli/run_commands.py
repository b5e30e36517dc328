"""The verbs that play conversations, and their flags: `run`, `submit`, `retry` and `fork`."""

from __future__ import annotations

from pathlib import Path

import click

from mac_runner.cli import fork as forks
from mac_runner.cli import maintenance
from mac_runner.cli.ending import end, end_trusted
from mac_runner.cli.options import (
    LOCAL_PATH,
    concurrency_option,
    count,
    limit_option,
    live_option,
    mirror_option,
    number,
    profile_option,
    quiet_option,
    seed_option,
    set_option,
    shard,
    trust_option,
)
from mac_runner.cli.run import describe, preview
from mac_runner.cli.run import run as run_file
from mac_runner.cli.submit import EXECUTORS, SubmitRequest, submit
from mac_runner.cli.view import Pages
from mac_runner.plan import AutoShard, Shard
from mac_runner.runs.fork_plan import ForkRequest
from mac_runner.runs.forks import ValueRequest
from mac_runner.runs.setup import RunRequest


@click.command(name="run")
@click.argument("file", type=LOCAL_PATH)
@profile_option
@set_option
@limit_option
@seed_option
@concurrency_option
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The run directory [runs/NAME].")
@click.option(
    "--shard",
    callback=shard,
    metavar="I/N",
    help="auto/N: be one of the workers that play the N shards of one run; I/N: run the I-th of N parts, from 1, in a "
    "directory of its own, for mac-run merge [runs/NAME.shard-I-of-N].",
)
@mirror_option
@click.option(
    "--pull",
    "is_pulling",
    is_flag=True,
    help="Let engines pull models that they do not have; refused where no engine can pull.",
)
@click.option(
    "--fleet",
    "held",
    type=LOCAL_PATH,
    metavar="FLEET",
    help="The file of a fleet that mac-run fleet up holds: models on a fleet use its engines.",
)
@click.option("--dry-run", is_flag=True, help="Say what would run; touch nothing.")
@click.option(
    "--prompt", callback=number, metavar="N", help="With --dry-run: print the first prompts of conversation N, from 0."
)
@click.option("--agent", metavar="ID", help="With --prompt: of this agent only.")
@quiet_option
@live_option
@click.option("--view", "is_viewed", is_flag=True, help="Show it in a browser while it runs.")
@click.option(
    "--no-open", "is_opened", is_flag=True, flag_value=False, default=True, help="With --view: open no browser."
)
def run(
    file: Path,
    profile: str | None,
    overrides: tuple[str, ...],
    limit: int | None,
    seed: str | None,
    concurrency: int | None,
    out: Path | None,
    shard: Shard | AutoShard | None,
    mirror: str | None,
    is_pulling: bool,
    held: Path | None,
    dry_run: bool,
    prompt: int | None,
    agent: str | None,
    quiet: bool,
    live: bool | None,
    is_viewed: bool,
    is_opened: bool,
) -> None:
    """Run the experiment in FILE, or go on with it where it stopped. With a section `_grid`: every combination.

    Exit codes: 0 all finished, 1 finished with failed conversations, 2 bad input, 3 interrupted and resumable,
    4 storage failed, 5 another process is at work in the run directory, 70 a bug of mac_runner.
    """
    request = RunRequest(
        file=file,
        profile=profile,
        overrides=overrides,
        limit=limit,
        seed=seed,
        out=out,
        shard=shard,
        mirror=mirror,
        can_pull=is_pulling,
    )
    if is_viewed and (dry_run or quiet):
        other = "--dry-run plays nothing" if dry_run else "--quiet prints no address"
        raise click.UsageError(f"{other}: leave --view out, and look later with mac-run view RUN")
    if not is_opened and not is_viewed:
        raise click.UsageError("--no-open is about the browser of --view: add --view, or leave it out")
    if prompt is not None and not dry_run:
        raise click.UsageError("--prompt prints what would be sent: add --dry-run; of a run, use mac-run show RUN GAME")
    if agent is not None and prompt is None:
        raise click.UsageError("--agent chooses among prompts: add --dry-run --prompt N")
    if prompt is not None:
        number = prompt
        end(lambda: preview(request, number, agent))
    if held is not None and dry_run:
        raise click.UsageError("--fleet is for a run, and --dry-run plays nothing: leave one of them out")
    if dry_run:
        end(lambda: describe(request, is_quiet=quiet))
    end(
        lambda: run_file(
            request,
            concurrency=concurrency,
            is_quiet=quiet,
            is_live=live,
            pages=Pages(is_viewed, is_opened),
            fleet=held,
        )
    )


@click.command(name="submit")
@click.argument("file", type=LOCAL_PATH)
@click.option(
    "--executor",
    type=click.Choice([*EXECUTORS]),
    required=True,
    help="Where the workers run: as a Slurm job array, as Ray tasks, or on this machine.",
)
@click.option("--nodes", callback=count, metavar="N", required=True, help="How many workers: one on each of N nodes.")
@click.option("--shards", callback=count, metavar="M", help="Cut the experiment into M shards [8 for each worker].")
@click.option("--gpus", callback=count, metavar="N", help="GPUs of each worker [as many as its node has].")
@click.option(
    "--sbatch-args", metavar="FLAGS", help="Flags of sbatch, such as '--partition=gpu --time=8:00:00'; for slurm."
)
@click.option(
    "--assume-shared",
    "is_assumed_shared",
    is_flag=True,
    help="Every node sees DIR at the same path, though its filesystem does not look shared.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The run directory [runs/NAME].")
@profile_option
@set_option
@limit_option
@seed_option
@click.option("--concurrency", callback=count, metavar="N", help="Requests of each worker in flight, at most.")
@mirror_option
@click.option("--pull", "is_pulling", is_flag=True, help="Let engines pull models that they do not have.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Print the script or the commands; touch nothing.")
@quiet_option
def submit_command(
    file: Path,
    executor: str,
    nodes: int,
    shards: int | None,
    gpus: int | None,
    sbatch_args: str | None,
    is_assumed_shared: bool,
    out: Path | None,
    profile: str | None,
    overrides: tuple[str, ...],
    limit: int | None,
    seed: str | None,
    concurrency: int | None,
    mirror: str | None,
    is_pulling: bool,
    is_dry: bool,
    quiet: bool,
) -> None:
    """Run the experiment in FILE by N workers in one run directory: each is mac-run FILE --shard auto/M --out DIR.

    A worker that is lost, or ends with 3, is started again. With slurm the command returns once the job is queued; with
    ray and local it stays until the end, and Ctrl-C ends the workers.

    Exit codes: 0 submitted or all finished, 1 finished with failed conversations, 2 bad input, 3 interrupted: the same
    command goes on, 4 storage failed.
    """
    run_request = RunRequest(
        file=file,
        profile=profile,
        overrides=overrides,
        limit=limit,
        seed=seed,
        out=out,
        mirror=mirror,
        can_pull=is_pulling,
    )
    request = SubmitRequest(
        run=run_request,
        executor=executor,
        nodes=nodes,
        shards=shards,
        gpus=gpus or 0,
        concurrency=concurrency,
        sbatch_args=sbatch_args,
        is_assumed_shared=is_assumed_shared,
    )
    end(lambda: submit(request, is_dry=is_dry, is_quiet=quiet))


@click.command(name="retry")
@click.argument("directory", metavar="RUN", type=LOCAL_PATH)
@concurrency_option
@trust_option
@quiet_option
@live_option
def retry_command(directory: Path, concurrency: int | None, is_trusted: bool, quiet: bool, live: bool | None) -> None:
    """Try the failed conversations of RUN again, from the turn that each failed on, with the same seeds.

    Their failed attempts are kept in RUN/attempts, and listed in the index and the summary. Exit codes: as for a run.
    """
    end_trusted(
        [directory],
        is_trusted,
        lambda: maintenance.retry(directory, concurrency=concurrency, is_quiet=quiet, is_live=live),
    )


policy_option = click.option(
    "--policy",
    "policies",
    metavar="MODEL=VERSION[:PATH]",
    multiple=True,
    help="The version of a trained model that plays, and its weights [the version that played the turn].",
)


@click.command(name="fork")
@click.argument("directory", metavar="RUN", type=LOCAL_PATH)
@click.argument("game", metavar="[GAME]", required=False)
@click.option("--turn", metavar="TURN", help="The turn to draw again: 12/Abel/0/0, 12/Abel, or #60 for its place.")
@click.option("--where", metavar="CONDITION", multiple=True, help="In place of GAME: all that meet these, as in show.")
@click.option("--round", "is_round", is_flag=True, help="Draw the turns again too that are open together with TURN.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set one key of the experiment.")
@click.option("--seat", "seats", metavar="AGENT.model=NAME", multiple=True, help="Another model for one agent.")
@click.option("--draws", callback=count, metavar="N", help="So many conversations, which differ in their seeds [1].")
@click.option("--reply", metavar="TEXT", help="Give this reply to TURN in place of the engine.")
@click.option("--reply-file", type=LOCAL_PATH, metavar="FILE", help="The same, from a file.")
@click.option("--rebase", "is_rebased", is_flag=True, help="Keep replies whose prompts change; marked as off-policy.")
@click.option("--value", "is_valued", is_flag=True, help="Say what the reply to TURN was worth, by N draws per arm.")
@click.option("--outcome", metavar="FIGURE", help="What counts, such as won, days or winners:town [the chance to win].")
@click.option("--for", "agent", metavar="NAME", help="Whose chance to win it is [that of who speaks].")
@click.option("--silence", "has_silence", is_flag=True, help="Compare with the default act of the environment too.")
@policy_option
@click.option("--out", type=LOCAL_PATH, metavar="DIR", help="The directory of the fork [with --value: in runs/].")
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what it would take; touch nothing.")
@trust_option
@concurrency_option
@quiet_option
@live_option
def fork_command(
    directory: Path,
    game: str | None,
    turn: str | None,
    where: tuple[str, ...],
    is_round: bool,
    overrides: tuple[str, ...],
    seats: tuple[str, ...],
    draws: int | None,
    reply: str | None,
    reply_file: Path | None,
    is_rebased: bool,
    is_valued: bool,
    outcome: str | None,
    agent: str | None,
    has_silence: bool,
    policies: tuple[str, ...],
    out: Path | None,
    is_dry: bool,
    is_trusted: bool,
    concurrency: int | None,
    quiet: bool,
    live: bool | None,
) -> None:
    """Play the conversation GAME of RUN again from TURN on, in a run directory of its own.

    What was said before TURN stays. Draw 0 has the seeds of RUN, so without a change it ends as GAME did where the
    engine honours seeds; the other draws have seeds of their own. The same command goes on with a fork that was
    stopped, and so does mac-run fork DIR.

    With --value it plays two arms: `said` keeps the reply, `resampled` draws it again, with the same seeds in both. It
    prints how the chance to win differs. DIR/value.json has the numbers.

    Exit codes: as for a run.
    """
    if is_valued:
        others = {
            "--where": where,
            "--round": is_round,
            "--set": overrides,
            "--seat": seats,
            "--reply": reply is not None,
            "--reply-file": reply_file,
            "--rebase": is_rebased,
        }
        if game is None or turn is None or draws is None:
            raise click.UsageError("--value is of one turn: name RUN, GAME, --turn TURN and --draws N")
        if found := [flag for flag, given in others.items() if given]:
            raise click.UsageError(f"--value compares what was said with other draws: leave out {', '.join(found)}")
        request = ValueRequest(
            run=directory,
            game=game,
            turn=turn,
            draws=draws,
            outcome=outcome,
            agent=agent,
            has_silence=has_silence,
            policies=forks.policies_of(policies),
        )
        end_trusted(
            [directory],
            is_trusted,
            lambda: forks.value(request, out, is_dry=is_dry, concurrency=concurrency, is_quiet=quiet, is_live=live),
        )
    if outcome is not None or agent is not None or has_silence:
        raise click.UsageError("--outcome, --for and --silence are for --value: add it, or leave them out")
    if game is None and not where:
        flags = (turn, reply, reply_file, out, draws, *where, *overrides, *seats)
        if is_round or is_rebased or is_dry or any(flag is not None for flag in flags):
            raise click.UsageError(
                "name a GAME of RUN, or conditions with --where; to go on with a fork, give no flags but --policy"
            )
        end_trusted(
            [directory],
            is_trusted,
            lambda: forks.go_on(
                directory, forks.policies_of(policies), concurrency=concurrency, is_quiet=quiet, is_live=live
            ),
        )
    if game is not None and where:
        raise click.UsageError("--where chooses conversations in place of a GAME: leave one of them out")
    if turn is None or out is None:
        raise click.UsageError(f"name the {'turn with --turn' if turn is None else 'directory of the fork with --out'}")
    if reply is not None and reply_file is not None:
        raise click.UsageError("--reply and --reply-file give the same reply: leave one of them out")
    end_trusted(
        [directory],
        is_trusted,
        lambda: forks.fork(
            ForkRequest(
                run=directory,
                turn=turn,
                game=game,
                where=where,
                is_round=is_round,
                overrides=overrides,
                seats=seats,
                draws=range(draws or 1),
                arms=(forks.arm_of(reply, reply_file),),
                is_rebased=is_rebased,
                policies=forks.policies_of(policies),
            ),
            out,
            is_dry=is_dry,
            concurrency=concurrency,
            is_quiet=quiet,
            is_live=live,
        ),
    )
