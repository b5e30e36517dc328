"""`mac-run fork`: other ways in which a recorded conversation might have gone on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mac_runner.cli.process import Exit, report, say
from mac_runner.cli.run import ending, player_of, print_results
from mac_runner.clock import SystemClock
from mac_runner.config.materials import read_material
from mac_runner.errors import ConfigError
from mac_runner.runs.forks import Arm, ForkRequest, PlannedFork, plan_fork
from mac_runner.runs.play import results_if_complete
from mac_runner.runs.recorded import recorded_setup, set_of_one
from mac_runner.runs.setup import Setup
from mac_runner.store import is_fork, read_run
from mac_runner.store.fork import write_fork


def fork(
    request: ForkRequest, out: Path, *, is_dry: bool, concurrency: int | None, is_quiet: bool, is_live: bool | None
) -> Exit:
    """Write the fork, unless it is there already, and play what is left of it."""
    planned = plan_fork(request)
    for note in planned.notes:
        say(note)
    if is_dry:
        with report() as stream:
            stream.writelines(f"{line}\n" for line in _described(planned, out))
        return Exit.OK
    if not is_quiet:
        say(_budget(planned))
    write_fork(
        out,
        experiment_name=planned.name,
        resolved=planned.loaded.resolved,
        record=planned.record,
        branches=planned.branches,
        clock=SystemClock(),
    )
    return _play(planned.setup(out), concurrency=concurrency, is_quiet=is_quiet, is_live=is_live)


def arm_of(reply: str | None, reply_file: Path | None) -> Arm:
    """What happens at the turn of a fork. Raises ConfigError for a file that cannot be read."""
    if reply_file is None:
        return Arm() if reply is None else Arm("reply", reply=reply)
    try:
        text = read_material(reply_file).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"--reply-file: {reply_file} is not UTF-8; save it as UTF-8") from None
    return Arm("reply", reply=text)


def go_on(directory: Path, *, concurrency: int | None, is_quiet: bool, is_live: bool | None) -> Exit:
    """Play what is left of a fork; its parent need not be there."""
    if not is_fork(directory):
        raise ConfigError(f"{directory} is not a fork; to make one, name a GAME, --turn and --out")
    return _play(recorded_setup(read_run(directory)), concurrency=concurrency, is_quiet=is_quiet, is_live=is_live)


def _play(setup: Setup, *, concurrency: int | None, is_quiet: bool, is_live: bool | None) -> Exit:
    chosen = set_of_one(setup)
    if (complete := results_if_complete(chosen, SystemClock())) is not None:
        if not is_quiet:
            say(f"{setup.directory}: {complete.ended}; nothing to run")
        return print_results(complete, is_quiet=is_quiet)
    results = player_of(concurrency=concurrency, is_quiet=is_quiet, is_live=is_live).play(chosen)
    return ending(results, print_results(results, is_quiet=is_quiet), str(setup.directory), is_quiet=is_quiet)


def _budget(planned: PlannedFork) -> str:
    budget = planned.budget
    tokens = budget.tokens
    spent = f", {tokens.prompt:,} prompt and {tokens.completion:,} reply tokens" if tokens.is_counted else ""
    return f"{budget.conversations} conversations, about {budget.turns:,} turns{spent}, by what the parent took"


def _described(planned: PlannedFork, out: Path) -> Iterator[str]:
    yield f"run directory  {out}"
    for parent in planned.record.parents:
        yield f"fork           of {parent['task']} at turn {parent['turn']}, after {parent['kept']} replies"
    yield f"budget         {_budget(planned)}"
    if planned.record.is_off_policy:
        yield "off-policy     replies are kept for other prompts, or were written by hand"
