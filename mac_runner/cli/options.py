"""A verb is a dataclass: its fields are arguments and options, its docstring is the help, `work` is what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields, replace
from inspect import get_annotations, getdoc
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_type_hints

import click

from mac_runner.cli.process import Exit, end, say
from mac_runner.config import Written, whole_number
from mac_runner.errors import ConfigError
from mac_runner.plan import AutoShard, Shard, parse_shard
from mac_runner.runs.setup import RunRequest
from mac_runner.store.mirror import NOT_HERE, is_url

_T = TypeVar("_T")


def argument(metavar: str, **settings: Any) -> Any:
    """A field that is an argument; a `click.Argument` takes the settings."""
    return field(default=None, metadata={"metavar": metavar, "cls": click.Argument, **settings})


def option(words: str, metavar: str | None = None, default: object = None, *, flag: str = "", **settings: Any) -> Any:
    """A field that is an option, called as the field is or `flag`; a `click.Option` takes the settings."""
    shown = {"metavar": metavar} if metavar else {}
    return field(default=default, metadata={"help": words, "flag": flag, "cls": click.Option, **shown, **settings})


def options(words: str, metavar: str, *, flag: str = "", **settings: Any) -> Any:
    """A field that is an option which may be repeated."""
    return option(words, metavar, (), flag=flag, multiple=True, **settings)


def switch(words: str, *, flag: str = "", **settings: Any) -> Any:
    """A field that is true where the option is given."""
    return option(words, default=False, flag=flag, is_flag=True, **settings)


@dataclass(frozen=True, kw_only=True)
class Verb:
    """What the command line asks for."""

    def work(self) -> Exit | None:
        """Do it. None is OK. Raises ConfigError where options do not go together."""
        raise NotImplementedError

    def trusted(self) -> Iterable[Path]:
        """The run directories whose code is imported first."""
        return ()

    def given(self, *names: str) -> list[str]:
        """The flags of these fields where they were given, in this order."""
        declared = {each.name: each for each in fields(self)}
        return [_flag(declared[name]) for name in names if getattr(self, name) != declared[name].default]

    def typed(self, *names: str) -> list[str]:
        """The same as another command takes them."""
        words = []
        for name in names:
            value = getattr(self, name)
            for flag in self.given(name):
                values = value if isinstance(value, tuple) else (value,)
                words += [flag if each is True else f"{flag}={each}" for each in values]
        return words


@dataclass(frozen=True, kw_only=True)
class Reading(Verb):
    """A verb that reads run directories."""

    trust: bool = switch("Import the code that RUN names, which is not built in.")

    def trusted(self) -> Iterable[Path]:
        return self.directories() if self.trust else ()

    def directories(self) -> Iterable[Path]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class OfRun(Reading):
    """A verb about one run directory."""

    directory: Path = argument("RUN")

    def directories(self) -> Iterable[Path]:
        return [self.directory]


@dataclass(frozen=True, kw_only=True)
class Varying(Verb):
    """A verb about one of the experiments that a file can be."""

    profile: str | None = option("One of the file's profiles; the file names its default.", "NAME")
    overrides: tuple[str, ...] = options("Set one key, such as game.lobby=classic-7.", "KEY=VALUE", flag="--set")

    def request_for(self, file: Path | Written) -> RunRequest:
        return RunRequest(file=file, profile=self.profile, overrides=self.overrides)


@dataclass(frozen=True, kw_only=True)
class OfExperiment(Varying):
    """A verb that needs an experiment file."""

    file: Path = argument("EXPERIMENT")

    def request(self) -> RunRequest:
        return self.request_for(self.file)


@dataclass(frozen=True, kw_only=True)
class OfRequest(OfExperiment):
    """A verb that begins a run of an experiment, or goes on with it."""

    limit: int | None = option("Run the first N conversations at most.", "N")
    seed: str | None = option("The experiment's seed.", "N")
    out: Path | None = option("The run directory [runs/NAME].", "DIR", type=click.Path(path_type=Path))
    mirror: str | None = option("Once all has ended, copy the run directory to URL, such as s3://bucket/study.", "URL")
    pull: bool = switch("Let engines pull models that they do not have; refused where no engine can pull.")

    def request(self) -> RunRequest:
        return replace(
            super().request(),
            seed=self.seed,
            limit=self.limit,
            out=self.out,
            mirror=self.mirror,
            can_pull=self.pull,
        )


@dataclass(frozen=True, kw_only=True)
class Quiet(Verb):
    """A verb that says what it does."""

    quiet: bool = switch("Print nothing but errors.")

    def say(self, text: str) -> None:
        if not self.quiet:
            say(text)


def command(name: str, verb: type[Verb], **words: str) -> click.Command:
    """The command of a verb, whose help may lack `words`. Its own options come before those that it shares."""
    text = getdoc(verb) or ""
    hints, declared = get_type_hints(verb), {each.name: each for each in fields(verb)}
    own_first = dict.fromkeys(name for owner in verb.__mro__ for name in get_annotations(owner) if name in declared)
    arguments = [name for name in declared if declared[name].metadata["cls"] is click.Argument]
    names = [*arguments, *(name for name in own_first if name not in arguments)]

    def callback(**given: Any) -> None:
        asked = verb(**given)
        end(asked.work, asked.trusted())

    return click.Command(
        name,
        params=[_parameter(declared[each], hints[each]) for each in names],
        help=text.format(**words) if words else text,
        callback=callback,
    )


def commands(**verbs: type[Verb]) -> dict[str, click.Command]:
    """The commands of verbs, by name."""
    return {name: command(name, verb) for name, verb in verbs.items()}


def _flag(made: Field[Any]) -> str:
    return made.metadata["flag"] or f"--{made.name.replace('_', '-')}"


def _parameter(made: Field[Any], hint: Any) -> click.Parameter:
    """The argument or option that a field is. A path is one on this machine, a number is 1 or more."""
    settings = {key: value for key, value in made.metadata.items() if key not in ("cls", "flag")}
    kind = made.metadata["cls"]
    names = [made.name, _flag(made)] if kind is click.Option else [made.name]
    types = {hint, *get_args(hint)} - {NoneType}
    if Path in types:
        settings.setdefault("type", LOCAL_PATH)
    if int in types and "type" not in settings:
        settings = {"callback": count, "type": str, **settings}
    # Of a flag None too: click's own default of one is False.
    if kind is click.Option and (made.default not in (None, ()) or bool in types):
        settings["default"] = made.default
    made_of: click.Parameter = kind(names, **settings)
    return made_of


class _LocalPath(click.Path):
    """A path on this machine. An address would become a folder named `s3:`, and may hold a password."""

    def convert(
        self, value: str | PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | PathLike[str]:
        if is_url(str(value)):
            self.fail(f"{NOT_HERE}; give a path on this machine", param, ctx)
        return super().convert(value, param, ctx)


LOCAL_PATH: Final = _LocalPath(path_type=Path)


def shard(ctx: click.Context, param: click.Parameter, value: str | None) -> Shard | AutoShard | None:
    """The value of `--shard`."""
    return None if value is None else _parsed(parse_shard, value, ctx, param)


def count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A number of things, such as the value of `--limit`."""
    return None if value is None else _whole(value, 1, ctx, param)


def number(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The place of a thing, from 0, such as the value of `--prompt`."""
    return None if value is None else _whole(value, 0, ctx, param)


def counts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Numbers with commas between them, each once, such as the value of `--lanes`."""
    texts = [] if value is None else value.split(",")
    return tuple(dict.fromkeys(_whole(text.strip(), 1, ctx, param) for text in texts))


def _whole(text: str, at_least: int, ctx: click.Context, param: click.Parameter) -> int:
    return _parsed(lambda value: whole_number(param.opts[0], value, at_least=at_least), text, ctx, param)


def _parsed(parse: Callable[[str], _T], text: str, ctx: click.Context, param: click.Parameter) -> _T:
    """The value of a flag. A ConfigError becomes the error that click prints with the usage, which names the flag."""
    try:
        return parse(text)
    except ConfigError as error:
        raise click.BadParameter(str(error).removeprefix(f"{param.opts[0]}: "), ctx, param) from error


def refuse_taken(path: Path, flag: str) -> None:
    """Raises ConfigError where a flag names no place for a new file."""
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{flag}: {path} is there already; name another file, or remove it")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag}: there is no directory {path.parent}; make it, or name another file")
