"""What an experiment names: code and files.

Code is imported and recorded with its digest, and its settings are checked by its own model. Files, such as questions
and templates, are read when the experiment is loaded. A run must mean the same after these have moved or changed, so
what is in them counts: digests and texts become part of the config, and with it of the run's identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError

from mac_runner.config.document import as_object
from mac_runner.config.experiment import Experiment
from mac_runner.config.validation import complaints
from mac_runner.errors import ConfigError, boundary
from mac_runner.plugins import Code, PluginKind, installed_plugins, place_of
from mac_runner.problems import MaterialError, Problem, dotted, suggestion
from mac_runner.registry import (
    BACKENDS,
    ENVIRONMENTS,
    BackendSpec,
    EnvironmentSpec,
    backend_specs,
    environment_specs,
    load_backend,
    load_environment,
    load_function,
    read_settings,
    section_key,
    write_settings,
)
from mac_runner.rewards import REWARD
from mac_runner.section import KeyPath, NoSettings, Opener, Settings, runtime_keys
from mac_runner.spec import ENVIRONMENT_KEY, MODELS, PLUGINS, SETTINGS, MetricCode, PluginCode
from mac_runner.types import JsonObject, JsonValue

DECODING: Final = "constrained_decoding"

T = TypeVar("T")


class NamedCode:
    """Fills in the sections `plugins` and `settings` of a file, and gathers what is wrong with the code it names."""

    def __init__(self, value: JsonObject, base: Path, cache: dict[str, object]) -> None:
        self._value = value
        self._base = base
        self._cache = cache
        self._opener = Opener(base, cache)
        self._found: dict[str, JsonObject] = {}
        self._reward_names: tuple[str, ...] | None = None
        self.problems: list[Problem] = []

    def filled(self) -> JsonObject:
        """The values with everything that the code adds to them."""
        settings = self._environment()
        definitions = self._models()
        metrics = self._metrics()
        self._rewards()
        self.problems += self._pins()
        value = dict(self._value)
        if definitions:
            value[MODELS] = {**as_object(value.get(MODELS)), **definitions}
        if metrics:
            value["metric_plugins"] = metrics
        if self._found and isinstance(value.get(PLUGINS), dict | None):
            value[PLUGINS] = {**as_object(value.get(PLUGINS)), **self._found}
        if settings is not None:
            value[SETTINGS] = settings
        return value

    def add(self, path: KeyPath, name: str, code: Code, settings: type[Settings] = NoSettings) -> None:
        """Record the code of a name at a path of the file, with the keys of its settings that change no result."""
        values = _recorded(PluginCode, code)
        values["runtime_settings"] = [dotted(key) for key in runtime_keys(settings)]
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
            self._reward_names = environment_specs()[name].reward_names
            return None
        loaded = self._once(ENVIRONMENT_KEY, "environment", name, lambda: load_environment(name, self._base))
        if loaded is None:
            return None
        self._reward_names = loaded.spec.reward_names
        settings = self._settings((SETTINGS,), f"environment {name!r}", loaded.spec, given)
        self.add(ENVIRONMENT_KEY, name, loaded.code, loaded.spec.settings)
        return settings

    def _settings(
        self, path: KeyPath, what: str, spec: EnvironmentSpec[Any] | BackendSpec[Any], given: JsonValue
    ) -> JsonObject | None:
        """The settings of `what` at a path of the file, with every default filled in; None where there are none."""
        if not isinstance(given, dict | None):
            return None  # A problem of its own.
        if given and not spec.settings.model_fields:
            self.problems.append(Problem(path, f"the {what} has no settings; leave the section out"))
            return None
        if given is None and isinstance(spec, EnvironmentSpec) and spec.needs:
            self.problems.append(Problem(path, f"is missing; the {what} needs its {spec.needs}"))
            return None
        try:
            with boundary(ConfigError, what):
                return _written(spec, given or {}, self._opener)
        except ConfigError as fault:
            cause = fault.__cause__ or fault
            if isinstance(cause, ValidationError):
                wrong = complaints(cause, given or {}, root=spec.settings)
                self.problems += [Problem((*path, *inside), text) for inside, text in wrong]
            else:
                text = f"the model {spec.settings.__name__} of the {what} cannot read or write them: {place_of(cause)}"
                self.problems.append(Problem(path, f"{text}; mend the model"))
            return None

    def _models(self) -> dict[str, JsonValue]:
        """Find the backends and the scripted players; returns the definitions that their code adds something to."""
        filled: dict[str, JsonValue] = {}
        for name, definition in as_object(self._value.get(MODELS)).items():
            backend = as_object(definition).get("backend")
            if not isinstance(backend, str) or not backend:
                continue  # A problem of its own.
            if backend in BACKENDS:
                self._player((MODELS, name), as_object(definition), backend)
            elif (found := self._backend((MODELS, name), as_object(definition), backend)) is not None:
                filled[name] = found
        return filled

    def _backend(self, path: KeyPath, definition: JsonObject, name: str) -> JsonObject | None:
        """The definition of a model whose backend is not built in, with what its code adds."""
        loaded = self._once((*path, "backend"), "backend", name, lambda: load_backend(name, self._base))
        if loaded is None:
            return None
        spec, given = loaded.spec, definition.get(SETTINGS)
        before = len(self.problems)
        settings = self._settings((*path, SETTINGS), f"backend {name!r}", spec, given)
        self.add((*path, "backend"), name, loaded.code, spec.settings)
        if len(self.problems) > before:
            return None
        can = spec.constrains(read_settings(spec, settings or {}))
        asked = definition.get(DECODING, "schema")
        # What the code cannot do is recorded, so that a reader of the run need not import it.
        decoding: JsonObject = {} if asked in can or asked != "schema" else {DECODING: "none"}
        filled: JsonObject = {SETTINGS: settings} if settings or given is not None else {}
        return {**definition, **filled, **decoding}

    def _player(self, path: KeyPath, definition: JsonObject, backend: str) -> None:
        """Find the scripted player of a model, where its environment has none of that name."""
        key = backend_specs()[backend].policy_key
        if key is None:
            return
        section = section_key(backend)
        name = as_object(definition.get(section)).get(key)
        if not isinstance(name, str):
            return  # A problem of its own.
        installed = self._once((), "installed", "policies", lambda: {one.name for one in installed_plugins("policies")})
        if ":" not in name and name not in (installed or ()):
            return  # One of the environment, which says so where it has none.
        self._function((*path, section, key), "policies", name)

    def _metrics(self) -> JsonObject:
        """Find the metrics; returns where their code came from."""
        given = self._value.get("metrics")
        found: JsonObject = {}
        values: dict[str, str] = {}
        for place, name in enumerate(given if isinstance(given, list) else ()):
            path = ("metrics", place)
            if not isinstance(name, str) or not name:
                continue  # A problem of its own.
            own = name.rpartition(":")[2]
            if (other := values.setdefault(own, name)) != name or name in found:
                text = f"its value would be called {own!r}, like that of {other!r}; give one of them another name"
                self.problems.append(Problem(path, text))
            elif (code := self._function(path, "metrics", name)) is not None:
                found[name] = _recorded(MetricCode, code)
        return found

    def _rewards(self) -> None:
        """Find the shaped rewards, and check the names that have weights."""
        rewards = as_object(self._value.get("rewards"))
        shaped, total = as_object(rewards.get("shaped")), rewards.get("total")
        for own, name in shaped.items():
            path = ("rewards", "shaped", own)
            if own == REWARD:
                text = f"{REWARD!r} is what all rewards come to (rewards.total); give this one another name"
                self.problems.append(Problem(path, text))
            elif isinstance(name, str) and name:
                self._function(path, "rewards", name)
        if total == {}:
            self.problems.append(
                Problem(("rewards", "total"), "has no weight; give a reward one, or leave the key out")
            )
        if self._reward_names is None or not isinstance(total, dict):
            return  # Only the outcomes say which rewards there are.
        known = dict.fromkeys((*self._reward_names, *shaped))
        for name in total:
            if name not in known:
                self.problems.append(
                    Problem(("rewards", "total", name), f"there is no such reward{suggestion(name, known)}")
                )

    def _function(self, path: KeyPath, kind: PluginKind, name: str) -> Code | None:
        """Find a player, a metric or a reward; the code of all but a metric is part of the identity."""
        plugin = self._once(path, kind, name, lambda: load_function(kind, name, self._base))
        if plugin is None:
            return None
        if kind != "metrics":
            self.add(path, name, plugin.code)
        return plugin.code

    def _once(self, path: KeyPath, kind: str, name: str, find: Callable[[], T]) -> T | None:
        """What `find` returns, for all combinations of a grid; None, and a problem at `path`, where it finds none."""
        key = f"{kind} {name}"
        try:
            if key not in self._cache:
                self._cache[key] = find()
        except ConfigError as fault:
            self.problems.append(Problem(path, str(fault)))
        return cast("T | None", self._cache.get(key))

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


def _written(spec: EnvironmentSpec[Any] | BackendSpec[Any], given: JsonObject, opener: Opener) -> JsonObject:
    """The settings as they are recorded. Raises ValueError where they would not read back as they are."""
    settings = read_settings(spec, given, opener)
    found = write_settings(settings)
    again = read_settings(spec, found)
    for name in type(settings).model_fields:
        if getattr(again, name) != getattr(settings, name):
            raise ValueError(f"{name} does not read back from what is recorded of it; give it a plain type")
    return found


def _recorded(kind: type[PluginCode | MetricCode], code: Code) -> JsonObject:
    """The record of some code."""
    record = kind(distribution=code.distribution, version=code.version, sha256=code.sha256, path=str(code.path))
    values: JsonObject = record.model_dump(mode="json")
    return values


def with_materials(experiment: Experiment, base: Path, cache: dict[str, object]) -> Experiment:
    """`experiment` with everything its environment reads from files, relative to `base`.

    Raises MaterialError when a file cannot be used, and ConfigError with the lines of a file that are wrong.
    """
    spec, settings = experiment.known_spec, experiment.environment_settings
    if spec is not None and settings is not None:
        read = spec.materials(settings, base, cache, experiment.seed)
        experiment = experiment if read is settings else experiment.with_settings(read)
    return _counted(_calibrated(experiment, base))


def _calibrated(experiment: Experiment, base: Path) -> Experiment:
    """`experiment` with the latencies of its models as numbers. Raises MaterialError."""
    models = dict(experiment.model_definitions)
    for name, model in experiment.model_definitions.items():
        if (latency := model.latency) is not None and (choice := latency.calibration) is not None:
            key = (MODELS, name, "latency")
            times = choice.times(latency.quantum, latency.model_fields_set, base, key)
            models[name] = model.model_copy(update={"latency": latency.model_copy(update=times)})
    return experiment.model_copy(update={"model_definitions": models})


def _counted(experiment: Experiment) -> Experiment:
    """`experiment` with `conversations: all` as a number. Raises MaterialError where nothing says how many they are."""
    conversation = experiment.conversation_config
    if conversation.conversations != "all":
        return experiment
    spec, settings = experiment.known_spec, experiment.environment_settings
    whole = None if spec is None or settings is None else spec.whole(settings)
    if whole is None:
        text = f"found 'all'; the environment {conversation.environment!r} has no questions to count; write a number"
        raise MaterialError(("conversation_config", "conversations"), text)
    found = whole * conversation.samples_per_task
    return experiment.model_copy(
        update={"conversation_config": conversation.model_copy(update={"conversations": found})}
    )
