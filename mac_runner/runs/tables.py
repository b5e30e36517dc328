"""The runs that tables are made of, with the tables that need an environment to be played."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mac_runner.data.prompts import PROMPTS, prompt_table
from mac_runner.data.sources import Source, Sources, recorded_results, recorded_spec, sources_of
from mac_runner.data.tables import tables_of
from mac_runner.environments import build_environment
from mac_runner.environments.base import Environment
from mac_runner.registry import ENVIRONMENTS
from mac_runner.runs.recorded import recorded_experiment
from mac_runner.store import RunContents


def run_sources(directories: Sequence[Path]) -> Sources:
    """The runs of directories with all tables. Raises RunDirectoryError where there are none."""
    sources = sources_of(directories, recorded_results)
    runs = [_with_environment(run) for run in sources.runs]
    return sources._replace(runs=runs, tables={**sources.tables, PROMPTS: runs[0].tables[PROMPTS]})


def run_source(contents: RunContents) -> Source:
    """One run with all tables."""
    return _with_environment(Source(contents, tables_of(recorded_results(contents)), {}))


def _with_environment(run: Source) -> Source:
    """A run with the table of prompts and the rewards; the environment is set up for the first of them."""
    held: list[Environment] = []

    def environment() -> Environment:
        if not held:
            held.append(build_environment(recorded_experiment(run.contents).experiment))
        return held[0]

    # The results of a built-in environment say its rewards.
    is_own = run.contents.environment_name not in ENVIRONMENTS and recorded_spec(run.contents) is not None
    return run._replace(
        tables={**run.tables, PROMPTS: prompt_table(environment)},
        environment=environment if is_own else lambda: None,
    )
