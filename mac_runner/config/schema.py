"""The JSON Schema of an experiment file, for editors: `python -m mac_runner.config.schema FILE` writes it.

It is made from the models that check the file. It adds `_grid` and `profiles`, which only the file has. An overlay may
leave anything out, except inside an entry that replaces another whole.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from mac_runner.config.experiment import SHORT, Experiment
from mac_runner.config.grid_axes import GRID_KEY, GridSection
from mac_runner.registry import BACKENDS, section_key
from mac_runner.section import Section
from mac_runner.types import JsonObject, JsonValue

_REF: Final = "#/$defs/"


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What the keys of a section are for, by key: the docstrings under them, where the field itself says nothing."""
    found = {name: field.description for name, field in model.model_fields.items() if field.description}
    for base in model.__mro__:
        definition = _classes(base.__module__).get(base.__name__) if issubclass(base, Section) else None
        for field, text in pairwise(definition.body if definition else ()):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as said)):
                    found.setdefault(name, inspect.cleandoc(said))
    return found


class _Described(GenerateJsonSchema):
    """A section with the descriptions of its keys. Pydantic would read its source whenever it is imported."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        said = _descriptions(schema["cls"])
        for name, key in made.get("properties", {}).items():
            if name in said:
                key["description"] = said[name]
        return made


def file_schema() -> JsonObject:
    """The schema of the whole file, `profiles` included."""
    schema = cast("JsonObject", _tidied(Experiment.model_json_schema(schema_generator=_Described)))
    definitions = cast("JsonObject", schema["$defs"])
    properties = cast("JsonObject", schema["properties"])
    cast("JsonObject", definitions["ModelDefinition"])["allOf"] = [_section_rule(backend) for backend in BACKENDS]
    cast("list[JsonValue]", cast("JsonObject", definitions["AgentDefinition"])["required"]).remove("role")
    _add_grid(properties, definitions)
    _add_short(schema, properties, definitions)
    overlay = _overlay({"type": "object", "additionalProperties": False, "properties": properties}, definitions)
    del cast("JsonObject", overlay["properties"])["profile"]
    definitions["Overlay"] = {**overlay, "description": "What a profile changes: any part of the file."}
    properties["profiles"] = {
        "type": ["object", "null"],
        "additionalProperties": {"anyOf": [{"$ref": f"{_REF}Overlay"}, {"type": "null"}]},
        "description": "Named overlays for --profile. An entry of model_definitions replaces the one of that name "
        "whole; everything else is merged key by key; a list replaces the list.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "A mac_runner experiment",
        "description": "What is played, who takes part, on which engines, and how often.",
    }


def _add_short(schema: JsonObject, properties: JsonObject, definitions: JsonObject) -> None:
    """The short keys: a file has either one or the key that it is short for."""
    either: list[JsonValue] = []
    for key, (section, name) in SHORT.items():
        reference = cast("JsonObject", properties[str(section)])["$ref"]
        inside = cast("JsonObject", definitions[str(reference).removeprefix(_REF)])
        whole = cast("JsonObject", cast("JsonObject", inside["properties"])[str(name)])
        properties[key] = {**whole, "description": f"{whole['description']} Short for `{section}.{name}`."}
        in_full: JsonObject = {"required": [section], "properties": {str(section): {"required": [name]}}}
        if name in (required := cast("list[JsonValue]", inside["required"])):
            required.remove(name)
            either.append({"oneOf": [{"required": [key]}, in_full]})
    sections = {section for section, _ in SHORT.values()}
    schema["required"] = [key for key in cast("list[JsonValue]", schema["required"]) if key not in sections]
    schema["allOf"] = either


def _add_grid(properties: JsonObject, definitions: JsonObject) -> None:
    """The section `_grid`, and what it is made of."""
    grid = cast("JsonObject", _tidied(GridSection.model_json_schema(schema_generator=_Described)))
    definitions.update(cast("JsonObject", grid.pop("$defs")))
    definitions[GridSection.__name__] = grid
    properties[GRID_KEY] = {
        "anyOf": [{"$ref": f"{_REF}{GridSection.__name__}"}, {"type": "null"}],
        "description": inspect.cleandoc(GridSection.__doc__ or ""),
    }


def schema_text() -> str:
    """The schema as its file holds it."""
    return json.dumps(file_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _section_rule(backend: str) -> JsonObject:
    """An entry with this backend has its section and no other."""
    others: JsonObject = {section_key(other): {"type": "null"} for other in BACKENDS if other != backend}
    return {
        "if": {"properties": {"backend": {"const": backend}}, "required": ["backend"]},
        "then": {"required": [section_key(backend)], "properties": others},
    }


def _overlay(section: JsonObject, definitions: JsonObject) -> JsonObject:
    """`section` with nothing required, in it and in the sections directly in it."""
    properties = cast("JsonObject", section["properties"])
    relaxed: JsonObject = {key: _relaxed(value, definitions) for key, value in properties.items()}
    return {**{key: value for key, value in section.items() if key != "required"}, "properties": relaxed}


def _relaxed(property_: JsonValue, definitions: JsonObject) -> JsonValue:
    """A property that may hold part of a section. Entries of lists and mappings are left alone: they are wholes."""
    if not isinstance(property_, dict):
        return property_
    relaxed: JsonObject = {key: value for key, value in property_.items() if key != "default"}
    if isinstance(reference := relaxed.get("$ref"), str):
        name = reference.removeprefix(_REF)
        if f"{name}Overlay" not in definitions:
            definitions[f"{name}Overlay"] = _overlay(cast("JsonObject", definitions[name]), definitions)
        relaxed["$ref"] = f"{_REF}{name}Overlay"
    if isinstance(members := relaxed.get("anyOf"), list):
        relaxed["anyOf"] = [_relaxed(member, definitions) for member in members]
    return relaxed


def _tidied(value: object) -> JsonValue:
    """Drop the titles pydantic makes of the keys, and let a mapping of names hold nothing under other names."""
    if isinstance(value, dict):
        if "patternProperties" in value:
            value = {**value, "additionalProperties": False}
        kept = ((key, part) for key, part in value.items() if not (key == "title" and isinstance(part, str)))
        return {str(key): _tidied(part) for key, part in kept}
    if isinstance(value, list):
        return [_tidied(part) for part in value]
    return cast("JsonValue", value)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
