"""A draft with `_grid` → the combinations, each a complete experiment of its own. Pure.

A combination is recognised by its identity: a digest of everything its results depend on, defaults left out, so that it
is the same whatever the file says of other combinations, and stays the same when a key is added to the format. Two
combinations of one identity would be one experiment run twice, and are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.config.axes import Axis, Point, axes_of, section_of
from mac_runner.config.draft import Draft, with_value
from mac_runner.config.grid import GRID_KEY, Combination, Grid
from mac_runner.config.identity import identity_of
from mac_runner.config.placeholders import derived
from mac_runner.config.resolving import Loaded, resolved, told
from mac_runner.errors import ConfigError
from mac_runner.limits import CONFIG_PROBLEMS_MAX, GRID_SLUG_CHARS_MAX, NAME_CHARS_MAX
from mac_runner.problems import Problem, clipped, config_error
from mac_runner.section import KeyPath
from mac_runner.types import JsonValue

_DIGEST_CHARS: Final = 10
_PART_CHARS_MAX: Final = 20
_UNFIT: Final = re.compile(r"[^A-Za-z0-9.]+")


class _Expanded(NamedTuple):
    """A combination before it has a name."""

    values: Mapping[str, JsonValue]
    loaded: Loaded
    identity: str


def expanded(draft: Draft, files: Path) -> Grid:
    """The combinations a draft asks for, with the files they name, relative to `files`, read.

    Raises ConfigError with every problem of the first stage that has any.
    """
    section = section_of(draft)
    axes = axes_of(section, draft)
    base = Draft(value={key: value for key, value in draft.value.items() if key != GRID_KEY}, origins=draft.origins)
    found = _all(base, axes, section.derive, files)
    _refuse_duplicates(draft, found)
    experiment = found[0].loaded.experiment
    name = experiment.experiment_metadata.experiment_name
    return Grid(
        name=name,
        profile=experiment.profile,
        columns=tuple(column for axis in axes for column in axis.columns),
        combinations=tuple(_named(name, one) for one in found),
        asked=section.model_dump(mode="json"),
    )


def renamed(grid_name: str, combination: Combination, slug: str) -> Combination:
    """`combination` under the slug by which it is known already."""
    return _named(grid_name, _Expanded(combination.values, combination.loaded, combination.identity), slug)


def _all(base: Draft, axes: Sequence[Axis], templates: Mapping[str, str], files: Path) -> list[_Expanded]:
    """Every combination. What is wrong with several of them is told once, with the first that has it."""
    found: list[_Expanded] = []
    problems: dict[str, str] = {}
    cache: dict[str, object] = {}
    count = prod(len(axis.points) for axis in axes)
    for number, points in enumerate(product(*(axis.points for axis in axes)), start=1):
        values = {column: value for point in points for column, value in point.values.items()}
        try:
            loaded = resolved(derived(_with_points(base, points), templates), files, cache)
        except ConfigError as error:
            for line in str(error).splitlines():
                problems.setdefault(line, f"{line} (combination {number} of {count})")
            if len(problems) > CONFIG_PROBLEMS_MAX:
                break
        else:
            found.append(_Expanded(values, _slim(base, points, templates, loaded), identity_of(loaded.experiment)))
    if problems:
        raise config_error(problems.values())
    return found


def _with_points(draft: Draft, points: Iterable[Point]) -> Draft:
    for point in points:
        for setting in point.settings:
            draft = with_value(draft, setting.path, setting.value, setting.origin)
    return draft


def _slim(base: Draft, points: Sequence[Point], templates: Mapping[str, str], loaded: Loaded) -> Loaded:
    """`loaded` without its table of origins, which is laid out again should anybody ask: there may be thousands."""

    def locate(path: KeyPath) -> str:
        return derived(_with_points(base, points), templates).locate(path)

    return Loaded(experiment=loaded.experiment, resolved=loaded.resolved, locate=locate)


def _refuse_duplicates(draft: Draft, found: Sequence[_Expanded]) -> None:
    first: dict[str, _Expanded] = {}
    problems: list[Problem] = []
    for one in found:
        if (other := first.setdefault(one.identity, one)) is not one:
            text = f"{in_words(one.values)} and {in_words(other.values)} are the same experiment: no result depends on"
            problems.append(Problem((GRID_KEY,), f"{text} what they differ in"))
    if problems:
        raise told(draft, problems)


def _named(grid_name: str, one: _Expanded, slug: str | None = None) -> Combination:
    slug = slug or "-".join([*_readable(one.values), one.identity[:_DIGEST_CHARS]])
    name = f"{grid_name[: NAME_CHARS_MAX - len(slug) - 1]}-{slug}"
    metadata = one.loaded.experiment.experiment_metadata.model_copy(update={"experiment_name": name})
    experiment = one.loaded.experiment.model_copy(update={"experiment_metadata": metadata})
    loaded = Loaded(
        experiment=experiment,
        resolved={**one.loaded.resolved, "experiment_metadata": metadata.model_dump(mode="json")},
        locate=one.loaded.locate,
    )
    return Combination(slug=slug, identity=one.identity, values=one.values, loaded=loaded)


def _readable(values: Mapping[str, JsonValue]) -> Iterator[str]:
    """What a slug says of the values, as far as there is room: `lobby-classic-7`, `seed-3`."""
    room = GRID_SLUG_CHARS_MAX - _DIGEST_CHARS - 1
    for column, value in values.items():
        if value is None or isinstance(value, dict | list):
            continue
        word = value if isinstance(value, str) else json.dumps(value)
        part = _UNFIT.sub("-", f"{column.split('.')[-1]}-{word}").strip("-.")[:_PART_CHARS_MAX].strip("-.")
        if len(part) >= room:
            return
        room -= len(part) + 1
        yield part


def in_words(values: Mapping[str, JsonValue]) -> str:
    """The values of a combination on one line: `game.lobby=classic-7, seed=3`."""
    return ", ".join(
        f"{column}={value if isinstance(value, str) else clipped(value)}" for column, value in values.items()
    )
