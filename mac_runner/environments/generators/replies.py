"""The answer in a reply to an `Ask`.

Values that a JSON schema allows, drawn at random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor
from random import Random
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from mac_runner.environments.base import SPEECH_CHARS_MAX
from mac_runner.environments.generators.table import Ask
from mac_runner.environments.markup import defuse
from mac_runner.environments.reading import Cause, Problem, is_placeholder, mended_object, spoken, whole_objects
from mac_runner.types import FinishReason, JsonObject, JsonValue, Reply

_WORDS: Final = re.compile(r"[^\W_]+")
_ANSWER_CHARS_MAX: Final = 2_000
_FLAWS_MAX: Final = 5
"""As many flaws of an object are named to a model."""


def read_answer(ask: Ask, reply: Reply) -> Any:
    """The answer, or the Problem for which there is none."""
    said = spoken(reply, may_be_object=False)
    if isinstance(said, Problem):
        return Problem(Cause.EMPTY, "there was nothing outside your thoughts")
    if ask.schema is not None:
        found: Any = _object(ask, said, is_cut=reply.finish_reason is FinishReason.LENGTH)
    elif ask.choices is not None:
        found = _choice(ask.choices, said)
    elif not (found := defuse(said[:SPEECH_CHARS_MAX])):
        return Problem(Cause.EMPTY, "there was nothing in it that can be read")
    if ask.read is None or isinstance(found, Problem):
        return found
    try:
        return ask.read(found)
    except ValueError as fault:
        return Problem(Cause.REFUSED, str(fault) or "it cannot be used")


def _object(ask: Ask, said: str, *, is_cut: bool) -> Any:
    found = [placed.value for placed in whole_objects(said)]
    value = found[-1] if found else mended_object(said)
    schema = ask.json_schema or {}
    if not value and not (found and ask.model is not None):
        return Problem(Cause.CUT_OFF if is_cut else Cause.NO_OBJECT, "there was no JSON object in it")
    constants = frozenset(_constants(schema))
    if _is_copied(value or {}, tuple(_parts(schema)), constants):
        return Problem(Cause.PLACEHOLDER, "it holds what the schema says of an answer; give your own")
    value = _harmless(value or {}, constants)
    if ask.model is not None:
        return _instance(ask.model, value)
    required = schema.get("required")
    missing = [name for name in required if name not in value] if isinstance(required, list) else []
    if missing:
        return Problem(Cause.MISSING, f"the JSON object lacks {', '.join(map(str, missing))}")
    return value


def _instance(model: type[BaseModel], value: JsonObject) -> BaseModel | Problem:
    try:
        return model.model_validate(value)
    except ValidationError as fault:
        flaws = [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in fault.errors(include_url=False)]
        return Problem(Cause.INVALID, "; ".join(flaws[:_FLAWS_MAX]))


def _constants(schema: object) -> Iterator[str]:
    """The texts that a schema spells out; they are the author's and not a model's."""
    if isinstance(schema, dict):
        for key, part in schema.items():
            listed = part if isinstance(part, list) else [part]
            yield from (each for each in listed if key in ("enum", "const", "default") and isinstance(each, str))
            yield from _constants(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _constants(part)


def _parts(schema: object) -> Iterator[JsonObject]:
    """The schema and all that it consists of."""
    if isinstance(schema, Mapping):
        yield dict(schema)
    for part in schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ():
        yield from _parts(part)


def _is_copied(value: object, parts: Sequence[JsonObject], constants: frozenset[str]) -> bool:
    """Whether an answer holds a part of its schema, what that says of a text, or a name as its own value."""
    if isinstance(value, str):
        said = [part["description"] for part in parts if isinstance(part.get("description"), str)]
        return value not in constants and is_placeholder(value, (*map(str, said), "string"))
    if isinstance(value, dict):
        if value and value in parts:
            return True
        own = [name for name, part in value.items() if isinstance(part, str) and part not in constants]
        if any(is_placeholder(value[name], (name,)) for name in own):
            return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_is_copied(part, parts, constants) for part in inner)


def _harmless(value: Any, constants: frozenset[str]) -> Any:
    """The value with a model's words as others may read them."""
    if isinstance(value, str):
        return value if value in constants else defuse(value[:SPEECH_CHARS_MAX])
    if isinstance(value, list):
        return [_harmless(part, constants) for part in value]
    if isinstance(value, dict):
        return {key: _harmless(part, constants) for key, part in value.items()}
    return value


def _choice(choices: Sequence[str], said: str) -> str | Problem:
    """The choice that a text is, or the only one that its last line or all of it names."""
    plain = {choice: _plain(choice) for choice in choices}
    for text in (said, said.splitlines()[-1]):
        same = [choice for choice in choices if plain[choice] == _plain(text)]
        if len(same) == 1:
            return same[0]
    text = f" {_plain(said[-_ANSWER_CHARS_MAX:])} "
    named = [choice for choice in choices if f" {plain[choice]} " in text]
    # `the old bridge` names `bridge` too, but as a part of itself.
    inner = {one for one in named for other in named if one != other and f" {plain[one]} " in f" {plain[other]} "}
    outer = [choice for choice in named if choice not in inner]
    if len(outer) == 1:
        return outer[0]
    listed = ", ".join(choices)
    return Problem(Cause.AMBIGUOUS if outer else Cause.UNMATCHED, f"name exactly one of: {listed}")


def _plain(text: str) -> str:
    return " ".join(_WORDS.findall(text.casefold())) or text.strip()


DEPTH_MAX: Final = 12


def any_value(schema: Mapping[str, JsonValue], random: Random) -> JsonValue:
    """A value that a plain schema allows; parts that it does not know become a text."""
    return _any(schema, random, schema, DEPTH_MAX)


def _any(schema: Mapping[str, JsonValue], random: Random, root: Mapping[str, JsonValue], depth: int) -> JsonValue:
    if depth == 0:  # A schema that contains itself.
        return None
    match schema:
        case {"$ref": str(place)}:
            return _any(_definition(root, place), random, root, depth - 1)
        case {"const": value}:
            return value
        case {"enum": [*values]}:
            return random.choice(values)
        case {"anyOf": [*parts]} | {"oneOf": [*parts]}:
            return _any(random.choice([part for part in parts if isinstance(part, dict)]), random, root, depth - 1)
        case {"type": "object"}:
            properties = schema.get("properties")
            fields = properties.items() if isinstance(properties, dict) else ()
            return {name: _any(part, random, root, depth - 1) for name, part in fields if isinstance(part, dict)}
        case {"type": "integer"} | {"type": "number"}:
            return random.randint(*_bounds(schema))
        case {"type": "boolean"}:
            return random.random() < 0.5
        case {"type": "null"}:
            return None
        case {"type": "array"}:
            items, least = schema.get("items"), schema.get("minItems")
            count = least if isinstance(least, int) else 0
            return [_any(items if isinstance(items, dict) else {}, random, root, depth - 1) for _ in range(count)]
        case _:
            most = schema.get("maxLength")
            return f"word {random.randint(1, 999)}"[: most if isinstance(most, int) else None]


def _bounds(schema: Mapping[str, JsonValue]) -> tuple[int, int]:
    """Whole numbers between the bounds of a schema."""
    found = {key: value for key, value in schema.items() if isinstance(value, int | float)}
    lo = ceil(found.get("minimum", found.get("exclusiveMinimum", -1) + 1))
    hi = floor(found.get("maximum", found.get("exclusiveMaximum", lo + 11) - 1))
    return lo, max(lo, hi)


def _definition(root: Mapping[str, JsonValue], place: str) -> Mapping[str, JsonValue]:
    """The part of a schema that a reference such as `#/$defs/Offer` names."""
    found: JsonValue = dict(root)
    for part in place.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
