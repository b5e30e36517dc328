"""`mac-run retry RUN`: the failed conversations of a run once more, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import say
from mac_runner.cli.recorded import recorded_experiment
from mac_runner.cli.results import print_summary, summary_of
from mac_runner.cli.running import carry_out
from mac_runner.cli.setup import Invocation, Setup
from mac_runner.environments.registry import build_environment
from mac_runner.store import RunContents, read_run


def retry(directory: Path, *, concurrency: int | None, is_quiet: bool, is_live: bool | None) -> Exit:
    """Try again what has failed; a retry that was interrupted is first brought to its end."""
    contents = read_run(directory)
    wanted = contents.under_retry() or contents.failed()
    if not wanted:
        if not is_quiet:
            say(f"{directory}: no conversation has failed; nothing to retry")
        return print_summary(summary_of(contents), is_quiet=is_quiet)
    invocation = Invocation(
        file=contents.layout.config, concurrency=concurrency, out=directory, is_quiet=is_quiet, is_live=is_live
    )
    return carry_out(invocation, _setup(contents, frozenset(wanted)), is_retried=wanted.__contains__)


def _setup(contents: RunContents, wanted: frozenset[str]) -> Setup:
    """The run as it is recorded, as far as it is to be played."""
    loaded = recorded_experiment(contents)
    # What was planned once stays planned, and what failed of it is tried again, however few are asked for by now.
    planned = max(contents.planned().values()) + 1
    conversations = loaded.experiment.conversation_config.model_copy(update={"conversations": planned})
    experiment = loaded.experiment.model_copy(update={"conversation_config": conversations})
    return Setup(
        loaded=replace(loaded, experiment=experiment),
        environment=build_environment(experiment),
        directory=contents.layout.directory,
        limit=None,
        shard=contents.shard,
        only=wanted,
    )
