"""Flags that several verbs have, and the values that flags take."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Final, TypeVar

import click

from mac_runner.config import whole_number
from mac_runner.errors import ConfigError
from mac_runner.plan import AutoShard, Shard, parse_shard
from mac_runner.store.mirror import NOT_HERE, is_url

_T = TypeVar("_T")


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


profile_option = click.option(
    "--profile", metavar="NAME", help="One of the file's profiles; the file names its default."
)
set_option = click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set one key, such as game.lobby=classic-7."
)
concurrency_option = click.option(
    "--concurrency", callback=count, metavar="N", help="Requests in flight at once, at most."
)
limit_option = click.option("--limit", callback=count, metavar="N", help="Run the first N conversations at most.")
seed_option = click.option("--seed", metavar="N", help="The experiment's seed.")
mirror_option = click.option(
    "--mirror", metavar="URL", help="Once all has ended, copy the run directory to URL, such as s3://bucket/study."
)
trust_option = click.option(
    "--trust", "is_trusted", is_flag=True, help="Import the code that RUN names, which is not built in."
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
live_option = click.option("--live/--no-live", default=None, help="Show the pools while it runs [on a terminal].")
