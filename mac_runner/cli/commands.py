"""The verbs and their flags. `mac-run FILE` means `mac-run run FILE`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from mac_runner import __version__
from mac_runner.cli import maintenance, result_commands, results, run_commands
from mac_runner.cli.check import check
from mac_runner.cli.doctor import diagnose
from mac_runner.cli.ending import end, end_trusted
from mac_runner.cli.fleet_commands import fleet
from mac_runner.cli.init import init, write_examples
from mac_runner.cli.options import LOCAL_PATH, count, profile_option, set_option, trust_option
from mac_runner.cli.planning_commands import calibrate_command, plan_command
from mac_runner.cli.process import Exit, report
from mac_runner.errors import ConfigError
from mac_runner.runs.setup import RunRequest
from mac_runner.secrecy import without_secrets
from mac_runner.testing.request import CheckRequest

_DEFAULT_VERB = "run"


def respelt(args: Sequence[str]) -> list[str] | None:
    """The command that does what an old one did; None for a command that there is."""
    match args:
        case ["repair", *rest]:
            return ["verify", "--repair", *rest]
        case ["value", *rest]:
            return ["fork", "--value", *rest]
        case ["fleet", "plan", *rest]:
            return ["doctor", "--fleet", *rest]
        case ["metrics", *rest]:
            return ["export", *_with_metrics(rest)]
        case ["format", *rest]:
            return ["import", *rest]
        case _:
            return None


def _with_metrics(args: Iterable[str]) -> list[str]:
    """RUN and flags as they are; what follows RUN becomes metrics."""
    words, found, names = iter(args), list[str](), list[str]()
    run = None
    for word in words:
        if word == "--to":
            found += [word, next(words, "FILE")]
        elif word.startswith("-"):
            found.append(word)
        elif run is None:
            run = word
            found.append(word)
        else:
            names.append(word)
    return [*found, *(part for name in names for part in ("--metric", name))] if names else [*found, "--metric"]


class _VerbOrFile(click.Group):
    """A group whose first argument may be an experiment file instead of a verb."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default verb where none is named, unless the first argument looks like a misspelt verb.

        Raises ConfigError with the new spelling of an old command.
        """
        if (new := respelt(args)) is not None:
            raise ConfigError(without_secrets(f"this is now spelt: {shlex.join(['mac-run', *new])}"))
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


@click.group(cls=_VerbOrFile, no_args_is_help=True, context_settings={"help_option_names": ["--help"]})
@click.version_option(__version__, prog_name="mac-run")
def cli() -> None:
    """Play many multi-agent conversations at once.

    \b
    mac-run FILE            run an experiment or a grid of them, or go on with it where it stopped
    mac-run FILE --view     the same, and show it in a browser meanwhile
    mac-run FILE --dry-run  say what would run and how much is left; with --prompt N, what would be sent first
    mac-run doctor [FILE]   check that the engines it needs answer; with --fleet: say where they would run
    mac-run plan FILE       say how long it will take, and what it will cost
    mac-run calibrate FILE  measure how long the engines it needs take
    mac-run fleet VERB      start, watch and end engines on the GPUs of this machine
    mac-run submit FILE     run it by several workers, on this machine, Slurm or Ray
    mac-run merge OUT RUN…  merge parts of an experiment, from several machines, into one run
    mac-run fork RUN GAME   play a conversation again from a turn on; with --value: say what the turn was worth
    mac-run status RUN      say how far a run is, while it runs or after
    mac-run retry RUN       try again what has failed
    mac-run verify RUN      check a run directory and play its transcripts again; with --repair: mend it
    mac-run show RUN        list its conversations; with --where only some
    mac-run show RUN GAME   print one conversation, its prompts, replies or thoughts
    mac-run view RUN        show it in a browser, while it runs or after
    mac-run publish RUN OUT write its pages as a folder for any static host, or to open by double click
    mac-run init NAME       write a new project with a game of your own
    mac-run check NAME      try an environment of your own: FILE.py:name
    mac-run export RUN      write its tables as files: CSV, JSON Lines or Parquet; with --metric: compute metrics
    mac-run report RUN      write a page of figures; with a second RUN: compare the two
    mac-run import FORMAT … turn a public benchmark, or an experiment file of another runner, into ours
    """


for _verb in (
    run_commands.run,
    run_commands.submit_command,
    run_commands.retry_command,
    run_commands.fork_command,
    result_commands.status_command,
    result_commands.show_command,
    result_commands.view_command,
    result_commands.publish_command,
    result_commands.export_command,
    result_commands.report_command,
    fleet,
    calibrate_command,
    plan_command,
):
    cli.add_command(_verb)


@cli.command(name="merge")
@click.argument("target", metavar="OUT", type=LOCAL_PATH)
@click.argument("sources", metavar="RUN...", nargs=-1, required=True, type=LOCAL_PATH)
@trust_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors and what is missing.")
def merge_command(target: Path, sources: tuple[Path, ...], is_trusted: bool, quiet: bool) -> None:
    """Make one new run directory OUT of the run directories RUN of one experiment, such as those of --shard I/N.

    They are only read. Each conversation must come from one of them; what none has can be run with --out OUT. Results
    that are damaged or lost are refused, each by name, and nothing is written.

    Exit codes: 0 merged, 1 merged and there are failed conversations, 2 they cannot be merged, 4 storage failed,
    5 one of them is being run.
    """
    end_trusted(sources, is_trusted, lambda: maintenance.merge(target, sources, is_quiet=quiet))


@cli.command(name="verify")
@click.argument("directory", metavar="RUN", type=LOCAL_PATH)
@click.option("--repair", "is_repaired", is_flag=True, help="Write damaged transcripts again from the journal instead.")
@click.option("--quiet", is_flag=True, help="With --repair: print nothing but errors.")
@trust_option
def verify_command(directory: Path, is_repaired: bool, quiet: bool, is_trusted: bool) -> None:
    """Check RUN, a run or a grid, and play every transcript again. Reads only.

    With --repair, transcripts that differ from what was acknowledged are moved aside and written again, without an
    engine. What the journal lacks is open again, and is played by the command that began the run.

    Exit codes: 0 everything is as promised, 1 something is not, 2 RUN is not a run directory. With --repair: 0 every
    transcript is what was acknowledged, 1 some are to be played again, 2 as above, 4 storage failed, 5 RUN is being
    run.
    """
    if quiet and not is_repaired:
        raise click.UsageError("--quiet is for --repair: what verify finds is what it prints")
    work = partial(maintenance.repair, is_quiet=quiet) if is_repaired else maintenance.verify
    end_trusted([directory], is_trusted, lambda: work(directory))


@cli.command(name="doctor")
@click.argument("file", metavar="[EXPERIMENT]", type=LOCAL_PATH, required=False)
@profile_option
@set_option
@click.option("--fleet", "is_planned", is_flag=True, help="Say where engines on a fleet would run; start nothing.")
def doctor_command(file: Path | None, profile: str | None, overrides: tuple[str, ...], is_planned: bool) -> None:
    """Print what is installed, and check the engines of EXPERIMENT: each is started and generates one token.

    With --fleet: print the engines that it has on the GPUs of this machine instead, of a grid those of all
    combinations: where each runs, its share of memory, its port and its command line.

    Exit codes: 0 all of it works, 1 something does not, 2 bad input; with --fleet also where engines do not fit.
    """
    if file is None:
        if profile is not None or overrides or is_planned:
            raise click.UsageError("--profile, --set and --fleet need an EXPERIMENT")
        end(lambda: diagnose(None))
    request = RunRequest(file=file, profile=profile, overrides=overrides)
    if is_planned:
        from mac_runner.cli.fleet import show_plan

        end(lambda: show_plan(request))
    end(lambda: diagnose(request))


@cli.command(name="check")
@click.argument("target", metavar="NAME")
@click.option("--settings", metavar="KEY=VALUE", multiple=True, help="A setting of the environment; may be repeated.")
@click.option("--agents", callback=count, metavar="N", help="How many agents take part [as many as it begins with].")
@click.option("--conversations", callback=count, metavar="N", default="8", help="How many are played [8].")
@click.option("--turns", callback=count, metavar="N", default="5000", help="No conversation has more turns [5000].")
@click.option("--seconds", callback=count, metavar="N", default="10", help="No step takes longer [10].")
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
    end(lambda: check(request, as_json=as_json))


@cli.command(name="init")
@click.argument("folder", metavar="[NAME]", type=LOCAL_PATH, required=False)
@click.option("--example", metavar="GAME", help="Begin with an example: werewolf, negotiation, twenty_questions.")
@click.option("--examples", type=LOCAL_PATH, metavar="DIR", help="Write all examples to DIR instead.")
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
        end(lambda: write_examples(target))
    if folder is not None:
        project = folder
        end(lambda: init(project, example))


_FORMATS = "\n    ".join(f"{name}: {found.files}" for name, found in results.import_formats().items())
_METADATA = " or ".join(f"{found.metadata} ({name})" for name, found in results.converters().items() if found.metadata)


@cli.command(
    name="import",
    help=f"""Turn files of others into ours: of a public benchmark, or an experiment of another runner.

    \b
    FORMAT, and the FILEs that it takes:
    {_FORMATS}

    A benchmark becomes the file of questions that --out names. An experiment is written there, or printed, and what it
    leaves out is listed.

    Exit codes: 0 written, also where keys are left out, 2 bad input, 4 storage failed.
    """,
)
@click.argument("name", metavar="FORMAT", type=click.Choice(list(results.import_formats())))
@click.argument("files", metavar="FILE...", type=LOCAL_PATH, nargs=-1, required=True)
@click.option("--out", type=LOCAL_PATH, metavar="FILE", help="The file to write.")
@click.option(
    "--metadata",
    type=LOCAL_PATH,
    metavar="FILE",
    help=f"What else is known of the questions: {_METADATA}.",
)
def import_command(name: str, files: tuple[Path, ...], out: Path | None, metadata: Path | None) -> None:
    """Write a file of questions or an experiment."""
    end(lambda: results.import_files(name, files, out, metadata))


def obey() -> int:
    """Do what the flags ask for. Verbs end the process; what click does itself returns its exit code."""
    try:
        # Help and version are reports as well.
        with report():
            return int(cli.main(prog_name="mac-run", standalone_mode=False) or Exit.OK)
    except click.ClickException as error:
        # It quotes words of the command line.
        error.message = without_secrets(error.message)  # type: ignore[misc]
        with suppress(OSError):
            error.show()
        return error.exit_code
