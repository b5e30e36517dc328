"""The verbs of `mac-run`. `mac-run FILE` means `mac-run run FILE`, and an old spelling is answered with the new one."""

from __future__ import annotations

import os
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from mac_runner import __version__
from mac_runner.cli.process import Exit, report, without_collections
from mac_runner.errors import ConfigError
from mac_runner.secrecy import without_secrets

_DEFAULT_VERB: Final = "run"


class _Listed(NamedTuple):
    """A verb as `--help` lists it. Its module is imported when it is asked for."""

    module: str
    arguments: str
    words: str


_GROUPS: Final = {
    "Play": {
        "run": _Listed("play", "FILE", "play an experiment or a grid, or go on with it"),
        "retry": _Listed("play", "RUN", "try again what has failed"),
        "fork": _Listed("play", "RUN GAME", "play a conversation again from one of its turns on"),
    },
    "Look": {
        "status": _Listed("look", "RUN", "say how far a run is, while it runs or after"),
        "show": _Listed("look", "RUN [GAME]", "list its conversations, or print one of them"),
        "view": _Listed("pages", "RUN", "show it in a browser, while it runs or after"),
        "report": _Listed("pages", "RUN [RUN2]", "write a page of figures, or compare two runs"),
        "export": _Listed("look", "RUN", "write its tables as files, or compute metrics"),
        "publish": _Listed("pages", "RUN OUT", "write its pages as a folder for any static host"),
    },
    "Check": {
        "doctor": _Listed("checks", "[FILE]", "check that the engines it needs answer"),
        "plan": _Listed("planning", "FILE", "say how long it will take, and what it will cost"),
        "calibrate": _Listed("engines", "FILE", "measure how long the engines it needs take"),
        "verify": _Listed("checks", "RUN", "check a run and play it again, or repair it"),
    },
    "Own games": {
        "init": _Listed("games", "NAME", "write a new project with a game of your own"),
        "check": _Listed("games", "NAME", "try an environment of your own: FILE.py:name"),
        "import": _Listed("games", "FORMAT FILE", "turn a benchmark, or another runner's file, into ours"),
    },
    "Clusters": {
        "submit": _Listed("clusters", "FILE", "run it by several workers, here, on Slurm or Ray"),
        "merge": _Listed("clusters", "OUT RUN...", "make one run of parts from several machines"),
        "fleet": _Listed("engines", "VERB", "hold engines on the GPUs of this machine"),
    },
}
_RESPELT: Final = {
    "repair": "verify RUN --repair",
    "value": "fork RUN GAME --value",
    "metrics": "export RUN --metric NAME",
    "format": "import FORMAT FILE",
    "fleet plan": "doctor FILE --fleet",
}
"""Old commands, each with what does the same."""
_VERBS: Final = {name: listed for verbs in _GROUPS.values() for name, listed in verbs.items()}


def _shown(name: str) -> str:
    return f"{name} {_VERBS[name].arguments}"


_WIDTH: Final = max(len(_shown(name)) for name in _VERBS)


class _Verbs(click.Group):
    """A group whose first argument may be an experiment file instead of a verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb, imported here: no verb waits for what others need."""
        if cmd_name not in _VERBS:
            return None
        with without_collections():
            found: click.Command = import_module(f"mac_runner.cli.{_VERBS[cmd_name].module}").VERBS[cmd_name]
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(_shown(name).ljust(_WIDTH), verb.words) for name, verb in verbs.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default verb where none is named, unless the first argument looks like a misspelt verb.

        Raises ConfigError with the new spelling of an old command.
        """
        for old, new in _RESPELT.items():
            if args[: len(old.split())] == old.split() and not ctx.resilient_parsing:
                raise ConfigError(f"mac-run {old} is now spelt: mac-run {new}")
        if args and args[0] not in _VERBS and args[0] not in ("--help", "--version"):
            if args[0].isalpha() and not os.path.lexists(args[0]):
                near = get_close_matches(args[0], _VERBS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"the verbs are {', '.join(sorted(_VERBS))}"
                ctx.fail(f"there is no verb and no file {args[0]!r}; {hint}")
            args = [_DEFAULT_VERB, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs and flags that begin so; a file where there are none."""
        return super().shell_complete(ctx, incomplete) or [CompletionItem(incomplete, type="file")]


@click.group(
    cls=_Verbs,
    no_args_is_help=True,
    options_metavar="",
    subcommand_metavar="FILE | VERB ...",
    context_settings={"help_option_names": ["--help"]},
)
@click.version_option(__version__, prog_name="mac-run")
def cli() -> None:
    """Play many multi-agent conversations at once.

    mac-run FILE means mac-run run FILE. mac-run VERB --help says all of a verb.
    """


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
