"""The complaints of pydantic in our own words: what was found, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mac_runner.config.experiment import Experiment
from mac_runner.problems import Problem, dotted, found, suggestion
from mac_runner.section import (
    ADDRESS,
    PATTERN_WORDS,
    URL_PATTERN,
    VARIABLE_PATTERN,
    KeyPath,
    Section,
    leaf_fields,
    place_at,
)
from mac_runner.types import JsonValue

_TYPES: Final[Mapping[str, str]] = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "mapping_type": "a mapping",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
    "list_type": "a list",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "none_required": "nothing",
    "json_type": "plain values",
}
_BOUNDS: Final[Mapping[str, Callable[[Mapping[str, object]], str]]] = {
    "greater_than_equal": lambda ctx: f"at least {ctx['ge']}",
    "greater_than": lambda ctx: f"more than {ctx['gt']}",
    "less_than_equal": lambda ctx: f"at most {ctx['le']}",
    "less_than": lambda ctx: f"less than {ctx['lt']}",
    "string_too_short": lambda ctx: "a text that is not empty",
    "string_too_long": lambda ctx: f"a text of at most {ctx['max_length']} characters",
    "too_short": lambda ctx: f"at least {ctx['min_length']} of them",
    "too_long": lambda ctx: f"at most {ctx['max_length']} of them",
    "literal_error": lambda ctx: f"one of {ctx['expected']}",
    ADDRESS: lambda ctx: f"the address of a server ({ctx['flaw']})",
    "string_pattern_mismatch": lambda ctx: PATTERN_WORDS.get(str(ctx["pattern"]), "a text of another form"),
}


def complaints(failure: ValidationError, data: JsonValue, *, root: type[Section] = Experiment) -> Iterator[Problem]:
    """Every problem of `failure`, which was raised for `data` as a `root`, one for each path."""
    gathered: dict[KeyPath, list[ErrorDetails]] = {}
    for error in failure.errors(include_url=False):
        gathered.setdefault(_path_in(data, error), []).append(error)
    parents = {path[:length] for path in gathered for length in range(len(path))}
    for path, errors in gathered.items():
        # A value that fits no member of a union is told about once, at the deepest place it was followed to.
        if path not in parents:
            yield Problem(path, _text(path, errors, root))


def _path_in(data: JsonValue, error: ErrorDetails) -> KeyPath:
    """The error's place in the file: its location without the names pydantic gives to members of a union."""
    path: list[str | int] = []
    here = data
    for part in error["loc"]:
        if isinstance(here, dict) and part in here:
            here = here[str(part)]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        elif error["type"] != "missing":
            continue
        path.append(part)
    return tuple(path)


def _text(path: KeyPath, errors: list[ErrorDetails], root: type[Section]) -> str:
    kind = errors[0]["type"]
    if kind == "extra_forbidden":
        section = place_at(root, path[:-1]).section
        return (
            f"unknown key{_elsewhere(path, root) or suggestion(str(path[-1]), section.model_fields if section else ())}"
        )
    if kind == "missing":
        return "is missing"
    words = dict.fromkeys(allowed(error["type"], error.get("ctx", {})) or "another value" for error in errors)
    what = "what stands here is not allowed" if _may_be_secret(errors[0]) else found(_found(errors[0]))
    return f"{what}; allowed: {' or '.join(words)}"


def _elsewhere(path: KeyPath, root: type[Section]) -> str:
    """Where a key at the top of the file belongs; empty when no section has it, or more than one."""
    found = [leaf for leaf, _ in leaf_fields(root) if len(path) == 1 and leaf[-1] == path[0] and "*" not in leaf]
    return f"; did you mean {dotted(found[0])!r}?" if len(found) == 1 else ""


def _may_be_secret(error: ErrorDetails) -> bool:
    """Whether the value may be a key or a password pasted in the wrong place: no screen and no log repeats those."""
    pattern, value = error.get("ctx", {}).get("pattern"), str(error["input"])
    if error["type"] == ADDRESS:
        return "?" in value or "#" in value
    return pattern == VARIABLE_PATTERN or (pattern == URL_PATTERN and ("@" in value or "://" not in value))


def allowed(kind: str, context: Mapping[str, object]) -> str | None:
    """What may stand where pydantic found an error of this kind, in our own words; None where we have none."""
    if (words := _TYPES.get(kind)) is not None:
        return words
    bound = _BOUNDS.get(kind)
    return None if bound is None else bound(context)


def _found(error: ErrorDetails) -> JsonValue:
    value: JsonValue = error["input"]
    return value
