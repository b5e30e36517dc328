"""The verbs that read results, and their flags: `status`, `show`, `view`, `publish`, `export`, `report`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from mac_runner.cli import results
from mac_runner.cli.ending import end, end_trusted
from mac_runner.cli.options import LOCAL_PATH, count, trust_option
from mac_runner.cli.show import View, list_conversations, show, show_tables
from mac_runner.cli.view import view, view_beside_run
from mac_runner.data.files import CSV
from mac_runner.reports import ALL
from mac_runner.runs.export import ALL_FORMATS, ExportRequest
from mac_runner.viewer.guard import Address

_OWN = ""
"""The value of `--metric` without one."""


@click.command(name="status")
@click.argument("directory", metavar="RUN", type=LOCAL_PATH)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status_command(directory: Path, as_json: bool) -> None:
    """Print how far RUN is, during the run or after it. Reads only.

    Exit codes: 0 printed, 2 RUN is not a run directory.
    """
    end(lambda: results.status(directory, as_json=as_json))


@click.command(name="show")
@click.argument("directory", metavar="RUN", type=LOCAL_PATH)
@click.argument("game", metavar="[GAME]", required=False)
@click.option("--where", metavar="CONDITION", multiple=True, help="List only these; in quotes: 'days>5', failed.")
@click.option("--limit", callback=count, metavar="N", help="List the first N at most.")
@click.option("--tables", metavar="NAME", is_flag=False, flag_value=ALL, help="All tables, or those called NAME.")
@click.option("--seat", metavar="NAME", help="Only what this agent saw, was sent, replied or thought.")
@click.option("--truth", "has_truth", is_flag=True, help="Say who was what, which claims were true, who lied.")
@click.option("--turns", "has_turns", is_flag=True, help="Its turns instead, in the order in which they were answered.")
@click.option("--prompt", metavar="TURN", help="What was sent for a turn, such as 12/Abel/0/0 or 12/Abel.")
@click.option("--raw", metavar="TURN", is_flag=False, flag_value=ALL, help="What came back for a turn, or for all.")
@click.option("--thoughts", "has_thoughts", is_flag=True, help="What was thought at each turn, beside what was said.")
@click.option("--html", metavar="FILE", type=LOCAL_PATH, help="Write it as one page that can be mailed.")
@trust_option
def show_command(
    directory: Path,
    game: str | None,
    where: tuple[str, ...],
    limit: int | None,
    tables: str | None,
    seat: str | None,
    has_truth: bool,
    has_turns: bool,
    prompt: str | None,
    raw: str | None,
    has_thoughts: bool,
    html: Path | None,
    is_trusted: bool,
) -> None:
    """List the conversations of RUN, a run or a grid, or print its tables. With GAME: print that one as text.

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
        if tables is None:
            end_trusted([directory], is_trusted, lambda: list_conversations(directory, where=where, limit=limit))
        if where or limit is not None:
            raise click.UsageError("--tables is of all conversations: leave out --where and --limit, or --tables")
        name = tables
        end_trusted([directory], is_trusted, lambda: show_tables(directory, name))
    of_run = {"--where": bool(where), "--limit": limit is not None, "--tables": tables is not None}
    for flag, is_given in of_run.items():
        if is_given:
            raise click.UsageError(
                f"{flag} is about the whole run, so it has no effect with a GAME: leave one of them out"
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
        end_trusted([directory], is_trusted, lambda: show_page(directory, game, seat, to))
    view = View(seat=seat, has_truth=has_truth, has_turns=has_turns, has_thoughts=has_thoughts, prompt=prompt, raw=raw)
    end_trusted([directory], is_trusted, lambda: show(directory, game, view))


@click.command(name="view")
@click.argument("directory", metavar="RUN", type=LOCAL_PATH)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", default=0, help="The port [one that is free].")
@click.option("--no-open", "is_opened", is_flag=True, flag_value=False, default=True, help="Open no browser.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Where to listen [127.0.0.1].")
@click.option("--allow-host", "names", metavar="NAME", multiple=True, help="Another name of this server: NAME[:PORT].")
@click.option("--beside-run", "descriptor", type=int, hidden=True)
@trust_option
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
        end(lambda: view_beside_run(directory, inherited, is_opened=is_opened))
    address = Address(host=host, port=port, names=names)
    end_trusted([directory], is_trusted, lambda: view(directory, address, is_opened=is_opened, is_trusted=is_trusted))


@click.command(name="publish")
@click.argument("directory", metavar="RUN", type=LOCAL_PATH)
@click.argument("out", metavar="OUT", type=LOCAL_PATH)
@click.option("--no-thoughts", "has_thoughts", is_flag=True, flag_value=False, default=True, help="Leave thoughts out.")
@click.option("--no-prompts", "has_prompts", is_flag=True, flag_value=False, default=True, help="Leave prompts out.")
@click.option("--only", metavar="CONDITION", multiple=True, help="Only these, as show --where takes them: 'days>5'.")
@click.option("--sample", callback=count, metavar="N", help="Only N of them [all, or 1000 of more than 5000].")
@trust_option
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

    Exit codes: 0 written, 1 written without some conversations, which are damaged, 2 RUN is not a run directory or
    OUT is something else, 4 OUT could not be written.
    """
    # Here, because every verb would wait for the pages.
    from mac_runner.cli.publish import publish_pages
    from mac_runner.viewer.publish import PublishRequest

    request = PublishRequest(
        directory=directory, out=out, has_thoughts=has_thoughts, has_prompts=has_prompts, only=only, sample=sample
    )
    end_trusted([directory], is_trusted, lambda: publish_pages(request))


@click.command(name="export")
@click.argument("directory", metavar="RUN", type=LOCAL_PATH)
@click.option("--to", type=LOCAL_PATH, metavar="DIR", help="Where the files are put; with --metric a FILE.")
@click.option(
    "--tables",
    multiple=True,
    metavar="NAME,...",
    help="Tables, such as turns; may be repeated [all that are not optional].",
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(ALL_FORMATS),
    multiple=True,
    help="The files of tables, or what a trainer reads; may be repeated [csv].",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME,...",
    help="For trainers: learn from these models or agent definitions; may be repeated [all].",
)
@click.option("--follow", "is_followed", is_flag=True, help="Go on as conversations end, until the run has ended.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", default=1, help="How many processes write [1].")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    is_flag=False,
    flag_value=_OWN,
    metavar="NAME",
    help="Print the metric NAME of RUN instead, such as ./metrics.py:words; may be repeated [those that RUN names].",
)
@trust_option
def export_command(
    directory: Path,
    to: Path | None,
    tables: tuple[str, ...],
    formats: tuple[str, ...],
    only: tuple[str, ...],
    is_followed: bool,
    jobs: int,
    metrics: tuple[str, ...],
    is_trusted: bool,
) -> None:
    """Write the tables of RUN, a run or a grid, as files: conversations, agents, turns, events and more.

    RUN is only read, and may be under way: conversations that have not ended are left out. CSV is one file for each
    table; one that is there already is not replaced. Parquet and JSON Lines are files of 2,000 conversations each: the
    same command again writes those that changed.

    The other formats are for trainers, and are written in the same way: rollouts (a row for each reply, with its
    tokens), trl-sft, trl-kto, trl-dpo (from forks), verl-sft, verifiers and openai-chat.

    With --metric: compute metrics over the finished conversations and print them; FILE gets a JSON object for each.
    Those that RUN names are code, so they take --trust.

    Exit codes: 0 written, 2 RUN or a flag is wrong, 3 interrupted: the same command goes on, 4 storage failed.
    """
    if metrics:
        if tables or formats or only or is_followed or jobs != 1:
            raise click.UsageError("--metric writes no tables: give it --to and --trust alone")
        if _OWN in metrics and len(metrics) > 1:
            raise click.UsageError("--metric without a NAME is for those that RUN names: leave it out beside others")
        names = tuple(name for name in metrics if name != _OWN)
        end_trusted([directory], is_trusted, lambda: results.compute_metrics(directory, names, to))
    if to is None:
        raise click.UsageError("name the directory of the files with --to")
    request = ExportRequest(
        directories=[directory],
        to=to,
        tables=_names(tables),
        formats=formats or (CSV,),
        only=_names(only),
        jobs=jobs,
        is_trusted=is_trusted,
    )
    end_trusted([directory], is_trusted, lambda: results.export_tables(request, is_followed=is_followed))


def _names(texts: Iterable[str]) -> list[str]:
    """The names of a flag that takes several, separated by commas."""
    return [name for text in texts for name in text.split(",") if name]


@click.command(name="report")
@click.argument("directory", metavar="RUN", type=LOCAL_PATH)
@click.argument("other", metavar="[RUN2]", type=LOCAL_PATH, required=False)
@click.option("--out", type=LOCAL_PATH, metavar="FILE", help="The HTML page [RUN.report.html].")
@click.option("--pdf", "has_pdf", is_flag=True, help="Print it as PDF too, by Chromium.")
@click.option("--json", "numbers", type=LOCAL_PATH, metavar="FILE", help="Write the numbers as JSON.")
@click.option("--viewer", metavar="ADDRESS", default="", help="Link to a published run, such as published/index.html.")
@trust_option
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
    experiment. RUN is only read, and may be under way. Needs the extra `report`.

    Exit codes: 0 written, 2 RUN or a flag is wrong or the extra is missing, 4 storage failed.
    """
    # Here, because every verb would wait for the figures.
    from mac_runner.cli.report import write_report
    from mac_runner.runs.report_files import ReportRequest

    directories = [directory] if other is None else [directory, other]
    request = ReportRequest(directories=directories, out=out, numbers=numbers, has_pdf=has_pdf, viewer=viewer)
    end_trusted(directories, is_trusted, lambda: write_report(request))
