"""`_grid`: what an experiment file varies. Its form, and what comes of it.

Four ways to vary, each over any key of the file by its dotted path. `sweep` tries every value of a key; `zip` varies
several keys together, row by row; `broadcast` gives several keys the same value; all of these multiply. `derive` adds
nothing to the count: it computes a key of each combination from its other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from pydantic import Field, JsonValue

from mac_runner.config.resolving import Loaded
from mac_runner.section import Listed, Name, Section, Text
from mac_runner.types import JsonObject
from mac_runner.types import JsonValue as PlainValue

GRID_KEY: Final = "_grid"

Rows: TypeAlias = Annotated[Listed[Annotated[Mapping[Text, JsonValue], Field(min_length=1)]], Field(min_length=1)]
"""Keys that vary together, one mapping of keys to values after the other."""
Columns: TypeAlias = Annotated[Mapping[Text, Annotated[Listed[JsonValue], Field(min_length=1)]], Field(min_length=1)]
"""Keys that vary together, each with its list; the lists are equally long."""


class BroadcastGroup(Section):
    """Several keys that always have the same value."""

    paths: Annotated[Listed[Text], Field(min_length=1)]
    """The keys."""
    values: Annotated[Listed[JsonValue], Field(min_length=1)]
    """The values they have, all of them at a time."""


class GridSection(Section):
    """What the combinations of a grid differ in; a key is written as `--set` takes it."""

    sweep: Mapping[Text, Annotated[Listed[JsonValue], Field(min_length=1)]] = {}
    """Each key with all the values that it is to take."""
    zip: Mapping[Name, Rows | Columns] = {}
    """Groups of keys that vary together: a list of rows, or for each key a list of its values."""
    broadcast: Mapping[Name, BroadcastGroup] = {}
    """Groups of keys that have the same value, and the values."""
    derive: Mapping[Text, Text] = {}
    """Keys computed from others: a text in which `{dotted.path}` stands for the value of that key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One experiment of a grid.

    `identity` is a digest of all that its results depend on; `slug`, made of it and of its `values`, names its
    directory and is the end of its experiment's name. `values` are what it differs in, by column of the grid.
    """

    slug: str
    identity: str
    values: Mapping[str, PlainValue]
    loaded: Loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The experiments of one file, in the order in which the axes vary: the first one slowest.

    `name` is what the file calls the experiment, `columns` what the combinations differ in, `asked` the section itself.
    """

    name: str
    profile: str
    columns: tuple[str, ...]
    combinations: tuple[Combination, ...]
    asked: JsonObject
