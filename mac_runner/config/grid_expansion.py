"""A draft with `_grid` to its combinations, each a complete experiment. Pure.

A combination is recognised by its identity, a digest of everything its results depend on, without defaults. So the
identity stays the same when the file gets other combinations, or the format another key. Two combinations of the same
identity would be one experiment run twice, and are refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import product
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.config.grid_axes import (
    GRID_KEY,
    Axis,
    Combination,
    Grid,
    Point,
    Setting,
    axes_of,
    related,
    section_of,
    too_many,
)
from mac_runner.config.identity import identity_of
from mac_runner.config.resolution import Draft, Loaded, draft_error, refuse, resolve_path, resolved, with_value
from mac_runner.config.validation import idle_agents, idle_fleet
from mac_runner.errors import ConfigError
from mac_runner.problems import CONFIG_PROBLEMS_MAX, Problem, clipped, config_error, dotted
from mac_runner.registry import Variant
from mac_runner.section import KeyPath
from mac_runner.spec import AgentDefinition, ReportConfig
from mac_runner.types import JsonObject, JsonValue

_DIGEST_CHARS: Final = 6
_LONGER_DIGEST_CHARS: Final = 16
"""Where six characters are the same for two combinations."""
_VALUE_CHARS_MAX: Final = 24
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
GRID_SLUG_CHARS_MAX: Final = 60
"""The longest name of a combination, which names its directory."""
NAME_CHARS_MAX: Final = 80
"""The longest name of an experiment."""


class _Expanded(NamedTuple):
    """A combination before it has a name."""

    values: Mapping[str, JsonValue]
    loaded: Loaded
    identity: str
    idle: Mapping[str, Problem]
    """The agent definitions that it was made without."""


def expanded(draft: Draft, files: Path) -> Loaded | Grid:
    """The experiment of a draft, or the combinations of its grid, with the files they name read, relative to `files`.

    Combinations are those of `_grid`, each with all variants of its environment's section. Raises ConfigError with
    every problem of the first stage that has any.
    """
    section = section_of(draft)
    axes = axes_of(section, draft)
    base = Draft(
        value={key: value for key, value in draft.value.items() if key != GRID_KEY},
        # Each combination copies them, so the places of all values that vary stay behind.
        origins={
            path: origin
            for path, origin in draft.origins.items()
            if path[:1] != (GRID_KEY,) or path[1:2] in ((), ("derive",))
        },
    )
    found = _all(base, axes, section.derive, files)
    is_grid = any(one.values for one in found)
    if not is_grid and draft.value.get(GRID_KEY) is not None:
        text = "varies nothing; name a key under sweep, zip or broadcast, or leave the section out"
        raise draft_error(draft, [Problem((GRID_KEY,), text)])
    _refuse_idle(draft, found)
    if not is_grid:
        return found[0].loaded
    _refuse_duplicates(draft, found)
    experiments = [one.loaded.experiment for one in found]
    if any(each.report != experiments[0].report for each in experiments):
        raise draft_error(draft, [Problem(("report",), "differs between combinations; a grid has one report")])
    if any(each.limits != experiments[0].limits for each in experiments):
        text = "differs between combinations; it bounds what all of them use together"
        raise draft_error(draft, [Problem(("limits",), text)])
    experiment = found[0].loaded.experiment
    name = experiment.experiment_metadata.experiment_name
    return Grid(
        name=name,
        profile=experiment.profile,
        columns=tuple(dict.fromkeys(column for one in found for column in one.values)),
        combinations=tuple(
            renamed(name, Combination(slug="", identity=one.identity, values=one.values, loaded=one.loaded), slug)
            for one, slug in zip(found, _slugs(found), strict=True)
        ),
        asked=section.model_dump(mode="json"),
        report=experiment.report,
    )


def slug_beside(combination: Combination, taken: Collection[str]) -> str:
    """The slug of a combination that is none of `taken`, which other experiments have in a grid's directory."""
    folded = {slug.casefold() for slug in taken}
    endings = (combination.identity[:count] for count in (_DIGEST_CHARS, _LONGER_DIGEST_CHARS))
    slugs = (combination.slug, *(_with_digest(combination.slug, ending) for ending in endings))
    return next((slug for slug in slugs if slug.casefold() not in folded), combination.identity)


def _all(base: Draft, axes: Sequence[Axis], templates: Mapping[str, str], files: Path) -> list[_Expanded]:
    """Every combination. A problem that several of them have is reported once, for the first one."""
    found: list[_Expanded] = []
    problems: dict[str, str] = {}
    cache: dict[str, object] = {}
    count = prod(len(axis.points) for axis in axes)

    def resolve(points: Iterable[Point]) -> Loaded:
        draft = base
        for setting in (setting for point in points for setting in point.settings):
            draft = with_value(draft, setting.path, setting.value, setting.origin)
        return resolved(derived(draft, templates), files, cache)

    for number, points in enumerate(product(*(axis.points for axis in axes)), start=1):
        try:
            loaded = resolve(points)
            experiment, settings = loaded.experiment, loaded.experiment.environment_settings
            expands = () if settings is None else experiment.spec.variants(experiment, settings)
            variants = [_variant_point(variant, points, loaded) for variant in expands]
            if problem := next(too_many((count, len(variants))), None):
                raise draft_error(base, [problem])
            for place in variants:
                several = (*points, place)
                found.append(_expanded(several, resolve(several)))
            if not variants:
                found.append(_expanded(points, loaded))
        except ConfigError as error:
            where = f" (combination {number} of {count})" if axes else ""
            for line in str(error).splitlines():
                problems.setdefault(line, f"{line}{where}")
            if len(problems) > CONFIG_PROBLEMS_MAX:
                break
    if problems:
        raise config_error(problems.values())
    return found


def _expanded(points: Sequence[Point], loaded: Loaded) -> _Expanded:
    """A combination, without the agent definitions that it does not need."""
    values = {column: value for point in points for column, value in point.values.items()}
    idle = idle_agents(loaded.experiment)
    needed = _without_agents(loaded, idle)
    return _Expanded(values, needed, identity_of(needed.experiment), idle)


def _variant_point(variant: Variant, points: Sequence[Point], loaded: Loaded) -> Point:
    """A variant as a place on an axis of its own. Raises ConfigError when it is named like another axis."""
    origin = loaded.locate(variant.key)
    if taken := sorted({column for point in points for column in point.values} & variant.values.keys()):
        text = f"{dotted(variant.key)} has a column {taken[0]!r}, as has {GRID_KEY}; give that one another name"
        raise config_error([f"{origin}: {text}"])
    settings = tuple(Setting(path=path, value=value, origin=origin) for path, value in variant.settings.items())
    return Point(settings=settings, values=variant.values)


def _without_agents(loaded: Loaded, idle: Collection[str]) -> Loaded:
    """The experiment without some agent definitions, and without models that speak for no other.

    So a combination needs no engine of theirs, and keeps its identity when the file gets another definition.
    """
    if not idle:
        return loaded
    agents = loaded.experiment.agent_definitions
    kept = [index for index, agent in enumerate(agents) if agent.agent_id not in idle]
    unneeded = {agent.model for agent in agents} - {agents[index].model for index in kept}
    models = loaded.experiment.model_definitions
    experiment = loaded.experiment.model_copy(
        update={
            "agent_definitions": tuple(_without_waits(agents[index], idle) for index in kept),
            "model_definitions": {name: model for name, model in models.items() if name not in unneeded},
        }
    )

    def locate(path: KeyPath) -> str:
        match path:
            case ("agent_definitions", int(index), *rest) if index < len(kept):
                return loaded.locate(("agent_definitions", kept[index], *rest))
        return loaded.locate(path)

    return Loaded(experiment=experiment, resolved=experiment.dumped(), locate=locate)


def _without_waits(agent: AgentDefinition, idle: Collection[str]) -> AgentDefinition:
    """An agent that waits for none of these."""
    config = agent.role_specific_config
    waits = tuple(other for other in config.speak_after_within_round if other not in idle)
    changed = config.model_copy(update={"speak_after_within_round": waits})
    return agent.model_copy(update={"role_specific_config": changed})


def _refuse_idle(draft: Draft, found: Sequence[_Expanded]) -> None:
    """An agent definition has to take part in one combination at least, and one has to use the fleet."""
    idle = [problem for name, problem in found[0].idle.items() if all(name in one.idle for one in found)]
    fleets = [list(idle_fleet(one.loaded.experiment)) for one in found]
    refuse(draft, [*idle, *(fleets[0] if all(fleets) else ())])


def _refuse_duplicates(draft: Draft, found: Sequence[_Expanded]) -> None:
    first: dict[str, _Expanded] = {}
    problems: list[Problem] = []
    for one in found:
        if (other := first.setdefault(one.identity, one)) is not one:
            text = f"{in_words(one.values)} and {in_words(other.values)} are the same experiment: no result depends on"
            problems.append(Problem((GRID_KEY,), f"{text} what they differ in"))
    refuse(draft, problems)


def renamed(grid_name: str, one: Combination, slug: str) -> Combination:
    """A combination under another slug, such as the one that it already has."""
    name = f"{grid_name[: NAME_CHARS_MAX - len(slug) - 1]}-{slug}"
    metadata = one.loaded.experiment.experiment_metadata.model_copy(update={"experiment_name": name})
    # How combinations are compared is of the grid: each of them is an experiment that can be played alone.
    alone = {"experiment_metadata": metadata, "report": ReportConfig()}
    experiment = one.loaded.experiment.model_copy(update=alone)
    loaded = Loaded(
        experiment=experiment,
        resolved={**one.loaded.resolved, **{key: part.model_dump(mode="json") for key, part in alone.items()}},
        locate=one.loaded.locate,
    )
    return replace(one, slug=slug, loaded=loaded)


def _slugs(found: Sequence[_Expanded]) -> list[str]:
    """A slug for each combination: its values, such as `max_rounds-2_model-a`.

    A value that fits in no name, such as a description, is called by its number in its column. A slug that does not say
    all of the values has a digest of the identity behind it. Slugs that are alike for another reason, such as small and
    large letters, have one as well.
    """
    heads = _heads(dict.fromkeys(column for one in found for column in one.values))
    numbers: dict[str, dict[str, int]] = {column: {} for column in heads}
    for one in found:
        for column, value in one.values.items():
            numbers[column].setdefault(json.dumps(value), len(numbers[column]) + 1)
    readable = [
        _readable(
            [_part(heads[column], value, numbers[column][json.dumps(value)]) for column, value in one.values.items()]
        )
        for one in found
    ]
    slugs = [
        text if is_whole else _with_digest(text, one.identity[:_DIGEST_CHARS])
        for one, (text, is_whole) in zip(found, readable, strict=True)
    ]
    for chars in (_DIGEST_CHARS, _LONGER_DIGEST_CHARS):
        counts = Counter(slug.casefold() for slug in slugs)
        slugs = [
            slug if counts[slug.casefold()] == 1 else _with_digest(text, one.identity[:chars])
            for one, slug, (text, _) in zip(found, slugs, readable, strict=True)
        ]
    return slugs


def _with_digest(text: str, digest: str) -> str:
    kept = text[: GRID_SLUG_CHARS_MAX - len(digest) - 1].rstrip("._-")
    return f"{kept}_{digest}" if kept else digest


def _heads(columns: Iterable[str]) -> dict[str, str]:
    """What each column is called: the end of its key, with as many parts as distinguish it from the others."""
    parts = {column: column.split(".") for column in columns}
    heads: dict[str, str] = {}
    for column, own in parts.items():
        others = [other for name, other in parts.items() if name != column]
        sizes = range(1, len(own) + 1)
        size = next((size for size in sizes if all(other[-size:] != own[-size:] for other in others)), len(own))
        heads[column] = ".".join(own[-size:])
    return heads


def _readable(parts: Sequence[tuple[str, bool]]) -> tuple[str, bool]:
    """What a slug says of the values, as far as there is room, and whether that is all of them."""
    text = "_".join(part for part, _ in parts if part)
    if text[:1].isalnum() and len(text) <= GRID_SLUG_CHARS_MAX and all(is_whole for _, is_whole in parts):
        return text, True
    said: list[str] = []
    for part, _ in parts:
        if part and len("_".join([*said, part])) + 1 + _DIGEST_CHARS <= GRID_SLUG_CHARS_MAX:
            said.append(part)
    return "_".join(said).lstrip("._-"), False


def _part(head: str, value: JsonValue, number: int) -> tuple[str, bool]:
    """`max_rounds-2`, and whether it says which value it is; empty for null."""
    if value is None:
        return "", True
    head = _UNFIT.sub("-", head).strip("._-")
    word = value if isinstance(value, str) else json.dumps(value)
    end = word.rsplit("/", 1)[-1]  # Of a path or the name of a model it says most.
    if not end or len(end) > _VALUE_CHARS_MAX or _UNFIT.search(end):
        return f"{head}-{number}", True
    return f"{head}-{end}", end == word


def in_words(values: Mapping[str, JsonValue]) -> str:
    """The values of a combination on one line: `game.lobby=classic-7, seed=3`."""
    return ", ".join(
        f"{column}={value if isinstance(value, str) else clipped(value)}" for column, value in values.items()
    )


_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


class _Rule(NamedTuple):
    """How a key is computed: its path, the pieces of its text, and the path of each placeholder in it."""

    path: KeyPath
    pieces: Sequence[re.Match[str]]
    needs: Mapping[str, KeyPath]


def derived(draft: Draft, templates: Mapping[str, str]) -> Draft:
    """`draft` with every derived key. Raises ConfigError for an unknown placeholder and for keys in a circle."""
    rules: dict[str, _Rule] = {}
    for key, template in templates.items():
        try:
            rules[key] = _rule(draft, key, template)
        except ValueError as fault:
            raise _refused(draft, key, str(fault)) from None
    graph = {
        key: [other for other in rules if any(related(need, rules[other].path) for need in rule.needs.values())]
        for key, rule in rules.items()
    }
    try:
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError as fault:
        circle = fault.args[1][::-1]
        raise _refused(draft, circle[0], f"needs itself: {' -> '.join(circle)}") from None
    for key in order:
        try:
            value = _filled(draft.value, rules[key])
        except ValueError as fault:
            raise _refused(draft, key, str(fault)) from None
        draft = with_value(draft, rules[key].path, value, draft.locate((GRID_KEY, "derive", key)))
    return draft


def _rule(draft: Draft, key: str, template: str) -> _Rule:
    """Raises ValueError for a brace without its other half, and for a key or placeholder that leads nowhere."""
    pieces = [*_PIECE.finditer(template)]
    if any(piece[0] in ("{", "}") for piece in pieces):
        text = "holds a brace without its other half; write {{ or }} for a brace itself"
        raise ValueError(f"{clipped(template)} {text}")
    needs: dict[str, KeyPath] = {}
    for placeholder in (piece[1] for piece in pieces if piece[1] is not None):
        try:
            needs[placeholder] = resolve_path(draft.value, placeholder)
        except ValueError as fault:
            raise ValueError(f"{{{placeholder}}}: {fault}") from None
    return _Rule(resolve_path(draft.value, key), pieces, needs)


def _filled(value: JsonObject, rule: _Rule) -> JsonValue:
    """What a rule gives: the value of a single placeholder, or else a text. Raises ValueError where it cannot."""
    found = {placeholder: _value(value, placeholder, path) for placeholder, path in rule.needs.items()}
    if len(rule.pieces) == 1 and rule.pieces[0][1] is not None:
        return found[rule.pieces[0][1]]
    texts = {"{{": "{", "}}": "}"}
    for placeholder, one in found.items():
        if isinstance(one, dict | list):
            raise ValueError(f"{{{placeholder}}} is not a single value, and it is inside a text")
        texts[f"{{{placeholder}}}"] = one if isinstance(one, str) else json.dumps(one)
    return "".join(texts.get(piece[0], piece[0]) for piece in rule.pieces)


def _value(value: JsonValue, placeholder: str, path: KeyPath) -> JsonValue:
    for part in path:
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif isinstance(value, dict) and part in value:
            value = value[str(part)]
        else:
            text = f"there is no value {{{placeholder}}} in the file; a default counts only when it is written out"
            raise ValueError(text)
    return value


def _refused(draft: Draft, key: str, text: str) -> ConfigError:
    return draft_error(draft, [Problem((GRID_KEY, "derive", key), text)])
