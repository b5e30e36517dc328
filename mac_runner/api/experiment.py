"""An experiment in Python: read from a file, or written as a mapping, and dumped as YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TypeAlias, cast

from mac_runner.config import Grid, Written, plain_value, read_written, yaml_text
from mac_runner.config import load as load_config
from mac_runner.types import JsonObject


class Experiment:
    """The content of an experiment file, checked. It does not change.

    `Experiment({...})` takes the same sections as a file. Tuples become lists, and a function or a class that a module
    defines becomes its name, `module:name`. Paths in it are relative to `base`, by default the working directory.

    Raises ConfigError with the key of every problem.
    """

    __slots__ = ("_written", "name")

    name: str
    """The name of the experiment, or of its grid."""

    def __init__(self, content: Mapping[str, object], *, base: str | os.PathLike[str] | None = None) -> None:
        folder = Path.cwd() if base is None else Path(base)
        self._adopt(Written(value=plain_value(content), base=folder))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Experiment:
        """The experiment of a file, with all its profiles. Raises ConfigError with the line of every problem."""
        experiment = cls.__new__(cls)
        experiment._adopt(read_written(Path(path)))
        return experiment

    @property
    def content(self) -> JsonObject:
        """A copy of the sections, as a file has them."""
        return deepcopy(cast("JsonObject", self._written.value))

    @property
    def base(self) -> Path:
        """The folder that paths in it start from."""
        return self._written.base

    def to_yaml(self) -> str:
        """The experiment as the text of a file. In a file in `base` it is the same experiment."""
        return yaml_text(cast("JsonObject", self._written.value))

    def _adopt(self, written: Written) -> None:
        loaded = load_config(written)
        self._written = written
        self.name = loaded.name if isinstance(loaded, Grid) else loaded.experiment.name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Experiment):
            return NotImplemented
        return (self._written.value, self._written.base) == (other._written.value, other._written.base)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Experiment {self.name!r}>"


ExperimentLike: TypeAlias = Experiment | Mapping[str, object] | str | os.PathLike[str]
"""An experiment, a mapping of its sections, or the path of its file."""


def load(path: str | os.PathLike[str]) -> Experiment:
    """The experiment of a file. Raises ConfigError with the line of every problem."""
    return Experiment.from_file(path)


def written_of(experiment: ExperimentLike) -> Written | Path:
    """What `runs.setup` reads."""
    if isinstance(experiment, Experiment):
        return experiment._written
    if isinstance(experiment, str | os.PathLike):
        return Path(experiment)
    return Written(value=plain_value(experiment), base=Path.cwd())
