"""The types of `view_model` as TypeScript: `python -m mac_runner.views.typescript viewer/src/model.ts` writes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from mac_runner import view_model

_REF: Final = "#/$defs/"
_PLAIN: Final = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_HEAD: Final = """\
// Written by `python -m mac_runner.views.typescript viewer/src/model.ts`; do not edit.
// A field with `?` is absent where it has its default: an empty text or list, 0, false or null, if no other is named.
"""
_TONES: Final = sorted(get_args(view_model.Tone))


def typescript() -> str:
    """One interface for each struct of `view_model`, in the order of that file."""
    types = [value for value in vars(view_model).values() if isinstance(value, type)]
    structs = [kind for kind in types if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct]
    _, definitions = msgspec.json.schema_components(structs)
    tones = f"\nexport type Tone = {_union(_TONES)};\n"
    return (
        _HEAD + tones + "".join(f"\n{_interface(struct.__name__, definitions[struct.__name__])}" for struct in structs)
    )


def _interface(name: str, definition: Mapping[str, Any]) -> str:
    required = set(definition["required"])
    lines = [
        f"  readonly {field}{'' if field in required else '?'}: {_type(schema)};{_default(schema)}\n"
        for field, schema in definition["properties"].items()
    ]
    return f"{_comment(definition.get('description', ''))}export interface {name} {{\n{''.join(lines)}}}\n"


def _default(schema: Mapping[str, Any]) -> str:
    return f" // Default: {json.dumps(schema['default'])}" if schema.get("default") else ""


def _union(words: list[str]) -> str:
    return " | ".join(json.dumps(word) for word in words)


def _comment(text: str) -> str:
    lines = cleandoc(text).splitlines()
    if len(lines) == 1:
        return f"/** {lines[0]} */\n"
    return "/**\n" + "".join(f" * {line}".rstrip() + "\n" for line in lines) + " */\n"


def _type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": str(ref)}:
            return ref.removeprefix(_REF)
        case {"enum": list(words)}:
            return "Tone" if words == _TONES else _union(words)
        case {"anyOf": list(kinds)}:
            return " | ".join(sorted(map(_type, kinds), key="null".__eq__))  # The order depends on msgspec's version.
        case {"type": "array", "items": dict(items)}:
            return f"readonly {_element(items)}[]"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"Readonly<Record<string, {_type(values)}>>"
        case {"type": str(plain)} if plain in _PLAIN:
            return _PLAIN[plain]
        case _:
            raise TypeError(f"view_model: no TypeScript is known for {schema}; add it to {__name__}")


def _element(items: Mapping[str, Any]) -> str:
    kind = _type(items)
    return f"({kind})" if " " in kind else kind


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(typescript(), encoding="utf-8")
