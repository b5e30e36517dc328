"""The code that an experiment names: imported, recorded with its digest, its settings checked by its own model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mac_runner.config.document import as_object
from mac_runner.config.experiment import ENVIRONMENT_KEY, PLUGINS, SETTINGS, PluginCode, read_settings
from mac_runner.config.validation import complaints
from mac_runner.errors import ConfigError
from mac_runner.plugins import Code
from mac_runner.problems import Problem, suggestion
from mac_runner.registry import ENVIRONMENTS, EnvironmentSpec, LoadedEnvironment, load_environment
from mac_runner.section import RUNTIME, KeyPath, Settings, bearing_of, leaf_fields
from mac_runner.types import JsonObject, JsonValue


class NamedCode:
    """Fills in the sections `plugins` and `settings` of a file, and gathers what is wrong with the code it names."""

    def __init__(self, value: JsonObject, base: Path, cache: dict[str, object]) -> None:
        self._value = value
        self._base = base
        self._cache = cache
        self._found: dict[str, JsonObject] = {}
        self.problems: list[Problem] = []

    def filled(self) -> JsonObject:
        """The values with everything that the code adds to them."""
        settings = self._environment()
        self.problems += self._pins()
        value = dict(self._value)
        if self._found and isinstance(value.get(PLUGINS), dict | None):
            value[PLUGINS] = {**as_object(value.get(PLUGINS)), **self._found}
        if settings is not None:
            value[SETTINGS] = settings
        return value

    def add(self, path: KeyPath, name: str, code: Code, **more: JsonValue) -> None:
        """Record the code of a name at a path of the file."""
        record = PluginCode(
            distribution=code.distribution, version=code.version, sha256=code.sha256, path=str(code.path)
        )
        values = {**record.model_dump(mode="json"), **more}
        known = self._found.setdefault(name, values)
        if known["sha256"] != values["sha256"]:
            text = f"{name!r} names other code elsewhere in the file; write one of the two as package.module:Name"
            self.problems.append(Problem(path, text))

    def _environment(self) -> JsonObject | None:
        """Find the environment; returns its settings with every default filled in."""
        name = as_object(self._value.get(ENVIRONMENT_KEY[0])).get(ENVIRONMENT_KEY[1])
        if not isinstance(name, str) or not name:
            return None  # A problem of its own.
        given = self._value.get(SETTINGS)
        if name in ENVIRONMENTS:
            if given is not None:
                text = f"sets up an environment that is not built in; {name!r} has a section of its own; leave it out"
                self.problems.append(Problem((SETTINGS,), text))
            return None
        key = f"environment {name}"
        try:
            loaded = self._cache.get(key) or load_environment(name, self._base)
        except ConfigError as fault:
            self.problems.append(Problem(ENVIRONMENT_KEY, str(fault)))
            return None
        assert isinstance(loaded, LoadedEnvironment), "the cache has a key for each use"
        self._cache[key] = loaded
        settings, model = self._settings(name, loaded.spec, given), loaded.spec.settings
        runtime: list[JsonValue] = [".".join(map(str, path)) for path in _runtime(model)]
        has_results = loaded.spec.results is not None
        self.add(ENVIRONMENT_KEY, name, loaded.code, runtime_settings=runtime, has_results=has_results)
        return settings

    def _settings(self, name: str, spec: EnvironmentSpec[Any], given: JsonValue) -> JsonObject | None:
        if not isinstance(given, dict | None):
            return None  # A problem of its own.
        if given and not spec.settings.model_fields:
            text = f"the environment {name!r} has no settings; leave the section out"
            self.problems.append(Problem((SETTINGS,), text))
            return None
        if given is None and spec.needs:
            text = f"is missing; the environment {name!r} needs its {spec.needs}"
            self.problems.append(Problem((SETTINGS,), text))
            return None
        try:
            found: JsonObject = read_settings(spec, given or {}).model_dump(mode="json")
        except ValidationError as failure:
            wrong = complaints(failure, given or {}, root=spec.settings)
            self.problems += [Problem((SETTINGS, *path), text) for path, text in wrong]
            return None
        return found

    def _pins(self) -> Iterator[Problem]:
        """What the file itself says of code, where that is not what was found."""
        for name, record in as_object(self._value.get(PLUGINS)).items():
            if name not in self._found:
                if not self.problems:
                    yield Problem((PLUGINS, name), f"the file names no such code{suggestion(name, self._found)}")
                continue
            for key in ("distribution", "version", "sha256"):
                asked, found = as_object(record).get(key), self._found[name][key]
                if key in as_object(record) and asked != found:
                    text = f"asks for {asked!r}, and the code that is here has {found!r}; put that code back"
                    yield Problem((PLUGINS, name, key), f"{text}, or leave the section out to play this one")


def _runtime(model: type[Settings]) -> Iterator[KeyPath]:
    """The settings that are no part of a run's identity."""
    paths: Mapping[KeyPath, object] = dict(leaf_fields(model))
    return (path for path in paths if "*" not in path and bearing_of(model, path) is RUNTIME)
