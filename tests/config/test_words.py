"""Every key of an experiment file with every kind of wrong value: each refusal has its place and our own words."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pytest
import yaml

from mac_runner.config import Experiment, GridSection
from mac_runner.errors import ConfigError
from mac_runner.section import KeyPath, Settings, is_collection, section_of
from mac_runner.types import JsonObject, JsonValue
from tests.config.conftest import loaded
from tests.faults.tier import step_of

FOREIGN: Final = re.compile(
    r"pydantic|Input should|validation error|Value error|Assertion|For further|Traceback|another value|another form"
    r"|type=|input_value|\b(?:str|int|dict|tuple|bool|NoneType)\b",
    re.IGNORECASE,
)
PLACE: Final = re.compile(r"trial\.yaml:\d+: |--set \S+?:|\.\.\. and more")

WRONG: Final = (
    *("null", "[]", "{}", "true", '""', "x", "-1", "1.5", "9" * 18, "9" * 30, "1e308", ".nan", "2020-01-01"),
    *("[null]", "{a: null}", "[[[]]]", '"a\\0b"', '"http://u:p@h"', '{"": 1}', "[1, x]", "[{a: 1}]", "y" * 5_000),
)

SCRIPTED: Final[JsonObject] = {"backend": "scripted", "scripted_config": {"policy": "heuristic"}}
GAME: Final[JsonObject] = {
    "experiment_metadata": {"experiment_name": "x"},
    "conversation_config": {"environment": "town_of_salem", "conversations": 3},
    "agent_definitions": [{"agent_id": "a", "role": "participant", "model": "m", "demographics": {"age": 3}}],
    "model_definitions": {"m": SCRIPTED},
}
EVERYTHING: Final[JsonObject] = {
    **GAME,
    "game": {"seats": {"a": 7}},
    "discussion": {"topics": ["t"], "routing_strategy": {"groups": {"g": ["a"]}, "channels": {"c": ["a"]}}},
    "echo": {"rounds": 1},
    "model_definitions": {
        "m": {
            **SCRIPTED,
            "vllm_config": {"model": "m", "chat_template_kwargs": {"k": 1}},
            "ollama_config": {"model": "m"},
            "openai_config": {"model": "m", "base_urls": ["http://h"], "chat_template_kwargs": {"k": 1}},
            "nano_config": {"model": "m", "chat_template_kwargs": {"k": 1}},
        }
    },
}
INSIDE: Final[tuple[KeyPath, ...]] = (
    ("game", "seats", "a"),
    ("agent_definitions", 0, "demographics", "age"),
    ("discussion", "topics", 0),
    ("discussion", "routing_strategy", "groups", "g"),
    ("discussion", "routing_strategy", "channels", "c", 0),
    ("model_definitions", "m", "openai_config", "base_urls", 0),
    ("model_definitions", "m", "openai_config", "chat_template_kwargs", "k"),
    ("no_such_key",),
    ("profiles",),
    ("profiles", "night"),
    ("_grid",),
)
GRID: Final[JsonObject] = {
    "sweep": {"seed": [1, 2]},
    "zip": {"rows": [{"seed": 1}], "columns": {"seed": [1, 2]}},
    "broadcast": {"b": {"paths": ["seed"], "values": [1]}},
    "derive": {"seed": "{seed}"},
}
IN_GRID: Final[tuple[KeyPath, ...]] = (
    ("sweep", "seed"),
    ("sweep", "seed", 0),
    ("sweep", "no_such_key"),
    ("zip", "rows"),
    ("zip", "rows", 0),
    ("zip", "rows", 0, "seed"),
    ("zip", "columns", "seed"),
    ("zip", "columns", "seed", 1),
    ("broadcast", "b"),
    ("broadcast", "b", "paths", 0),
    ("broadcast", "b", "values", 0),
    ("derive", "seed"),
)
DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
NAMES: Final[Mapping[str, str | int]] = {
    "model_definitions": "m",
    "agent_definitions": 0,
    "broadcast": "b",
    "plugins": "p",
    "metric_plugins": "p",
}


def keys(section: type[Settings], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of a file below `prefix`, one entry of each collection among them."""
    for name, field in section.model_fields.items():
        here = (*prefix, name)
        yield here
        if (inner := section_of(field.annotation)) is not None:
            if is_collection(field.annotation):
                here = (*here, NAMES[name])
                yield here
            yield from keys(inner, here)


def cases(paths: Iterable[KeyPath], every: int) -> Iterator[tuple[KeyPath, str]]:
    """Each key with each wrong value at night; by day with one in `every`, another share for the next key."""
    step = step_of(every)
    for number, path in enumerate(paths):
        for value in WRONG[number % step :: step]:
            yield path, value


def with_value(file: JsonObject, path: KeyPath, value: str) -> str:
    """The file as YAML, with something written at a path."""
    changed: JsonValue = copy.deepcopy(file)
    here = changed
    for part in path[:-1]:
        here = here.setdefault(str(part), {}) if isinstance(here, dict) else here[part]  # type: ignore[index]
    here[path[-1]] = "@HERE@"  # type: ignore[index]
    text: str = yaml.dump(changed, Dumper=DUMPER, sort_keys=False, width=10_000)
    return re.sub("'?@HERE@'?", lambda _match: value, text)


def foreign(text: str, what: str, *flags: str) -> list[str]:
    """The lines of a refusal that have no place, or words that are not ours."""
    try:
        loaded(text, overrides=flags)
    except ConfigError as refusal:
        return [
            f"{what}: {line:.300}"
            for line in str(refusal).splitlines()
            if FOREIGN.search(line) or not PLACE.match(line) or not line.isprintable()
        ]
    return []


@pytest.mark.ci
@pytest.mark.parametrize("part", range(2))
def test_every_key_with_every_wrong_value_is_refused_with_its_place_in_our_words(part: int) -> None:
    wrong: list[str] = []
    for path, value in [*cases((*keys(Experiment), *INSIDE), 6)][part::2]:
        wrong += foreign(with_value(EVERYTHING, path, value), f"{path} = {value:.40}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.ci
def test_every_key_set_by_a_flag_is_refused_with_the_flag_in_our_words() -> None:
    file, wrong = yaml.safe_dump(EVERYTHING), list[str]()
    for path, value in cases((*keys(Experiment), *INSIDE), 19):
        flag = f"{'.'.join(map(str, path))}={value}"
        wrong += foreign(file, f"--set {flag:.80}", flag)

    assert not wrong, "\n".join(wrong)


def test_every_key_of_a_grid_is_refused_with_its_place_in_our_words() -> None:
    wrong: list[str] = []
    for path, value in cases((*keys(GridSection), *IN_GRID), 4):
        text = with_value({**GAME, "_grid": {str(path[0]): GRID[str(path[0])]}}, ("_grid", *path), value)
        wrong += foreign(text, f"_grid.{path} = {value:.40}")

    # A correct grid is refused, because one experiment is asked for.
    wrong = [line for line in wrong if "this command takes a single experiment" not in line]
    assert not wrong, "\n".join(wrong)
