"""`mac-run retry RUN`: the failed conversations of a run once more, and nothing else."""

from __future__ import annotations

from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import say
from mac_runner.cli.recorded import has_question_files, recorded_setup
from mac_runner.cli.results import print_summary, summary_of
from mac_runner.cli.running import carry_out
from mac_runner.cli.setup import Invocation, Setup
from mac_runner.store import RunContents, read_run, replies_before_failure, task_of
from mac_runner.store.identity import grid_of, run_command
from mac_runner.types import JsonObject


def retry(directory: Path, *, concurrency: int | None, is_quiet: bool, is_live: bool | None) -> Exit:
    """Try again what has failed; a retry that was interrupted is first brought to its end."""
    contents = read_run(directory)
    open_again = contents.under_retry()
    wanted = open_again or contents.failed()
    if not wanted:
        if not is_quiet:
            say(f"{directory}: no conversation has failed; nothing to retry")
        return print_summary(summary_of(contents), is_quiet=is_quiet)
    materials: dict[str, JsonObject | None] = {}
    setup = recorded_setup(contents, material=materials.get, only=frozenset(wanted))
    if has_question_files(setup.loaded) or not open_again:
        materials |= _checked(contents, setup, wanted)
    invocation = Invocation(
        file=contents.layout.config, concurrency=concurrency, out=directory, is_quiet=is_quiet, is_live=is_live
    )
    exit_code = carry_out(invocation, setup, is_retried=wanted.__contains__)
    if not is_quiet and (grid := grid_of(contents.disk, directory)) is not None:
        say(f"{grid}: its tables are brought up to date by: {run_command(contents.disk, directory)}")
    return exit_code


def _checked(contents: RunContents, setup: Setup, wanted: set[str]) -> dict[str, JsonObject | None]:
    """What the conversations are about, each gone through up to its failure, before any is touched.

    Raises RunDirectoryError for a transcript that is damaged, and where this version renders other prompts.
    """
    materials: dict[str, JsonObject | None] = {}
    for transcript in contents.failed_transcripts(wanted):
        task = task_of(transcript)
        setup.restoration.opened(task, replies_before_failure(transcript))
        if setup.material is not None:
            materials[task.task_id] = None if task.material is None else dict(task.material)
    return materials
