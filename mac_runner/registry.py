"""The environments and backends, each with the description it gives of itself, and the experiment that names them.

A built-in environment or backend is one package. It names itself in a line below and describes itself in its `SPEC`:
its settings, which become a section of the experiment file, and how it is built. A spec is light. What it needs, such
as an HTTP client or torch, is imported by the functions that it names, when they are called.

Other environments are imported when an experiment file names them (`load_environment`). Their settings are the section
`settings`. They are kept by their name and the digest of their code.

`Experiment` and `ModelDefinition` find the specs that they name. The sections of the specs themselves are added to
both in `config/experiment.py`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator
from pydantic import JsonValue as AnyJson

from mac_runner.errors import ConfigError
from mac_runner.latency import EngineLatency
from mac_runner.measures import ResultsSpec
from mac_runner.plugins import Code, Plugin, PluginKind, find_plugin, is_file, recorded_plugin
from mac_runner.problems import Problem
from mac_runner.results import Table
from mac_runner.section import IDENTITY, RUNTIME, KeyPath, Listed, Name, Opener, Section, Settings, Text
from mac_runner.spec import (
    DEFAULT_PROFILE,
    ENVIRONMENT_KEY,
    PLUGINS,
    SETTINGS,
    STEP_LIMIT_S,
    AgentDefinition,
    ExperimentMetadata,
    FleetConfig,
    LimitsConfig,
    MetricCode,
    PluginCode,
    ReportConfig,
    RetryConfig,
    RewardsConfig,
    Serving,
    TokenPrices,
)
from mac_runner.types import Decoding, JsonObject, JsonValue, ReplyForm

if TYPE_CHECKING:
    from mac_runner.backends.base import Backend, BackendRequest
    from mac_runner.clock import Clock
    from mac_runner.environments.base import Environment

ENVIRONMENTS: Final[Mapping[str, str]] = {
    "town_of_salem": "mac_runner.environments.town_of_salem",
    "discussion": "mac_runner.environments.discussion",
    "echo": "mac_runner.environments.echo",
}
"""The package of each environment, in the order of their sections in an experiment."""

FAMILIES: Final[Mapping[str, str]] = {
    "textarena": "mac_runner.environments.textarena",
    "pettingzoo": "mac_runner.environments.pettingzoo",
}
"""By the first word of an environment's name, the package whose `spec_of` makes the environment `word:GAME`.

Its `code_of` says which code the game is. The word is the distribution that has the games.
"""

OWN: Final = "mac_runner.environments.own"
"""The module whose `as_spec` makes an environment of what a user's code defines."""

BACKENDS: Final[Mapping[str, str]] = {
    "scripted": "mac_runner.backends.scripted",
    "vllm": "mac_runner.backends.vllm",
    "ollama": "mac_runner.backends.ollama",
    "openai": "mac_runner.backends.openai",
    "nano": "mac_runner.backends.nano",
    "anthropic": "mac_runner.backends.anthropic",
    "fleet": "mac_runner.backends.fleet",
}
"""The package of each backend, in the order of the sections of a model definition."""

OWN_BACKENDS: Final = "mac_runner.backends.own"
"""The module whose `own_spec` makes a backend of what a user's code defines."""

FUNCTIONS: Final[Mapping[PluginKind, tuple[str, str]]] = {
    "policies": ("mac_runner.backends.own", "own_player"),
    "metrics": ("mac_runner.metrics.ended", "own_metric"),
    "rewards": ("mac_runner.metrics.ended", "own_reward"),
}
"""For each kind of function that users write, the module and the function that checks one."""

CONSTRAINS_ALL: Final[frozenset[Decoding]] = frozenset({"schema", "json_object"})
"""What an engine with grammars can hold replies to."""

S = TypeVar("S", bound=Settings)
T = TypeVar("T")


class Converter(NamedTuple):
    """How the release files of a public benchmark become a file of questions, for `mac-run import`."""

    files: str
    """Which files it takes, in words."""
    convert: Callable[[Mapping[str, bytes], tuple[str, bytes] | None], bytes]
    """From the files by name, and the name and content of `--metadata`. Raises ConfigError naming every bad line."""
    metadata: str = ""
    """The file that `--metadata` names, in words; empty for a format that takes none."""


class Imported(NamedTuple):
    """An experiment file of another runner as one of ours."""

    text: str
    """The YAML."""
    left_out: tuple[Problem, ...]
    """The keys of the other file that it does not carry over, each with the reason and what to do."""


class Importer(NamedTuple):
    """How an experiment file of another runner becomes one of ours, for `mac-run import`."""

    files: str
    """Which file it takes, in words."""
    convert: Callable[[JsonObject, Path, Path], Imported]
    """From what the file holds, its path, and the folder that ours is written to. Raises ConfigError."""


class Variant(NamedTuple):
    """One of several experiments that the section of an environment expands into, such as a pair of a tournament."""

    key: KeyPath
    """The key of the file that asks for it."""
    values: Mapping[str, JsonValue]
    """What it differs in, by column of the grid."""
    settings: Mapping[KeyPath, JsonValue]
    """Its values for keys of the file."""


class Planned(NamedTuple):
    """An experiment as a command plays it."""

    experiment: Experiment
    values: Mapping[str, JsonValue]
    """What it differs in from the others of its grid."""
    indexes: Sequence[int]
    """The tasks that are played."""


WORDINGS: Final = ("reasoning", "reasoning_chars_max", "system")
"""Keys of an agent definition that an environment honours only where it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec(Generic[S]):
    """A kind of conversation."""

    section: str
    """The key of its section in an experiment file, and the `kind` of its outcomes."""
    settings: type[S]
    """That section."""
    description: str
    """What the section is, for editors."""
    build: Callable[[Experiment], Environment]
    """Sets the environment up. Raises ConfigError for what it cannot play."""
    needs: str = ""
    """The required content of the section; empty where all of it has defaults and it may be left out."""
    role: str = ""
    """The role of an agent definition that names none; empty where each has to name its own."""
    check: Callable[[Experiment, S], Iterable[Problem]] = lambda _experiment, _settings: ()
    """The rules between fields that an experiment breaks."""
    ignored: Callable[[Experiment, S], Iterable[Problem]] = lambda _experiment, _settings: ()
    """Settings of an experiment that would change nothing here. Files are refused for them, recorded runs are not."""
    idle: Callable[[Experiment, S], Mapping[str, str]] = lambda _experiment, _settings: {}
    """The agent definitions that take part in no conversation, with the reason. Of a grid, another may need them."""
    variants: Callable[[Experiment, S], Iterable[Variant]] = lambda _experiment, _settings: ()
    """The experiments that this one stands for; none where it is a single one."""
    design: Callable[[Sequence[Planned]], Iterable[Table | str]] = lambda _planned: ()
    """Who takes part in what over several experiments, as tables and notes for `--dry-run`."""
    materials: Callable[[S, Path, dict[str, object], int], S] = lambda settings, _base, _cache, _seed: settings
    """The section with all it reads from files, named relative to a directory. Raises MaterialError and ConfigError.

    The cache is shared by the combinations of a grid. The seed is the experiment's, for what is drawn from files.
    """
    whole: Callable[[S], int | None] = lambda _settings: None
    """How many conversations `conversations: all` is, with what was read; None where `all` means nothing."""
    warnings: Callable[[S, int], Iterable[str]] = lambda _settings, _conversations: ()
    """What to know before so many conversations run, such as that questions repeat."""
    material: Callable[[S, int], JsonObject | None] = lambda _settings, _index: None
    """What conversation number `index` is about (`Task.material`)."""
    needs_files: Callable[[S], bool] = lambda _settings: False
    """Whether `material` comes from files that a run directory does not hold."""
    reply_forms: tuple[ReplyForm, ...] = ()
    """The forms of reply that its prompts can ask for, first that of its scripted players; () for neither."""
    honours: tuple[str, ...] = ()
    """The keys of an agent definition it honours of those that change how an agent is asked (`WORDINGS`)."""
    reward_names: tuple[str, ...] | None = None
    """The rewards that it may give; None where only its outcomes say them. `rewards.total` then has no other names."""
    results: Callable[[], ResultsSpec] | None = None
    """How its outcomes are counted and shown; without it, by their values (`reports/outcomes.py`)."""
    measures: tuple[str, ...] = ()
    """The places in its outcomes, such as `players[].measures`, of what is counted in a conversation that has ended.

    Conversations that were recorded before something was counted are still sound: they keep what they have there.
    """
    converters: Mapping[str, Converter] = field(default_factory=dict)
    """By format, what `mac-run import` makes questions of."""
    importers: Mapping[str, Importer] = field(default_factory=dict)
    """By runner, what `mac-run import` makes experiments of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec(Generic[S]):
    """A kind of engine."""

    settings: type[S]
    """The section `<name>_config` of a model definition."""
    build: Callable[[BackendRequest[S]], Backend]
    """Builds the backend, not started. Raises ConfigError for a setting that it cannot honour."""
    describe: Callable[[S], str]
    """What a model with these settings is called by `doctor`."""
    serving: Callable[[S], Serving] = lambda _settings: Serving()
    """How a model with these settings is served, for `mac-run plan` and `mac-run calibrate`."""
    servers_key: str | None = None
    """The setting that lists the addresses of servers, each of which `doctor` examines."""
    check: Callable[[S], Iterable[Problem]] = lambda _settings: ()
    """The rules between its settings that are broken, with their place in the section."""
    packages: tuple[str, ...] = ()
    """Distributions that it needs, for `doctor` to list; a run finds one that is missing by what `build` imports."""
    holds_memory: bool = False
    """Whether its models take this machine's memory; a grid then runs such engines in phases."""
    can_pull: bool = False
    """Whether it can fetch a model that it does not have (`--pull`)."""
    is_probed: bool = True
    """Whether `doctor` asks it for a token."""
    constrains: Callable[[S], frozenset[Decoding]] = lambda _settings: frozenset()
    """What it can hold replies to besides `none`."""
    honours: Callable[[S], frozenset[str]] = lambda _settings: frozenset()
    """The keys of an agent definition it honours of those that say how much a model thinks (`EFFORT_KEYS`)."""
    connections: Callable[[S], int] = lambda _settings: 0
    """The most connections it holds at a time; each takes a file descriptor."""
    policy_key: str | None = None
    """The setting that names a scripted player, where one answers in its place."""
    local: Callable[[Clock], Awaitable[str]] | None = None
    """Describes the server that it would find on this machine, for `doctor` without an experiment."""

    def variants(self, settings: S) -> Iterator[tuple[str, S]]:
        """The settings for each address alone, with a description."""
        if self.servers_key is None:
            yield self.describe(settings), settings
            return
        for url in getattr(settings, self.servers_key):
            alone = settings.model_copy(update={self.servers_key: (url,)})
            yield f"{self.describe(settings)} at {url}", alone

    def policy(self, settings: S) -> str | None:
        """The name of the scripted player that answers in its place; None where none does."""
        return None if self.policy_key is None else getattr(settings, self.policy_key)


@cache
def environment_specs() -> Mapping[str, EnvironmentSpec[Any]]:
    """Every environment by its name."""
    return {name: import_module(package).SPEC for name, package in ENVIRONMENTS.items()}


class Loaded(NamedTuple, Generic[T]):
    """An environment or a backend that an experiment names, and where its code came from."""

    spec: T
    code: Code


_LOADED: Final[dict[tuple[str, str], Loaded[EnvironmentSpec[Any]]]] = {}
"""Environments that are not built in, by their name and the digest of their code."""


def load_environment(name: str, base: Path) -> Loaded[EnvironmentSpec[Any]]:
    """Import an environment that is not built in; a file is relative to `base`. Raises ConfigError."""
    family, _, game = name.partition(":")
    if family in FAMILIES:
        package = import_module(FAMILIES[family])
        code = package.code_of(game, base)
        if (known := _LOADED.get((name, code.sha256))) is not None:
            return known
        return adopt_environment(name, package.spec_of(game), code)
    families = (f"{family}:GAME" for family in FAMILIES)
    plugin = find_plugin("environments", name, base, known=(*ENVIRONMENTS, *families))
    return _adopted(name, plugin)


def load_recorded_environment(name: str, path: Path) -> Loaded[EnvironmentSpec[Any]]:
    """Import an environment that a run recorded; its file was at `path`. Raises ConfigError."""
    if not is_file(name):
        return load_environment(name, Path())
    return _adopted(name, recorded_plugin("environments", name, path))


def _adopted(name: str, plugin: Plugin) -> Loaded[EnvironmentSpec[Any]]:
    if (known := _LOADED.get((name, plugin.code.sha256))) is not None:
        return known._replace(code=plugin.code)
    return adopt_environment(name, plugin.value, plugin.code)


def adopt_environment(name: str, value: object, code: Code) -> Loaded[EnvironmentSpec[Any]]:
    """Keep `value` as the environment of this name and code. Raises ConfigError for what is not an environment."""
    spec: EnvironmentSpec[Any] = import_module(OWN).as_spec(name, value)
    found = _LOADED[name, code.sha256] = Loaded(spec, code)
    return found


def environment_spec(name: str, sha256: str = "") -> EnvironmentSpec[Any] | None:
    """The environment of this name: a built-in one, or one whose code with this digest was loaded."""
    if (builtin := environment_specs().get(name)) is not None:
        return builtin
    loaded = _LOADED.get((name, sha256))
    return None if loaded is None else loaded.spec


def _specs() -> list[EnvironmentSpec[Any]]:
    return [*environment_specs().values(), *(loaded.spec for loaded in _LOADED.values())]


def results_specs() -> Mapping[str, ResultsSpec]:
    """How outcomes are counted and shown, by their `kind`; of the built-in environments and the loaded ones."""
    return _results(tuple(_LOADED))


@cache
def _results(_loaded: tuple[tuple[str, str], ...]) -> Mapping[str, ResultsSpec]:
    return {spec.section: spec.results() for spec in _specs() if spec.results is not None}


def results_of(environment: str) -> ResultsSpec | None:
    """How the outcomes of a built-in environment are counted and shown; None for others, whose code may not be here."""
    spec = environment_specs().get(environment)
    return None if spec is None else results_specs().get(spec.section)


@cache
def counted_kinds() -> frozenset[str]:
    """The kinds of outcomes that are counted in a way of their own; the code of a plug-in may not be here."""
    return frozenset(spec.section for spec in environment_specs().values() if spec.results is not None)


def measures_of(kind: object) -> tuple[str, ...]:
    """The places of measures in the outcomes of a kind; none where no environment here has such outcomes."""
    return next((spec.measures for spec in _specs() if spec.section == kind), ())


@cache
def backend_specs() -> Mapping[str, BackendSpec[Any]]:
    """Every backend by its name."""
    return {name: import_module(package).SPEC for name, package in BACKENDS.items()}


_LOADED_BACKENDS: Final[dict[tuple[str, str], Loaded[BackendSpec[Any]]]] = {}
"""Backends that are not built in, by their name and the digest of their code."""


def load_backend(name: str, base: Path) -> Loaded[BackendSpec[Any]]:
    """Import a backend that is not built in; a file is relative to `base`. Raises ConfigError."""
    return adopt_backend(find_plugin("backends", name, base, known=BACKENDS))


def load_recorded_backend(name: str, path: Path) -> Loaded[BackendSpec[Any]]:
    """Import a backend that a run recorded; its file was at `path`. Raises ConfigError."""
    return adopt_backend(recorded_plugin("backends", name, path))


def adopt_backend(plugin: Plugin) -> Loaded[BackendSpec[Any]]:
    """Keep a plug-in as a backend. Raises ConfigError for what is none."""
    key = plugin.name, plugin.code.sha256
    if key not in _LOADED_BACKENDS:
        _LOADED_BACKENDS[key] = Loaded(import_module(OWN_BACKENDS).own_spec(plugin), plugin.code)
    return _LOADED_BACKENDS[key]


def backend_spec(name: str, sha256: str = "") -> BackendSpec[Any] | None:
    """The backend of this name: a built-in one, or one whose code with this digest was loaded."""
    if name in BACKENDS:
        return backend_specs()[name]
    loaded = _LOADED_BACKENDS.get((name, sha256))
    return None if loaded is None else loaded.spec


def load_function(kind: PluginKind, name: str, base: Path) -> Plugin:
    """Import a player, a metric or a reward; a file is relative to `base`. Raises ConfigError for what is none."""
    return checked_function(kind, find_plugin(kind, name, base))


def checked_function(kind: PluginKind, plugin: Plugin) -> Plugin:
    """A plug-in that is a scripted player, a metric or a reward. Raises ConfigError for what is none."""
    module, check = FUNCTIONS[kind]
    getattr(import_module(module), check)(plugin)
    return plugin


_ENVIRONMENT: Final = (
    f"The kind of conversation: {', '.join(f'`{name}`' for name in ENVIRONMENTS)}, the name of an installed one, "
    "`package.module:Name`, `./file.py:name` relative to this file, `textarena:GAME`, or `pettingzoo:MODULE`."
)
_BACKEND: Final = (
    f"What serves the model: {', '.join(f'`{name}`' for name in BACKENDS)}, which the section `<backend>_config` sets "
    "up; or the name of an installed one, `package.module:Name`, or `./file.py:Name` relative to this file, which "
    "`settings` sets up."
)


class ConversationConfig(Section):
    """What is played, and how often."""

    environment: Annotated[Text, IDENTITY, Field(description=_ENVIRONMENT)]
    conversations: Annotated[Annotated[int, Field(ge=1, le=1_000_000)] | Literal["all"], RUNTIME]
    """How many conversations to run, or `all`: one about each question; a run can be extended by raising it."""
    samples_per_task: Annotated[int, IDENTITY, Field(ge=1, le=10_000)] = 1
    """How often each deal is played, with other draws from the engines; `conversations` counts all of them."""
    step_limit_s: Annotated[float | None, RUNTIME, Field(gt=0, le=86_400)] = STEP_LIMIT_S
    """How long a step of an environment of your own may take; null: as long as it likes, and the run waits."""


def section_key(backend: str) -> str:
    """The key of a backend's section."""
    return f"{backend}_config" if backend in BACKENDS else SETTINGS


class ModelDefinition(Section):
    """One engine: which backend, and the section of that backend (and of no other)."""

    backend: Annotated[Text, IDENTITY, Field(examples=[*BACKENDS], description=_BACKEND)]
    settings: Annotated[Mapping[Text, AnyJson] | None, IDENTITY] = None
    """What sets up a backend that is not built in; the backend says what it may hold."""
    record_tokens: Annotated[bool, IDENTITY] = False
    """Whether each reply is recorded with its token ids and log-probabilities, for training on it later."""
    constrained_decoding: Annotated[Decoding, IDENTITY] = "schema"
    """What the engine holds replies to: the prompt's schema or choices (where the backend can), any JSON object, or
    nothing."""
    reply_form: Annotated[ReplyForm | None, IDENTITY] = None
    """The form of reply that prompts teach; null: json where decoding is constrained, markup where not, as far as the
    environment knows both."""
    latency: EngineLatency | None = None
    """Makes replies take as long as the latency model says, where the engine is faster; null leaves it alone."""
    usd_per_mtok: TokenPrices | None = None
    """What a million of its tokens cost, for the costs in reports; null: not known."""
    usd_per_hour: Annotated[float | None, RUNTIME, Field(ge=0, le=1_000_000)] = None
    """What an hour of the engine costs in US dollars, such as a GPU hour times the number of GPUs; it is added to the
    costs of tokens. Null: not known."""

    _sha256: str = PrivateAttr("")

    def with_code(self, sha256: str) -> None:
        """Say which code its backend is; the experiment knows it."""
        self._sha256 = sha256

    @property
    def known_spec(self) -> BackendSpec[Any] | None:
        """Its backend; None where its code was not loaded."""
        return backend_spec(self.backend, self._sha256)

    @property
    def spec(self) -> BackendSpec[Any]:
        """Its backend. Raises ConfigError where its code was not loaded."""
        if (spec := self.known_spec) is None:
            raise ConfigError(f"the code of the backend {self.backend!r} was not loaded")
        return spec

    @property
    def settings_key(self) -> str:
        """The key of the section that sets up its backend."""
        return section_key(self.backend)

    @property
    def has_settings(self) -> bool:
        """Whether the section of its backend is there; that of a plug-in may be left out."""
        return self.backend not in BACKENDS or getattr(self, self.settings_key) is not None

    @property
    def backend_settings(self) -> Any:
        """What sets up its backend: a section, or the model of a plug-in."""
        if self.backend in BACKENDS:
            return getattr(self, self.settings_key)
        return read_settings(self.spec, self.settings or {})

    @property
    def serving(self) -> Serving:
        """How its backend serves it."""
        return self.spec.serving(self.backend_settings)

    def with_settings(self, settings: Settings) -> ModelDefinition:
        """The same definition with other settings of its backend."""
        value = settings if self.backend in BACKENDS else write_settings(settings)
        return self.model_copy(update={self.settings_key: value})


class Experiment(Section):
    """An experiment as it will run: profile and overrides applied, every default filled in.

    The types bind each field by itself; what must hold between fields (`consistency`) is checked by
    `load_experiment`, which is the way in.
    """

    experiment_metadata: ExperimentMetadata
    """What the experiment is called."""
    seed: Annotated[int, IDENTITY, Field(ge=0)] = 0
    """The seed of every random decision of the experiment."""
    profile: Annotated[Name, RUNTIME] = DEFAULT_PROFILE
    """The profile that runs when none is chosen; `embedded` is the file itself."""
    model_definitions: Annotated[Mapping[Name, ModelDefinition], Field(min_length=1)]
    """The engines, each under the name its agents call it by."""
    agent_definitions: Annotated[Listed[AgentDefinition], Field(min_length=1)]
    """The kinds of participant."""
    conversation_config: ConversationConfig
    """What is played, and how often."""
    settings: Annotated[Mapping[Text, AnyJson] | None, IDENTITY] = None
    """What sets up an environment that is not built in; the environment says what it may hold."""
    plugins: Mapping[Text, PluginCode] = {}
    """By name, the code that the file names. It is filled in; written here, it must be the code that is found."""
    metrics: Annotated[Listed[Text], RUNTIME] = ()
    """Functions from an ended conversation to numbers, which go to its row and the summary."""
    metric_plugins: Mapping[Text, MetricCode] = {}
    """By name, the code of the metrics. It is filled in."""
    rewards: RewardsConfig | None = None
    """What conversations are worth to those who take part, for training; null: what their outcomes say."""
    retry_config: RetryConfig = RetryConfig()
    """What happens when a reply cannot be used or does not come."""
    report: Annotated[
        ReportConfig,
        BeforeValidator(lambda given: ReportConfig() if given is None else given, ReportConfig | None),
    ] = ReportConfig()
    """With what the combinations of a grid are compared; it changes no conversation."""
    fleet: FleetConfig | None = None
    """The GPUs that the models with the backend `fleet` share, and how their engines are kept running."""
    limits: LimitsConfig | None = None
    """How much the run may use, over all its sessions; it stops in good order at the first of these."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.experiment_metadata.experiment_name

    @property
    def known_spec(self) -> EnvironmentSpec[Any] | None:
        """Its environment; None where it is not installed, or its code was not loaded."""
        name = self.conversation_config.environment
        code = self.plugins.get(name)
        return environment_spec(name, "" if code is None else code.sha256)

    @property
    def spec(self) -> EnvironmentSpec[Any]:
        """Its environment. Raises ConfigError where it is not installed, or its code was not loaded."""
        if (spec := self.known_spec) is not None:
            return spec
        name = self.conversation_config.environment
        if name in self.plugins:
            raise ConfigError(f"the code of the environment {name!r} was not loaded", key=ENVIRONMENT_KEY)
        known = ", ".join(sorted(ENVIRONMENTS))
        raise ConfigError(f"conversation_config.environment: found {name!r}; there are: {known}", key=ENVIRONMENT_KEY)

    @property
    def is_builtin(self) -> bool:
        """Whether its environment comes with mac_runner."""
        return self.conversation_config.environment in ENVIRONMENTS

    @property
    def settings_key(self) -> str:
        """The key of the file that has the settings of its environment."""
        return self.spec.section if self.is_builtin else SETTINGS

    @property
    def environment_settings(self) -> Any:
        """What sets up its environment: a section, or the model of a plug-in; None where there is none."""
        if (spec := self.known_spec) is None:
            return None
        if self.is_builtin:
            return getattr(self, spec.section)
        # A model without fields has nothing to say, so the file has no such section.
        is_missing = self.settings is None and bool(spec.settings.model_fields)
        return None if is_missing else read_settings(spec, self.settings or {})

    def settings_as(self, kind: type[S]) -> S:
        """What sets up its environment, which is of this kind. Raises ConfigError where there is none."""
        if isinstance(settings := self.environment_settings, kind):
            return settings
        environment = self.conversation_config.environment
        section = next((spec.section for spec in environment_specs().values() if spec.settings is kind), SETTINGS)
        raise ConfigError(f"environment {environment!r} needs a section `{section}`")

    def with_settings(self, settings: Settings) -> Experiment:
        """The same experiment with other settings of its environment."""
        value = settings if self.is_builtin else write_settings(settings)
        return self.model_copy(update={self.settings_key: value})

    def dumped(self) -> JsonObject:
        """All its values as plain data; without the sections of plug-ins where it has none."""
        values: JsonObject = self.model_dump(mode="json")
        empty: JsonObject = {SETTINGS: None, PLUGINS: {}, "metrics": [], "metric_plugins": {}}
        empty |= dict.fromkeys(("rewards", "fleet", "limits"))
        return {key: value for key, value in values.items() if key not in empty or value != empty[key]}

    @model_validator(mode="after")
    def _with_code(self) -> Self:
        """Say which code the backends are."""
        for definition in self.model_definitions.values():
            if (code := self.plugins.get(definition.backend)) is not None:
                definition.with_code(code.sha256)
        return self

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, data: object) -> object:
        """What the environment adds: the role of agents, and its section where all of that has defaults."""
        if not isinstance(data, dict):
            return data
        if (spec := _named_environment(data)) is None:
            # Whether agents need a role is not known, and the environment is refused.
            return _with_roles(data, "unknown")
        filled = {**data}
        if data.get("conversation_config", {}).get("environment") in ENVIRONMENTS and not spec.needs:
            filled[spec.section] = {} if data.get(spec.section) is None else data[spec.section]
        return _with_roles(filled, spec.role) if spec.role else filled


def _with_roles(data: dict[str, Any], role: str) -> dict[str, Any]:
    """`data` with this role for agents that have none."""
    if not isinstance(agents := data.get("agent_definitions"), list):
        return data
    given = [{"role": role, **agent} if isinstance(agent, dict) else agent for agent in agents]
    return {**data, "agent_definitions": given}


def _named_environment(data: Mapping[str, Any]) -> EnvironmentSpec[Any] | None:
    """The environment that a file names, as far as its form is known to be right."""
    match data:
        case {"conversation_config": {"environment": str(name)}, "plugins": {**plugins}} if name in plugins:
            code = plugins[name]
            return environment_spec(name, str(code.get("sha256", ""))) if isinstance(code, dict) else None
        case {"conversation_config": {"environment": str(name)}}:
            return environment_specs().get(name)
    return None


def read_settings(
    spec: EnvironmentSpec[Any] | BackendSpec[Any], values: Mapping[str, AnyJson], opener: Opener | None = None
) -> Any:
    """The settings of an environment or a backend that is not built in. Raises ValidationError.

    They are read as JSON, so that a strict model takes a list for a tuple and a text for a date. A model that would
    ignore unknown keys refuses them. `opener` reads the files that they name, where they come from an experiment file.
    """
    model: type[Settings] = spec.settings
    extra = model.model_config.get("extra") or "forbid"
    return model.model_validate_json(json.dumps(values), extra=extra, context=opener)


def write_settings(settings: Settings) -> JsonObject:
    """Settings as plain data that `read_settings` reads back: without computed fields, and under their aliases."""
    values: JsonObject = settings.model_dump(mode="json", by_alias=True, round_trip=True)
    return values


def ignored_settings(keys: Mapping[str, str]) -> Callable[[Experiment, object], Iterator[Problem]]:
    """For `EnvironmentSpec.ignored`: settings of agent definitions that change nothing in an environment.

    Every agent there has the role of its spec. `keys` are the ignored ones, dotted, with what to do instead.
    """

    def ignored(experiment: Experiment, _settings: object) -> Iterator[Problem]:
        role = experiment.spec.role
        where = f"changes nothing in the environment {experiment.conversation_config.environment!r}"
        for index, agent in enumerate(experiment.agent_definitions):
            path = ("agent_definitions", index)
            if agent.role != role:
                yield Problem((*path, "role"), f"found {agent.role!r}, which {where}; allowed: {role}")
            written = agent.model_dump(exclude_defaults=True)
            for key, instead in keys.items():
                section, _, name = key.rpartition(".")
                if name in (written.get(section, {}) if section else written):
                    yield Problem((*path, *key.split(".")), f"{where}; {instead}")

    return ignored
