"""`mac-run show RUN GAME`: one conversation as text."""

from __future__ import annotations

from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import report, say
from mac_runner.errors import ConfigError
from mac_runner.reports import tell_transcript, tell_turns
from mac_runner.store import RunContents, in_wall_clock_order, read_run
from mac_runner.store.identity import repair_advice
from mac_runner.types import JsonObject


def show(directory: Path, game: str, seat: str | None, *, has_turns: bool = False, has_truth: bool = False) -> Exit:
    """Print one conversation, all of it or what `seat` saw, or its turns in the order in which they were answered.

    With `has_truth` also what only the engine knew.
    """
    contents = read_run(directory)
    row = _row(contents, game)
    task_id = str(row["task_id"])
    transcript = contents.transcript(task_id)
    if (flaw := contents.flaw(row)) is not None:
        say(f"warning: {flaw}; {repair_advice(directory)}")
    if has_turns:
        answers = list(contents.answers(task_id))
        text = tell_turns(in_wall_clock_order(transcript, answers), answers)
    else:
        text = tell_transcript(transcript, seat=seat, has_truth=has_truth)
    with report() as out:
        out.write(text)
    return Exit.OK


def _row(contents: RunContents, game: str) -> JsonObject:
    """The row of the conversation that a user means by its id or by its place in the plan."""
    for row in contents.rows():
        if game in (str(row["task_id"]), str(row["index"])):
            return row
    counts = contents.counts
    ended = f"{counts.done} of {counts.planned} conversations have ended"
    raise ConfigError(f"GAME: no ended conversation is called {game!r} or has this number (from 0); {ended}")
