"""Values that a JSON schema allows, drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from random import Random
from typing import Final

from mac_runner.types import JsonValue

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
