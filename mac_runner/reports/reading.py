"""Reading a transcript as far as its form is known; one of another form is an error that says so."""

from __future__ import annotations

from mac_runner.errors import RunDirectoryError
from mac_runner.types import JsonObject, JsonValue

EXPECTED = "the transcript is not one this version wrote"


def an_object(value: JsonValue) -> JsonObject:
    """An object. Raises RunDirectoryError for anything else."""
    if not isinstance(value, dict):
        raise RunDirectoryError(EXPECTED)
    return value


def objects(value: JsonValue) -> list[JsonObject]:
    """A list of objects. Raises RunDirectoryError for anything else."""
    if not isinstance(value, list):
        raise RunDirectoryError(EXPECTED)
    return [an_object(item) for item in value]


def texts(value: JsonValue) -> list[str]:
    """A list as text. Raises RunDirectoryError for anything else."""
    if not isinstance(value, list):
        raise RunDirectoryError(EXPECTED)
    return [str(item) for item in value]
