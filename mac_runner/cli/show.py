"""`mac-run show`: a run's conversations or its tables, and one conversation as text, prompts, replies or thoughts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TextIO

from mac_runner.cli.process import Exit, report, say, write_exactly
from mac_runner.errors import ConfigError
from mac_runner.printable import printable
from mac_runner.reports import (
    ALL,
    find_turn,
    fitted,
    list_lines,
    listed_run,
    matching,
    parse_condition,
    printable_lines,
    prompt_text,
    replies_text,
    reply_text,
    tables_named,
    thoughts_text,
    turns_of,
    turns_text,
    unmet,
    write_tables,
)
from mac_runner.reports.conversations import name_in
from mac_runner.reports.grid import Kind, value_columns
from mac_runner.reports.turns import readable
from mac_runner.results import Column
from mac_runner.runs.recorded import ended_row, sent_prompt
from mac_runner.runs.summary import run_tables
from mac_runner.store import Run, begun_combinations, in_wall_clock_order, is_grid, read_run, task_of
from mac_runner.store.run import lost_words
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


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What of a conversation is shown: `turns`, `prompt`, `raw` or `thoughts`, or its text where none is given.

    `prompt` is a turn, `raw` a turn or ALL.
    """

    seat: str | None = None
    has_truth: bool = False
    has_turns: bool = False
    has_thoughts: bool = False
    prompt: str | None = None
    raw: str | None = None


def show(directory: Path, game: str, view: View) -> Exit:
    """Print one conversation."""
    refuse_grid(directory)
    run = read_run(directory)
    row = ended_row(run, game)
    task_id = str(row["task_id"])
    transcript, _ = run.shown(task_id)
    if (flaw := run.flaw(row)) is not None:
        say(f"warning: {flaw}; {run.repair_advice(task_id)}")
    with report() as stream, readable(task_id):
        if view.prompt is not None:
            turn = find_turn(transcript, view.prompt, "--prompt", seat=view.seat)
            _print(prompt_text(sent_prompt(run, transcript, str(turn["turn"]))), stream)
        elif view.raw is not None:
            _print_replies(transcript, view.raw, view.seat, stream)
        else:
            stream.writelines(fitted(text, stream) for text in _text(run, transcript, view))
    return Exit.OK


def _text(run: Run, transcript: JsonObject, view: View) -> Iterable[str]:
    if view.has_thoughts:
        return thoughts_text(transcript, parted, seat=view.seat)
    if view.has_turns:
        answers = list(run.answers(task_of(transcript).task_id))
        return (turns_text(in_wall_clock_order(transcript, answers), answers),)
    return (transcript_text(transcript, seat=view.seat, has_truth=view.has_truth),)


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


def show_tables(directory: Path, name: str) -> Exit:
    """Print the tables of a run or a grid, or those with `name` in their title."""
    parts = run_tables(directory)
    with report() as stream:
        write_tables(parts if name == ALL else tables_named(parts, name), stream)
    return Exit.OK


def list_conversations(directory: Path, *, where: Sequence[str], limit: int | None) -> Exit:
    """List the ended conversations of a run, or of each combination of a grid, that meet all conditions."""
    with report() as stream:
        if is_grid(directory):
            _list_grid(directory, where, limit, stream)
        else:
            _list(read_run(directory), where, limit, stream)
    return Exit.OK


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
