"""`mac-run show RUN GAME`: one conversation as text."""

from __future__ import annotations

from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import report
from mac_runner.errors import ConfigError
from mac_runner.reports import tell_transcript
from mac_runner.store import RunContents, read_run


def show(directory: Path, game: str, seat: str | None) -> Exit:
    """Print one conversation, all of it or what `seat` saw."""
    contents = read_run(directory)
    text = tell_transcript(contents.transcript(_task_id(contents, game)), seat=seat)
    with report() as out:
        out.write(text)
    return Exit.OK


def _task_id(contents: RunContents, game: str) -> str:
    """The task a user means by its id or by its place in the plan."""
    for row in contents.rows():
        if game in (str(row["task_id"]), str(row["index"])):
            return str(row["task_id"])
    counts = contents.counts
    ended = f"{counts.done} of {counts.planned} conversations have ended"
    raise ConfigError(f"GAME: no ended conversation is called {game!r} or has this number (from 0); {ended}")
