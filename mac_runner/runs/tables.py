"""The runs that tables are made of, with the tables that need an environment to be played."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from mac_runner.config.experiment import REWARDS
from mac_runner.data.rollouts import PROMPTS, SEAT_COLUMNS, TrainingRun, prompt_table
from mac_runner.data.sources import Source, Sources, recorded_spec, sources_of
from mac_runner.data.training import FORMATS as TRAINING_FORMATS
from mac_runner.data.training import training_tables
from mac_runner.environments import build_environment
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.problems import suggestion
from mac_runner.registry import ENVIRONMENTS
from mac_runner.results import section
from mac_runner.runs.recorded import recorded_experiment
from mac_runner.store.run import lost_words


def run_sources(directories: Sequence[Path], only: Sequence[str] = ()) -> Sources:
    """The runs of directories with all tables. Raises RunDirectoryError where there are none, or some have ended that
    the journal has lost.

    `only` are the models and agent definitions that trainers learn from; empty for all.
    """
    sources = sources_of(directories)
    for contents in (source.contents for source in sources.runs):
        if contents.lost:
            raise RunDirectoryError(lost_words(contents.layout.directory, contents.lost))
    runs = [with_environment(run, only) for run in sources.runs]
    needing = {name: runs[0].tables[name] for name in (PROMPTS, *TRAINING_FORMATS)}
    return sources._replace(runs=runs, tables={**sources.tables, **needing})


def training_run(run: Source, only: Sequence[str]) -> TrainingRun:
    """A run as trainers see it; the environment is set up for the first prompt."""
    agents = run.tables["agents"]
    return TrainingRun(
        run.contents,
        cache(lambda: build_environment(recorded_experiment(run.contents).experiment)),
        lambda ended: agents.rows(ended, SEAT_COLUMNS),
        tuple(only),
    )


def with_environment(run: Source, only: Sequence[str]) -> Source:
    """A run with the tables of prompts and of trainers, and the rewards."""
    training = training_run(run, only)
    # The results of a built-in environment say its rewards.
    is_own = run.contents.environment_name not in ENVIRONMENTS and recorded_spec(run.contents) is not None
    found = run._replace(
        tables={**run.tables, PROMPTS: prompt_table(training.environment), **training_tables(training)},
        environment=training.environment if is_own else lambda: None,
    )
    # Of `--limit` or a shard, fewer are planned.
    conversations = section(run.contents.resolved, "conversation_config").get("conversations")
    is_whole = isinstance(conversations, int) and run.contents.counts.done >= conversations
    # Without its code, or its other conversations, an environment may have more rewards than are seen.
    return found._replace(check_rewards=cache(partial(_check_rewards, found))) if is_own and is_whole else found


def _check_rewards(run: Source) -> None:
    """Raises ConfigError where a weight of `rewards.total` is that of no reward in the whole run.

    Some agents and outcomes may lack a reward. So conversations are read until every weight has been seen.
    """
    rewards = section(run.contents.resolved, REWARDS)
    shaped = section(rewards, "shaped")
    unseen, seen = section(rewards, "total").keys() - shaped.keys(), {*shaped}
    for ended in run.conversations():
        if not unseen:
            return
        for found in ended.worth.values():
            seen.update(found.by_name)
        unseen -= seen
    if unseen and seen:
        name = min(unseen)
        raise ConfigError(f"rewards.total.{name}: no agent of the run has such a reward{suggestion(name, seen)}")
