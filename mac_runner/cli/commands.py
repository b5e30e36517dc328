"""The verbs and their flags. `mac-run FILE` means `mac-run run FILE`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from mac_runner import __version__
from mac_runner.cli import fork as forks
from mac_runner.cli import maintenance, results
from mac_runner.cli.check import check
from mac_runner.cli.doctor import diagnose
from mac_runner.cli.ending import end as _end
from mac_runner.cli.fleet_commands import fleet
from mac_runner.cli.init import init, write_examples
from mac_runner.cli.planning_commands import calibrate_command, plan_command
from mac_runner.cli.process import Exit, report
from mac_runner.cli.run import describe, preview
from mac_runner.cli.run import run as run_file
from mac_runner.cli.show import View, list_conversations, show
from mac_runner.cli.submit import EXECUTORS, SubmitRequest, submit
from mac_runner.cli.view import Pages, view, view_beside_run
from mac_runner.config import whole_number
from mac_runner.data.files import CSV, FORMATS
from mac_runner.errors import ConfigError
from mac_runner.plan import AutoShard, Shard, parse_shard
from mac_runner.reports import ALL
from mac_runner.runs.export import ExportRequest
from mac_runner.runs.fork_plan import ForkRequest
from mac_runner.runs.forks import ValueRequest
from mac_runner.runs.setup import RunRequest
from mac_runner.runs.trust import trust
from mac_runner.testing.request import CheckRequest
from mac_runner.viewer.listening import Address

_DEFAULT_VERB = "run"


class _VerbOrFile(click.Group):
    """A group whose first argument may be an experiment file instead of a verb."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default verb where none is named, unless the first argument looks like a misspelt verb."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "--version"):
            if args[0].isalpha() and not os.path.lexists(args[0]):
                near = get_close_matches(args[0], self.commands, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"the verbs are {', '.join(sorted(self.commands))}"
                ctx.fail(f"there is no verb and no file {args[0]!r}; {hint}")
            args = [_DEFAULT_VERB, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs and flags that begin so; a file where there are none."""
        return super().shell_complete(ctx, incomplete) or [CompletionItem(incomplete, type="file")]


def _shard(ctx: click.Context, param: click.Parameter, value: str | None) -> Shard | AutoShard | None:
    """The value of `--shard`."""
    try:
        return None if value is None else parse_shard(value)
    except ConfigError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The value of `--limit` or `--concurrency`."""
    try:
        return None if value is None else whole_number(param.opts[0], value, at_least=1)
    except ConfigError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _number(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The value of `--prompt`."""
    try:
        return None if value is None else whole_number(param.opts[0], value, at_least=0)
    except ConfigError as error:
        raise click.BadParameter(str(error), ctx, param) from error


_mirror_option = click.option(
    "--mirror", metavar="URL", help="Copy each run directory that has ended to URL, such as s3://bucket/study."
)
_trust_option = click.option(
    "--trust", "is_trusted", is_flag=True, help="Import the code that RUN names, which is not built in."
)


def _end_trusted(directories: Iterable[Path], is_trusted: bool, work: Callable[[], Exit]) -> NoReturn:
    """Do the work of a verb that reads run directories, after importing their code if it is trusted."""

    def trusted() -> Exit:
        if is_trusted:
            trust(directories)
        return work()

    _end(trusted)


@click.group(cls=_VerbOrFile, no_args_is_help=True, context_settings={"help_option_names": ["--help"]})
@click.version_option(__version__, prog_name="mac-run")
def cli() -> None:
    """Play many multi-agent conversations at once.

    \b
    mac-run FILE            run an experiment or a grid of them, or go on with it where it stopped
    mac-run FILE --view     the same, and show it in a browser meanwhile
    mac-run FILE --dry-run  say what would run and how much is left; with --prompt N, what would be sent first
    mac-run doctor [FILE]   check that the engines it needs answer
    mac-run plan FILE       say how long it will take, and what it will cost
    mac-run calibrate FILE  measure how long the engines it needs take
    mac-run fleet VERB      plan, start, watch and end engines on the GPUs of this machine
    mac-run submit FILE     run it by several workers, on this machine, Slurm or Ray
    mac-run merge OUT RUN…  merge the shards of an experiment into one run
    mac-run fork RUN GAME   play a conversation again from one of its turns on
    mac-run value RUN GAME  say what a turn was worth, by forks of it
    mac-run status RUN      say how far a run is, while it runs or after
    mac-run retry RUN       try again what has failed
    mac-run repair RUN      write again what is damaged in a run directory
    mac-run metrics RUN …   compute numbers of its conversations by functions of yours
    mac-run verify RUN      check a run directory and play its transcripts again
    mac-run show RUN        list its conversations; with --where only some
    mac-run show RUN GAME   print one conversation, its prompts, replies or thoughts
    mac-run view RUN        show it in a browser, while it runs or after
    mac-run publish RUN OUT write its pages as a folder for any static host, or to open by double click
    mac-run init NAME       write a new project with a game of your own
    mac-run check NAME      try an environment of your own: FILE.py:name
    mac-run export RUN      write its tables as files: CSV, JSON Lines or Parquet
    mac-run report RUN      write a page of figures; with a second RUN: compare the two
    mac-run format FORMAT   turn a public benchmark into questions to discuss
    mac-run import RUNNER   turn an experiment file of another runner into one of ours
    """


@cli.command(name=_DEFAULT_VERB)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--profile", metavar="NAME", help="One of the file's profiles; the file names its default.")
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set one key, such as game.lobby=classic-7."
)
@click.option("--limit", callback=_count, metavar="N", help="Run the first N conversations at most.")
@click.option("--seed", metavar="N", help="The experiment's seed.")
@click.option("--concurrency", callback=_count, metavar="N", help="Requests in flight at once, at most.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The run directory [runs/NAME].")
@click.option(
    "--shard",
    callback=_shard,
    metavar="I/N",
    help="Run the I-th of N parts only, from 1 [in runs/NAME.shard-I-of-N]; auto/N: those that no other worker takes.",
)
@_mirror_option
@click.option(
    "--pull",
    "is_pulling",
    is_flag=True,
    help="Let engines pull models that they do not have; refused where no engine can pull.",
)
@click.option(
    "--fleet",
    "held",
    type=click.Path(path_type=Path),
    metavar="FLEET",
    help="The file of a fleet that mac-run fleet up holds: models on a fleet use its engines.",
)
@click.option("--dry-run", is_flag=True, help="Say what would run; touch nothing.")
@click.option(
    "--prompt", callback=_number, metavar="N", help="With --dry-run: print the first prompts of conversation N, from 0."
)
@click.option("--agent", metavar="ID", help="With --prompt: of this agent only.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--live/--no-live", default=None, help="Show the pools while it runs [on a terminal].")
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
        _end(lambda: preview(request, number, agent))
    if held is not None and dry_run:
        raise click.UsageError("--fleet is for a run, and --dry-run plays nothing: leave one of them out")
    if dry_run:
        _end(lambda: describe(request, is_quiet=quiet))
    _end(
        lambda: run_file(
            request,
            concurrency=concurrency,
            is_quiet=quiet,
            is_live=live,
            pages=Pages(is_viewed, is_opened),
            fleet=held,
        )
    )


@cli.command(name="submit")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--executor",
    type=click.Choice([*EXECUTORS]),
    required=True,
    help="Where the workers run: as a Slurm job array, as Ray tasks, or on this machine.",
)
@click.option("--nodes", callback=_count, metavar="N", required=True, help="How many workers: one on each of N nodes.")
@click.option("--shards", callback=_count, metavar="M", help="Cut the experiment into M shards [8 for each worker].")
@click.option("--gpus", callback=_count, metavar="N", help="GPUs of each worker [as many as its node has].")
@click.option(
    "--sbatch-args", metavar="FLAGS", help="Flags of sbatch, such as '--partition=gpu --time=8:00:00'; for slurm."
)
@click.option(
    "--assume-shared",
    "is_assumed_shared",
    is_flag=True,
    help="Every node sees DIR at the same path, though its filesystem does not look shared.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The directory of shards [runs/NAME].")
@click.option("--profile", metavar="NAME", help="One of the file's profiles; the file names its default.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set one key of the file.")
@click.option("--limit", callback=_count, metavar="N", help="Run the first N conversations at most.")
@click.option("--seed", metavar="N", help="The experiment's seed.")
@click.option("--concurrency", callback=_count, metavar="N", help="Requests of each worker in flight, at most.")
@_mirror_option
@click.option("--pull", "is_pulling", is_flag=True, help="Let engines pull models that they do not have.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Print the script or the commands; touch nothing.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
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
    """Run the experiment in FILE by N workers that share its shards: each is mac-run FILE --shard auto/M.

    A worker that is lost, or ends with 3, is started again. The last one merges the shards, so DIR becomes the run
    directory. With slurm the command returns once the job is queued; with ray and local it stays until the end, and
    Ctrl-C ends the workers.

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
    _end(lambda: submit(request, is_dry=is_dry, is_quiet=quiet))


@cli.command(name="merge")
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.argument("sources", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@_trust_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors and what is missing.")
def merge_command(target: Path, sources: tuple[Path, ...], is_trusted: bool, quiet: bool) -> None:
    """Make one new run directory OUT of the run directories RUN of one experiment, such as its shards.

    They are only read. Each conversation must come from one of them; what none has can be run with --out OUT. Results
    that are damaged or lost are refused, each by name, and nothing is written.

    Exit codes: 0 merged, 1 merged and there are failed conversations, 2 they cannot be merged, 4 storage failed,
    5 one of them is being run.
    """
    _end_trusted(sources, is_trusted, lambda: maintenance.merge(target, sources, is_quiet=quiet))


@cli.command(name="retry")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--concurrency", callback=_count, metavar="N", help="Requests in flight at once, at most.")
@_trust_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--live/--no-live", default=None, help="Show the pools while it runs [on a terminal].")
def retry_command(directory: Path, concurrency: int | None, is_trusted: bool, quiet: bool, live: bool | None) -> None:
    """Try the failed conversations of RUN again, from the turn that each failed on, with the same seeds.

    Their failed attempts are kept in RUN/attempts, and listed in the index and the summary. Exit codes: as for a run.
    """
    _end_trusted(
        [directory],
        is_trusted,
        lambda: maintenance.retry(directory, concurrency=concurrency, is_quiet=quiet, is_live=live),
    )


@cli.command(name="fork")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("game", metavar="[GAME]", required=False)
@click.option("--turn", metavar="TURN", help="The turn to draw again: 12/Abel/0/0, 12/Abel, or #60 for its place.")
@click.option("--where", metavar="CONDITION", multiple=True, help="In place of GAME: all that meet these, as in show.")
@click.option("--round", "is_round", is_flag=True, help="Draw the turns again too that are open together with TURN.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set one key of the experiment.")
@click.option("--seat", "seats", metavar="AGENT.model=NAME", multiple=True, help="Another model for one agent.")
@click.option("--draws", callback=_count, metavar="N", help="So many conversations, which differ in their seeds [1].")
@click.option("--reply", metavar="TEXT", help="Give this reply to TURN in place of the engine.")
@click.option("--reply-file", type=click.Path(path_type=Path), metavar="FILE", help="The same, from a file.")
@click.option("--rebase", "is_rebased", is_flag=True, help="Keep replies whose prompts change; marked as off-policy.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The directory of the fork.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what it would take; touch nothing.")
@_trust_option
@click.option("--concurrency", callback=_count, metavar="N", help="Requests in flight at once, at most.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--live/--no-live", default=None, help="Show the pools while it runs [on a terminal].")
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

    Exit codes: as for a run.
    """
    if game is None and not where:
        flags = (turn, reply, reply_file, out, draws, *where, *overrides, *seats)
        if is_round or is_rebased or is_dry or any(flag is not None for flag in flags):
            raise click.UsageError("name a GAME of RUN, or conditions with --where; without flags a fork goes on")
        _end_trusted(
            [directory],
            is_trusted,
            lambda: forks.go_on(directory, concurrency=concurrency, is_quiet=quiet, is_live=live),
        )
    if game is not None and where:
        raise click.UsageError("--where chooses conversations in place of a GAME: leave one of them out")
    if turn is None or out is None:
        raise click.UsageError(f"name the {'turn with --turn' if turn is None else 'directory of the fork with --out'}")
    if reply is not None and reply_file is not None:
        raise click.UsageError("--reply and --reply-file give the same reply: leave one of them out")
    _end_trusted(
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
            ),
            out,
            is_dry=is_dry,
            concurrency=concurrency,
            is_quiet=quiet,
            is_live=live,
        ),
    )


@cli.command(name="value")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("game", metavar="GAME")
@click.option("--turn", metavar="TURN", required=True, help="The turn: 12/Abel/0/0, 12/Abel, or #60 for its place.")
@click.option("--draws", callback=_count, metavar="N", required=True, help="So many conversations of each arm.")
@click.option("--outcome", metavar="FIGURE", help="What counts, such as won, days or winners:town [the chance to win].")
@click.option("--for", "agent", metavar="NAME", help="Whose chance to win it is [that of who speaks].")
@click.option("--silence", "has_silence", is_flag=True, help="Compare with the default act of the environment too.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The directory of the fork [in runs/].")
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what it would take; touch nothing.")
@_trust_option
@click.option("--concurrency", callback=_count, metavar="N", help="Requests in flight at once, at most.")
@click.option("--quiet", is_flag=True, help="Print the value alone.")
@click.option("--live/--no-live", default=None, help="Show the pools while it runs [on a terminal].")
def value_command(
    directory: Path,
    game: str,
    turn: str,
    draws: int,
    outcome: str | None,
    agent: str | None,
    has_silence: bool,
    out: Path | None,
    is_dry: bool,
    is_trusted: bool,
    concurrency: int | None,
    quiet: bool,
    live: bool | None,
) -> None:
    """Print what the reply to TURN of GAME was worth: how the chance to win differs if it is drawn again.

    It plays a fork with two arms: `said` keeps the reply, `resampled` draws it again. The draws of both share their
    seeds. The same command goes on with a fork that was stopped. DIR/value.json has the numbers.

    Exit codes: as for a run.
    """
    request = ValueRequest(
        run=directory,
        game=game,
        turn=turn,
        draws=draws,
        outcome=outcome,
        agent=agent,
        has_silence=has_silence,
    )
    _end_trusted(
        [directory],
        is_trusted,
        lambda: forks.value(request, out, is_dry=is_dry, concurrency=concurrency, is_quiet=quiet, is_live=live),
    )


@cli.command(name="repair")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@_trust_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def repair_command(directory: Path, is_trusted: bool, quiet: bool) -> None:
    """Move damaged transcripts of RUN, a run or a grid, aside and write them again from the journal.

    No engine is started. What the journal lacks is open again, and is played by the command that began the run.

    Exit codes: 0 every transcript is what was acknowledged, 1 some are to be played again, 2 RUN is not a run
    directory, 4 storage failed, 5 it is being run.
    """
    _end_trusted([directory], is_trusted, lambda: maintenance.repair(directory, is_quiet=quiet))


@cli.command(name="status")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status_command(directory: Path, as_json: bool) -> None:
    """Print how far RUN is, during the run or after it. Reads only.

    Exit codes: 0 printed, 2 RUN is not a run directory.
    """
    _end(lambda: results.status(directory, as_json=as_json))


@cli.command(name="verify")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@_trust_option
def verify_command(directory: Path, is_trusted: bool) -> None:
    """Check the run directory RUN, and play every transcript again.

    Exit codes: 0 everything is as promised, 1 something is not, 2 RUN is not a run directory.
    """
    _end_trusted([directory], is_trusted, lambda: maintenance.verify(directory))


@cli.command(name="show")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("game", metavar="[GAME]", required=False)
@click.option("--where", metavar="CONDITION", multiple=True, help="List only these; in quotes: 'days>5', failed.")
@click.option("--limit", callback=_count, metavar="N", help="List the first N at most.")
@click.option("--seat", metavar="NAME", help="Only what this agent saw, was sent, replied or thought.")
@click.option("--truth", "has_truth", is_flag=True, help="Say who was what, which claims were true, who lied.")
@click.option("--turns", "has_turns", is_flag=True, help="Its turns instead, in the order in which they were answered.")
@click.option("--prompt", metavar="TURN", help="What was sent for a turn, such as 12/Abel/0/0 or 12/Abel.")
@click.option("--raw", metavar="TURN", is_flag=False, flag_value=ALL, help="What came back for a turn, or for all.")
@click.option("--thoughts", "has_thoughts", is_flag=True, help="What was thought at each turn, beside what was said.")
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write it as one page that can be mailed."
)
@_trust_option
def show_command(
    directory: Path,
    game: str | None,
    where: tuple[str, ...],
    limit: int | None,
    seat: str | None,
    has_truth: bool,
    has_turns: bool,
    prompt: str | None,
    raw: str | None,
    has_thoughts: bool,
    html: Path | None,
    is_trusted: bool,
) -> None:
    """List the conversations of RUN, a run or a grid. With GAME: print that one as text.

    GAME is a task id or its number, from 0. A CONDITION compares a column (= != < <= > >=) or is `failed` or
    `finished`; several must all be met. On a terminal what models wrote is made printable; in a file or a pipe
    --prompt and --raw TURN give it exactly.

    Exit codes: 0 printed, 2 RUN, GAME or a flag is wrong, or this version would send another prompt.
    """
    views = {
        "--turns": has_turns,
        "--prompt": prompt is not None,
        "--raw": raw is not None,
        "--thoughts": has_thoughts,
        "--html": html is not None,
    }
    flags = {"--seat": seat is not None, "--truth": has_truth, **views}
    given = [flag for flag, is_given in flags.items() if is_given]
    if game is None:
        if given:
            raise click.UsageError(
                f"{given[0]} is about one conversation: name it, as in mac-run show RUN 0 {given[0]}"
            )
        _end_trusted([directory], is_trusted, lambda: list_conversations(directory, where=where, limit=limit))
    for flag, is_given in (("--where", bool(where)), ("--limit", limit is not None)):
        if is_given:
            raise click.UsageError(
                f"{flag} lists conversations, so it has no effect with a GAME: leave one of them out"
            )
    chosen = [flag for flag in given if views.get(flag)]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} show different things of a conversation: leave one of them out")
    for flag in ("--seat", "--truth"):
        if flag in given and chosen and (chosen == ["--turns"] or flag == "--truth"):
            what = "shows everything" if chosen == ["--html"] else "shows turns as they were"
            raise click.UsageError(f"{chosen[0]} {what}, so {flag} has no effect: leave it out")
    if html is not None:
        from mac_runner.cli.publish import show_page

        to = html
        _end_trusted([directory], is_trusted, lambda: show_page(directory, game, seat, to))
    view = View(seat=seat, has_truth=has_truth, has_turns=has_turns, has_thoughts=has_thoughts, prompt=prompt, raw=raw)
    _end_trusted([directory], is_trusted, lambda: show(directory, game, view))


@cli.command(name="view")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", default=0, help="The port [one that is free].")
@click.option("--no-open", "is_opened", is_flag=True, flag_value=False, default=True, help="Open no browser.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Where to listen [127.0.0.1].")
@click.option("--allow-host", "names", metavar="NAME", multiple=True, help="Another name of this server: NAME[:PORT].")
@click.option("--beside-run", "descriptor", type=int, hidden=True)
@_trust_option
def view_command(
    directory: Path,
    port: int,
    is_opened: bool,
    host: str,
    names: tuple[str, ...],
    descriptor: int | None,
    is_trusted: bool,
) -> None:
    """Show RUN, a run or a grid, in a browser, while it runs or after.

    Prints an address that only this user knows, and serves it until Ctrl-C. Reads only.

    Exit codes: 0 ended by Ctrl-C, 2 RUN is not a run directory, or the address cannot be had.
    """
    if descriptor is not None:
        inherited = descriptor
        _end(lambda: view_beside_run(directory, inherited, is_opened=is_opened))
    address = Address(host=host, port=port, names=names)
    _end_trusted([directory], is_trusted, lambda: view(directory, address, is_opened=is_opened, is_trusted=is_trusted))


@cli.command(name="publish")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--no-thoughts", "has_thoughts", is_flag=True, flag_value=False, default=True, help="Leave thoughts out.")
@click.option("--no-prompts", "has_prompts", is_flag=True, flag_value=False, default=True, help="Leave prompts out.")
@click.option("--only", metavar="CONDITION", multiple=True, help="Only these, as show --where takes them: 'days>5'.")
@click.option("--sample", callback=_count, metavar="N", help="Only N of them [all, or 1000 of more than 5000].")
@_trust_option
def publish_command(
    directory: Path,
    out: Path,
    has_thoughts: bool,
    has_prompts: bool,
    only: tuple[str, ...],
    sample: int | None,
    is_trusted: bool,
) -> None:
    """Write the pages of RUN, a run or a grid, to the folder OUT: it opens by double click and on any static host.

    OUT is new, or a former publication, which is replaced. Addresses of engines, paths and names of machines never
    go out. A run that is under way is published as it is now.

    Exit codes: 0 written, 2 RUN is not a run directory or OUT is something else, 4 OUT could not be written.
    """
    # Here, because every verb would wait for the pages.
    from mac_runner.cli.publish import publish_pages
    from mac_runner.viewer.publish import PublishRequest

    request = PublishRequest(
        directory=directory, out=out, has_thoughts=has_thoughts, has_prompts=has_prompts, only=only, sample=sample
    )
    _end_trusted([directory], is_trusted, lambda: publish_pages(request))


@cli.command(name="doctor")
@click.argument("file", metavar="[EXPERIMENT]", type=click.Path(path_type=Path), required=False)
@click.option("--profile", metavar="NAME", help="One of the file's profiles; the file names its default.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set one key of the file.")
def doctor_command(file: Path | None, profile: str | None, overrides: tuple[str, ...]) -> None:
    """Print what is installed, and check the engines of EXPERIMENT: each is started and generates one token.

    Exit codes: 0 all of it works, 1 something does not, 2 bad input.
    """
    if file is None and (profile is not None or overrides):
        raise click.UsageError("--profile and --set need an EXPERIMENT")
    request = None if file is None else RunRequest(file=file, profile=profile, overrides=overrides)
    _end(lambda: diagnose(request))


cli.add_command(fleet)
cli.add_command(calibrate_command)
cli.add_command(plan_command)


@cli.command(name="check")
@click.argument("target", metavar="NAME")
@click.option("--settings", metavar="KEY=VALUE", multiple=True, help="A setting of the environment; may be repeated.")
@click.option("--agents", callback=_count, metavar="N", help="How many agents take part [as many as it begins with].")
@click.option("--conversations", callback=_count, metavar="N", default="8", help="How many are played [8].")
@click.option("--turns", callback=_count, metavar="N", default="5000", help="No conversation has more turns [5000].")
@click.option("--seconds", callback=_count, metavar="N", default="10", help="No step takes longer [10].")
@click.option("--policy", metavar="NAME", help="The scripted player whose replies are used [random].")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def check_command(
    target: str,
    settings: tuple[str, ...],
    agents: int | None,
    conversations: int,
    turns: int,
    seconds: int,
    policy: str | None,
    as_json: bool,
) -> None:
    """Try whether an environment keeps what every environment promises, with random and hostile replies.

    NAME is FILE.py:name, package.module:Name, the name of an installed environment, or an experiment file. The
    environment is imported and played in processes of its own; no engine is started and nothing is written.

    Exit codes: 0 all promises are kept, 1 one is not, 2 it cannot be loaded.
    """
    request = CheckRequest(target, settings, agents, conversations, turns, seconds, policy)
    _end(lambda: check(request, as_json=as_json))


@cli.command(name="init")
@click.argument("folder", metavar="[NAME]", type=click.Path(path_type=Path), required=False)
@click.option("--example", metavar="GAME", help="Begin with an example: werewolf, negotiation, twenty_questions.")
@click.option("--examples", type=click.Path(path_type=Path), metavar="DIR", help="Write all examples to DIR instead.")
def init_command(folder: Path | None, example: str | None, examples: Path | None) -> None:
    """Write a new project to the folder NAME: a game of your own, its experiment, its tests.

    The folder is made; one that holds files is refused. With --examples: write the examples and experiments that come
    with the package.

    Exit codes: 0 written, 2 bad input, 4 storage failed.
    """
    if (folder is None) == (examples is None):
        raise click.UsageError("name the folder of a new project, or give --examples DIR")
    if examples is not None:
        if example is not None:
            raise click.UsageError("--example begins a project, so it has no effect with --examples: leave one out")
        target = examples
        _end(lambda: write_examples(target))
    if folder is not None:
        project = folder
        _end(lambda: init(project, example))


@cli.command(name="export")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), metavar="DIR", required=True, help="Where the files are put.")
@click.option(
    "--tables",
    multiple=True,
    metavar="NAME,...",
    help="Tables, such as turns; may be repeated [all that are not optional].",
)
@click.option("--format", "formats", type=click.Choice(FORMATS), multiple=True, help="May be repeated [csv].")
@click.option("--follow", "is_followed", is_flag=True, help="Go on as conversations end, until the run has ended.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", default=1, help="How many processes write [1].")
@_trust_option
def export_command(
    directory: Path,
    to: Path,
    tables: tuple[str, ...],
    formats: tuple[str, ...],
    is_followed: bool,
    jobs: int,
    is_trusted: bool,
) -> None:
    """Write the tables of RUN, a run or a grid, as files: conversations, agents, turns, events and more.

    RUN is only read, and may be under way: conversations that have not ended are left out. CSV is one file for each
    table; one that is there already is not replaced. Parquet and JSON Lines are files of 2,000 conversations each: the
    same command again writes those that changed.

    Exit codes: 0 written, 2 RUN or a flag is wrong, 3 interrupted: the same command goes on, 4 storage failed.
    """
    names = [name for text in tables for name in text.split(",") if name]
    request = ExportRequest(
        directories=[directory], to=to, tables=names, formats=formats or (CSV,), jobs=jobs, is_trusted=is_trusted
    )
    _end_trusted([directory], is_trusted, lambda: results.export_tables(request, is_followed=is_followed))


@cli.command(name="report")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("other", metavar="[RUN2]", type=click.Path(path_type=Path), required=False)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The HTML page [RUN.report.html].")
@click.option("--pdf", "has_pdf", is_flag=True, help="Print it as PDF too, by Chromium.")
@click.option("--json", "numbers", type=click.Path(path_type=Path), metavar="FILE", help="Write the numbers as JSON.")
@click.option("--viewer", metavar="ADDRESS", default="", help="Link to a published run, such as published/index.html.")
@_trust_option
def report_command(
    directory: Path,
    other: Path | None,
    out: Path | None,
    has_pdf: bool,
    numbers: Path | None,
    viewer: str,
    is_trusted: bool,
) -> None:
    """Write a page of figures about RUN, a run or a grid, or about RUN and RUN2 compared.

    The page is one HTML file without JavaScript: figures, the numbers behind each, how they were computed, and the
    experiment. RUN is only read, and may be under way. Needs the extra: pip install 'mac_runner[report]'.

    Exit codes: 0 written, 2 RUN or a flag is wrong or the extra is missing, 4 storage failed.
    """
    # Here, because every verb would wait for the figures.
    from mac_runner.cli.report import write_report
    from mac_runner.runs.report_files import ReportRequest

    directories = [directory] if other is None else [directory, other]
    request = ReportRequest(directories=directories, out=out, numbers=numbers, has_pdf=has_pdf, viewer=viewer)
    _end_trusted(directories, is_trusted, lambda: write_report(request))


@cli.command(name="metrics")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("names", metavar="[METRIC]...", nargs=-1)
@click.option(
    "--to", type=click.Path(path_type=Path), metavar="FILE", help="Write a JSON object for each conversation."
)
@_trust_option
def metrics_command(directory: Path, names: tuple[str, ...], to: Path | None, is_trusted: bool) -> None:
    """Compute metrics over the finished conversations of RUN: each METRIC, such as ./metrics.py:words.

    Without a METRIC, those that RUN names; that imports code, so it takes --trust. RUN is only read.

    Exit codes: 0 computed, 2 RUN or a flag is wrong, 4 storage failed.
    """
    _end_trusted([directory], is_trusted, lambda: results.compute_metrics(directory, names, to))


_FORMATS = " or ".join(f"{name} ({converter.files})" for name, converter in results.formats().items())
_METADATA = " or ".join(f"{found.metadata} ({name})" for name, found in results.formats().items() if found.metadata)


@cli.command(
    name="format",
    help=f"""Turn the release files of a public benchmark into one file of questions.

    FORMAT is {_FORMATS}.
    Exit codes: 0 written, 2 bad input, 4 storage failed.
    """,
)
@click.argument("name", metavar="FORMAT", type=click.Choice(list(results.formats())))
@click.argument("files", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The question file to write."
)
@click.option(
    "--metadata",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"What else is known of the questions: {_METADATA}.",
)
def format_command(name: str, files: tuple[Path, ...], out: Path, metadata: Path | None) -> None:
    """Write a file of questions."""
    _end(lambda: results.format_questions(name, files, out, metadata))


_RUNNERS = "; ".join(f"of {name}: {importer.files}" for name, importer in results.importers().items())


@cli.command(
    name="import",
    help=f"""Turn an experiment file of another runner into one of ours, and list what it leaves out.

    FILE is, {_RUNNERS}. Without --out the experiment is printed.

    Exit codes: 0 written, also where keys are left out, 2 bad input, 4 storage failed.
    """,
)
@click.argument("runner", metavar="RUNNER", type=click.Choice(list(results.importers())))
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The experiment file to write.")
def import_command(runner: str, file: Path, out: Path | None) -> None:
    """Write an experiment file."""
    _end(lambda: results.import_experiment(runner, file, out))


def obey() -> int:
    """Do what the flags ask for. Verbs end the process; what click does itself returns its exit code."""
    try:
        # Help and version are reports as well.
        with report():
            return int(cli.main(prog_name="mac-run", standalone_mode=False) or Exit.OK)
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        return error.exit_code
