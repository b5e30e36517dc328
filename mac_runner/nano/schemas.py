"""JSON schemas before they are compiled: bounds, closed objects, and whether compiling is sure to be cheap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from mac_runner.nano.errors import ConstraintError

SCHEMA_CHARS_MAX = 1 << 20
ITEMS_MAX = 10_000
"""The most items that an array may be asked for by number: each is a part of the grammar."""
PLAIN_CHARS_MAX = 8 << 10
_PLAIN_ITEMS_MAX = 100
_COUNTS: Final = ("minItems", "maxItems")
_OF_SCHEMAS_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_OF_SCHEMAS: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "prefixItems",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords that hold a schema, or a list of them."""
_ALTERNATIVES: Final = frozenset({"$ref", "anyOf", "oneOf"})
_UNHEARD: Final = frozenset({"$defs", "$schema", "default", "definitions", "description", "examples", "title"})
"""Keywords that say nothing about a reply."""
_PLAIN: Final = frozenset(
    {
        *_UNHEARD,
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "enum",
        "items",
        "maxItems",
        "maxLength",
        "minItems",
        "minLength",
        "prefixItems",
        "properties",
        "required",
        "type",
    }
)
"""Keywords that a grammar grows with only as fast as the schema does, unless alternatives stand beside others."""
_JOINING: Final = frozenset(
    {"allOf", "dependentSchemas", "else", "if", "not", "then", "unevaluatedProperties", "dependencies"}
)
"""Keywords by which one object must satisfy several schemas, or fail one."""
_ABOUT_OBJECTS: Final = frozenset({"additionalProperties", "patternProperties", "properties"})


def read_schema(text: str) -> tuple[str, bool]:
    """The schema with its objects closed, and whether it is plain: compiled in milliseconds. Raises ConstraintError.

    An object whose `properties` are listed has no others unless `additionalProperties` says so, as at other servers. A
    schema that joins several into one, such as `allOf`, stays as it is: closed, they could exclude each other.
    """
    if len(text) > SCHEMA_CHARS_MAX:
        raise ConstraintError(f"json_schema has {len(text)} characters; at most {SCHEMA_CHARS_MAX} are possible")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"json_schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConstraintError("json_schema is not a JSON object")
    parts = list(_parts(schema))
    for part in parts:
        for name in _COUNTS:
            if _number(part, name) > ITEMS_MAX:
                raise ConstraintError(f"json_schema: {name} is {part[name]}; at most {ITEMS_MAX} is possible")
    if not any(map(_is_joined, parts)):
        for part in parts:
            if "properties" in part:
                part.setdefault("additionalProperties", False)
    is_plain = len(text) <= PLAIN_CHARS_MAX and all(map(_is_plain, parts))
    return json.dumps(schema), is_plain


def _parts(schema: object) -> Iterator[dict[str, Any]]:
    """The schema and all within it."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            yield part
            left += [value for name, value in part.items() if name in _OF_SCHEMAS]
            by_name = [value for name, value in part.items() if name in _OF_SCHEMAS_BY_NAME]
            left += [each for value in by_name if isinstance(value, dict) for each in value.values()]


def _is_joined(part: dict[str, Any]) -> bool:
    names = part.keys()
    return bool(names & _JOINING) or bool(names & _ABOUT_OBJECTS and names & _ALTERNATIVES)


def _is_plain(part: dict[str, Any]) -> bool:
    # What stands beside alternatives is joined with each of them, and that with each of the next level.
    is_joined = part.keys() & _ALTERNATIVES and len(part.keys() - _UNHEARD) > 1
    is_few = all(_number(part, name) <= _PLAIN_ITEMS_MAX for name in _COUNTS)
    return not is_joined and _PLAIN.issuperset(part) and is_few


def _number(part: dict[str, Any], name: str) -> float:
    value = part.get(name, 0)
    return value if isinstance(value, int | float) else 0
