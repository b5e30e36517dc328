"""A draft that is complete → an Experiment: checked value by value, then for what must hold between values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pydantic import ValidationError

from mac_runner.config.complaints import complaints
from mac_runner.config.consistency import inconsistencies
from mac_runner.config.draft import Draft
from mac_runner.config.experiment import Experiment
from mac_runner.config.materials import MaterialError, with_materials
from mac_runner.errors import ConfigError
from mac_runner.problems import Problem, config_error, dotted
from mac_runner.section import KeyPath
from mac_runner.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An experiment, the complete config it came from, and where each of its values was written.

    `resolved` has every default filled in, no `profiles`, and under `profile` the one that was chosen;
    `Experiment.model_validate(resolved)` gives the experiment again. `locate` names `file:line` or the flag.
    """

    experiment: Experiment
    resolved: JsonObject
    locate: Callable[[KeyPath], str]


def resolved(draft: Draft, base: Path, cache: dict[str, object] | None = None) -> Loaded:
    """The experiment a draft describes, with the files it names, relative to `base`, read.

    Raises ConfigError with every problem of the first stage that has any. `cache` keeps what is read from files.
    """
    experiment = _validated(draft, base, {} if cache is None else cache)
    return Loaded(experiment=experiment, resolved=experiment.model_dump(mode="json"), locate=draft.locate)


def recorded(config: JsonObject, source: str) -> Experiment:
    """The experiment that was resolved to `config`. Raises ConfigError with every problem, each with its key."""
    try:
        experiment = Experiment.model_validate(config)
    except ValidationError as failure:
        problems = complaints(failure, config)
    else:
        problems = inconsistencies(experiment)
        if (first := next(problems, None)) is None:
            return experiment
        problems = chain([first], problems)
    raise told(Draft(value=config, origins={(): source}), problems)


def told(draft: Draft, problems: Iterable[Problem]) -> ConfigError:
    """The error that tells of problems, each at its place in the file."""
    return config_error(f"{draft.locate(path)}: {dotted(path)}: {text}" for path, text in problems)


def _validated(draft: Draft, base: Path, cache: dict[str, object]) -> Experiment:
    problems: Iterator[Problem]
    try:
        experiment = Experiment.model_validate(draft.value)
    except ValidationError as failure:
        problems = complaints(failure, draft.value)
    else:
        problems = inconsistencies(experiment)
        if (first := next(problems, None)) is None:
            try:
                return with_materials(experiment, base, cache)
            except MaterialError as fault:
                first = fault.problem
        problems = chain([first], problems)
    # Raised out here, not from the failure: its text repeats values, and one may be a key pasted in the wrong place.
    raise told(draft, problems)
