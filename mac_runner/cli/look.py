"""`mac-run status`, `show` and `export`: how far a run is, its conversations and tables as text, and as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TextIO

import click

from mac_runner.cli.options import OfRun, Verb, argument, commands, option, options, refuse_taken, switch
from mac_runner.cli.process import report, say, write_exactly
from mac_runner.clock import SystemClock
from mac_runner.data.files import CSV, FORMATS
from mac_runner.errors import ConfigError
from mac_runner.printable import printable
from mac_runner.reports import (
    ALL,
    find_turn,
    fitted,
    lanes_json,
    list_lines,
    listed_run,
    matching,
    parse_condition,
    printable_lines,
    prompt_text,
    replies_text,
    reply_text,
    status_json,
    status_text,
    tables_named,
    thoughts_text,
    turns_of,
    turns_text,
    unmet,
    write_tables,
)
from mac_runner.reports.conversations import name_in
from mac_runner.reports.grid import Kind, value_columns
from mac_runner.reports.metrics import metric_tables
from mac_runner.reports.turns import readable
from mac_runner.results import Column
from mac_runner.runs.export import ALL_FORMATS, ExportRequest, exported, followed, measure_run, named_metrics
from mac_runner.runs.recorded import ended_row, recorded_only, sent_prompt
from mac_runner.runs.stream import metrics_of
from mac_runner.runs.summary import run_tables
from mac_runner.store import (
    Run,
    begun_combinations,
    in_wall_clock_order,
    is_grid,
    read_run,
    read_standing,
    task_of,
)
from mac_runner.store.run import lost_words
from mac_runner.store.standing import read_lanes
from mac_runner.types import JsonObject
from mac_runner.views.conversation import parted
from mac_runner.views.text import transcript_text

_KINDS: Final[Mapping[Kind, Literal["word", "number", "truth"]]] = {
    "text": "word",
    "integer": "number",
    "number": "number",
    "truth": "truth",
}
"""How a column of the table of a grid is compared by `--where`."""
_OWN: Final = ""
"""The value of `--metric` without one."""


@dataclass(frozen=True, kw_only=True)
class Status(Verb):
    """Print how far RUN is, during the run or after it. Reads only.

    Exit codes: 0 printed, 2 RUN is not a run directory.
    """

    directory: Path = argument("RUN")
    json: bool = switch("For programs.")

    def work(self) -> None:
        found = status_json(read_standing(self.directory), SystemClock().utc_now())
        if lanes := read_lanes(self.directory):
            found["lanes"] = lanes_json(lanes)
        with report() as stream:
            stream.write(json.dumps(found, indent=2) + "\n" if self.json else fitted(status_text(found), stream))


@dataclass(frozen=True, kw_only=True)
class Show(OfRun):
    """List the conversations of RUN, a run or a grid, or print its tables. With GAME: print that one as text.

    GAME is a task id or its number, from 0. A CONDITION compares a column (= != < <= > >=) or is `failed` or
    `finished`; several must all be met. On a terminal what models wrote is made printable; in a file or a pipe
    --prompt and --raw TURN give it exactly.

    Exit codes: 0 printed, 2 RUN, GAME or a flag is wrong, or this version would send another prompt.
    """

    game: str | None = argument("[GAME]", required=False)
    where: tuple[str, ...] = options("List only these; in quotes: 'days>5', failed.", "CONDITION")
    limit: int | None = option("List the first N at most.", "N")
    tables: str | None = option("All tables, or those called NAME.", "NAME", is_flag=False, flag_value=ALL)
    seat: str | None = option("Only what this agent saw, was sent, replied or thought.", "NAME")
    truth: bool = switch("Say who was what, which claims were true, who lied.")
    turns: bool = switch("Its turns instead, in the order in which they were answered.")
    prompt: str | None = option("What was sent for a turn, such as 12/Abel/0/0 or 12/Abel.", "TURN")
    raw: str | None = option("What came back for a turn, or for all.", "TURN", is_flag=False, flag_value=ALL)
    thoughts: bool = switch("What was thought at each turn, beside what was said.")
    html: Path | None = option("Write it as one page that can be mailed.", "FILE")

    def work(self) -> None:
        views = self.given("turns", "prompt", "raw", "thoughts", "html")
        of_one = [*self.given("seat", "truth"), *views]
        if self.game is not None:
            self._check_one(views, of_one)
            return self._one(self.game)
        if of_one:
            raise ConfigError(f"{of_one[0]} is about one conversation: name it, as in mac-run show RUN 0 {of_one[0]}")
        if self.tables is None:
            return self._list()
        if self.given("where", "limit"):
            raise ConfigError("--tables is of all conversations: leave out --where and --limit, or --tables")
        parts = run_tables(self.directory)
        with report() as stream:
            write_tables(parts if self.tables == ALL else tables_named(parts, self.tables), stream)

    def _check_one(self, views: Sequence[str], of_one: Sequence[str]) -> None:
        """Raises ConfigError for flags that have no effect on one conversation, or not together."""
        for flag in self.given("where", "limit", "tables"):
            raise ConfigError(f"{flag} is about the whole run, so it has no effect with a GAME: leave one of them out")
        if len(views) > 1:
            raise ConfigError(f"{' and '.join(views)} show different things of a conversation: leave one of them out")
        for flag in of_one:
            if flag not in views and views and (views == ["--turns"] or flag == "--truth"):
                what = "shows everything" if views == ["--html"] else "shows turns as they were"
                raise ConfigError(f"{views[0]} {what}, so {flag} has no effect: leave it out")

    def _one(self, game: str) -> None:
        """Print one conversation, or write its page."""
        refuse_grid(self.directory)
        if self.html is not None:
            # Here, because every verb would wait for the pages.
            from mac_runner.cli.pages import write_page

            return write_page(self.directory, game, self.seat, self.html)
        run = read_run(self.directory)
        row = ended_row(run, game)
        task_id = str(row["task_id"])
        transcript, _ = run.shown(task_id)
        if (flaw := run.flaw(row)) is not None:
            say(f"warning: {flaw}; {run.repair_advice(task_id)}")
        with report() as stream, readable(task_id):
            if self.prompt is not None:
                turn = find_turn(transcript, self.prompt, "--prompt", seat=self.seat)
                _print(prompt_text(sent_prompt(run, transcript, str(turn["turn"]))), stream)
            elif self.raw is not None:
                _print_replies(transcript, self.raw, self.seat, stream)
            else:
                stream.writelines(fitted(text, stream) for text in self._text(run, transcript))

    def _text(self, run: Run, transcript: JsonObject) -> Iterable[str]:
        if self.thoughts:
            return thoughts_text(transcript, parted, seat=self.seat)
        if self.turns:
            answers = list(run.answers(task_of(transcript).task_id))
            return (turns_text(in_wall_clock_order(transcript, answers), answers),)
        return (transcript_text(transcript, seat=self.seat, has_truth=self.truth),)

    def _list(self) -> None:
        """List the ended conversations of a run, or of each combination of a grid, that meet all conditions."""
        with report() as stream:
            if is_grid(self.directory):
                _list_grid(self.directory, self.where, self.limit, stream)
            else:
                _list(read_run(self.directory), self.where, self.limit, stream)


def _print_replies(transcript: JsonObject, wanted: str, seat: str | None, stream: TextIO) -> None:
    if wanted == ALL:
        for text in replies_text(turns_of(transcript, seat)):
            _print(text, stream)
        return
    turn = find_turn(transcript, wanted, "--raw", seat=seat)
    text = reply_text(turn)
    _print(f"{text}\n" if stream.isatty() else text, stream)
    reply = turn["reply"]
    if isinstance(reply, dict) and "thinking" in reply:
        say("the engine gave thoughts apart from this text: --thoughts shows them, --raw all too")


def _print(text: str, stream: TextIO) -> None:
    """Print what a model was sent or wrote: printable on a terminal, exactly what it is elsewhere."""
    if stream.isatty():
        stream.write(printable_lines(text))
    else:
        write_exactly(text, stream)


def refuse_grid(directory: Path) -> None:
    """Raises ConfigError naming the combinations of a grid, where one conversation is asked for."""
    if not is_grid(directory):
        return
    begun = begun_combinations(directory)
    raise ConfigError(
        f"RUN: {directory} is a grid, and GAME is of one of its combinations; name that one, such as "
        f"{directory / begun[0].slug}; there are: {', '.join(printable(entry.slug) for entry in begun)}"
    )


def _list_grid(directory: Path, where: Sequence[str], limit: int | None, stream: TextIO) -> None:
    begun = begun_combinations(directory)
    table = value_columns([{"combination": entry.slug, **entry.values} for entry in begun], ())
    columns = {column.name: Column(_KINDS[column.kind]) for column in table}
    conditions = [parse_condition(text, columns) for text in where if name_in(text) in columns]
    rows = [{column.name: column.cells[place] for column in table} for place in range(len(begun))]
    found = [entry for entry, row in zip(begun, rows, strict=True) if all(one.holds(row) for one in conditions)]
    if not found:
        say(f"0 of {len(begun)} combinations listed; here {unmet(conditions)}")
    of_conversations = [text for text in where if name_in(text) not in columns]
    for place, entry in enumerate(found):
        values = ", ".join(f"{name}: {value}" for name, value in entry.values.items())
        heading = "\n" * (place > 0) + printable(f"{entry.slug} ({values})") + "\n"
        run = read_run(directory / entry.slug)
        _list(run, of_conversations, limit, stream, heading=heading, of_combinations=columns)


def _list(
    run: Run,
    where: Sequence[str],
    limit: int | None,
    stream: TextIO,
    *,
    heading: str = "",
    of_combinations: Mapping[str, Column] = MappingProxyType({}),
) -> None:
    """List the conversations of a run; a misspelt column is answered with those `of_combinations` too."""
    how = listed_run(run)
    conditions = [parse_condition(text, {**of_combinations, **how.columns}) for text in where]
    stream.write(heading)
    found = islice(matching(run.json_rows_in_task_order(), how, conditions), limit)
    printed = 0
    for line in list_lines(found, how, has_failures=run.counts.failed > 0):
        stream.write(f"{line}\n")
        printed += 1
    # The report stays in front of the words about it. Its first line is the heading.
    stream.flush()
    say(_footer(run, max(printed - 1, 0), limit, unmet(conditions)))
    if run.lost:
        say(f"warning: {lost_words(run.layout.directory, run.lost)}")


def _footer(run: Run, shown: int, limit: int | None, seen: str) -> str:
    """How many were listed, of how many; what could have been asked for where there were none."""
    counts = run.counts
    text = f"{shown} of {counts.done} conversations listed"
    if shown == limit:
        text += f" (--limit {limit})"
    elif shown == 0 and seen:
        text += f"; here {seen}"
    if left := counts.planned - counts.done:
        text += f"; {left} of {counts.planned} have not ended: mac-run status {run.layout.directory}"
    return text


@dataclass(frozen=True, kw_only=True)
class Export(OfRun):
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

    to: Path | None = option("Where the files are put; with --metric a FILE.", "DIR")
    tables: tuple[str, ...] = options("Tables, such as turns; may be repeated [all that are not optional].", "NAME,...")
    format: tuple[str, ...] = options(
        f"The files of tables ({', '.join(FORMATS)}), or what a trainer reads; may be repeated [csv].",
        "FORMAT",
        type=click.Choice(ALL_FORMATS),
    )
    only: tuple[str, ...] = options(
        "For trainers: learn from these models or agent definitions; may be repeated [all].", "NAME,..."
    )
    follow: bool = switch("Go on as conversations end, until the run has ended.")
    jobs: int = option("How many processes write [1].", "N", 1)
    metric: tuple[str, ...] = options(
        "Print the metric NAME of RUN instead, such as ./metrics.py:words; may be repeated [those that RUN names].",
        "NAME",
        is_flag=False,
        flag_value=_OWN,
    )

    def work(self) -> None:
        if self.metric:
            return self._measure()
        if self.to is None:
            raise ConfigError("name the directory of the files with --to")
        request = ExportRequest(
            directories=[self.directory],
            to=self.to,
            tables=_names(self.tables),
            formats=self.format or (CSV,),
            only=_names(self.only),
            jobs=self.jobs,
            is_trusted=self.trust,
        )
        with report() as stream:
            for each in followed(request) if self.follow else exported(request):
                parts = f" in {each.parts} parts, {each.written} written now" if each.parts else ""
                stream.write(f"{each.path}: {each.rows} rows of {each.ended} of {each.planned} conversations{parts}\n")
                stream.flush()

    def _measure(self) -> None:
        """Print the metrics of a run over its finished conversations, computed now; with `--to`, write them there."""
        if self.given("tables", "format", "only", "follow", "jobs"):
            raise ConfigError("--metric writes no tables: give it --to and --trust alone")
        if _OWN in self.metric and len(self.metric) > 1:
            raise ConfigError("--metric without a NAME is for those that RUN names: leave it out beside others")
        if is_grid(self.directory):
            raise ConfigError(f"{self.directory} is a grid; name the directory of one of its combinations")
        run = read_run(self.directory)
        metrics = metrics_of(recorded_only(run)) if _OWN in self.metric else named_metrics(self.metric)
        if not metrics:
            raise ConfigError(f"{self.directory} has no metrics; name some, such as --metric ./metrics.py:words")
        if self.to is not None:
            refuse_taken(self.to, "--to")
        found = measure_run(run, metrics, self.to)
        with report() as stream:
            write_tables(metric_tables(found.summary()), stream)
        ended = f"{found.conversations} finished conversations of {run.counts.done}"
        say(f"{ended}; nothing in {self.directory} was changed")
        if found.differing:
            say(f"note: {found.differing} of them keep another value of the same name, computed when they ended")


def _names(texts: Iterable[str]) -> list[str]:
    """The names of a flag that takes several, separated by commas."""
    return [name for text in texts for name in text.split(",") if name]


VERBS: Final = commands(status=Status, show=Show, export=Export)
