"""An experiment as it may be given to others: without the addresses, variables and folders of the machine it ran on."""

from __future__ import annotations

import re
from typing import Final

from mac_runner.registry import BACKENDS
from mac_runner.secrecy import says_secret
from mac_runner.spec import MODELS, SETTINGS
from mac_runner.types import JsonObject, JsonValue

LEFT_OUT: Final = "(left out)"
_PRIVATE: Final = frozenset({"base_url", "base_urls", "host"})
"""Keys of the sections of backends whose values name machines."""
_ABSOLUTE: Final = re.compile(r"^(?:/|~|[A-Za-z]:[\\/])\S*[\\/](?=[^\\/\s]+$)")
"""The folder of an absolute path."""


def shareable(resolved: JsonObject) -> JsonObject:
    """The recorded experiment with `(left out)` in place of addresses, names of variables, secrets, and folders.

    The settings of a backend that is not built in may hold any of them, so they are left out whole.
    """
    found = {key: _without_folders(value) for key, value in resolved.items()}
    if isinstance(models := found.get(MODELS), dict):
        found[MODELS] = {name: _model(definition) for name, definition in models.items()}
    return found


def _model(definition: JsonValue) -> JsonValue:
    if not isinstance(definition, dict):
        return definition
    if definition.get("backend") not in BACKENDS and definition.get(SETTINGS) is not None:
        definition = {**definition, SETTINGS: LEFT_OUT}
    return {key: _without_private(value) for key, value in definition.items()}


def _without_private(value: JsonValue) -> JsonValue:
    if not isinstance(value, dict):
        return value
    return {key: LEFT_OUT if inner and _is_private(key) else _without_private(inner) for key, inner in value.items()}


def _is_private(key: str) -> bool:
    return key in _PRIVATE or key.endswith("_env") or says_secret(key)


def _without_folders(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return _ABSOLUTE.sub(f"{LEFT_OUT}/", value)
        case dict():
            return {key: _without_folders(inner) for key, inner in value.items()}
        case list():
            return [_without_folders(inner) for inner in value]
        case _:
            return value
