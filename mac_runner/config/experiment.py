"""The sections of an experiment file, as validated classes.

The settings of environments and backends come from their specs in the registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import Field, PrivateAttr, create_model, model_validator
from pydantic import JsonValue as AnyJson

from mac_runner.config.fleet import FleetConfig
from mac_runner.errors import ConfigError
from mac_runner.latency import EngineLatency
from mac_runner.registry import (
    ENVIRONMENTS,
    BackendSpec,
    EnvironmentSpec,
    backend_spec,
    backend_specs,
    environment_spec,
    environment_specs,
)
from mac_runner.section import IDENTITY, RUNTIME, Listed, Name, Opener, Section, Settings, Text
from mac_runner.types import Decoding, JsonObject, ReplyForm, WhenExhausted


class RoleSpecificConfig(Section):
    """What an environment lets one agent differ in."""

    speak_after_within_round: Annotated[Listed[Name], IDENTITY] = ()
    """The agents this one waits for in each round; it sees what they said in it."""
    visible_to: Annotated[Listed[Name] | None, IDENTITY] = None
    """The only agents who read its words in later rounds; null: all that the routing lets read."""


class AgentDefinition(Section):
    """One kind of participant."""

    agent_id: Annotated[Name, IDENTITY]
    """Its name, unique in the file."""
    role: Annotated[Text, IDENTITY]
    """What it is in the conversation."""
    persona: Annotated[Text | None, IDENTITY] = None
    """Who it is: a noun such as `economist`, or a description in sentences."""
    demographics: Annotated[Mapping[Name, Text | int] | Text, IDENTITY] = Field(default={})
    """What else it is: `age`, `race`, `ethnicity`, `nationality`, `religion`, `gender`, `occupation`, or other keys; or
    a text such as `a 34-year-old Black woman from Ohio`."""
    if_as_human: Annotated[bool | None, IDENTITY] = None
    """Whether it takes part as a human (true) or as an AI (false); null leaves it open."""
    model: Annotated[Name, IDENTITY]
    """The entry of `model_definitions` that speaks for it."""
    temperature: Annotated[float, IDENTITY, Field(ge=0, le=100)] = 1.0
    """How freely tokens are drawn; 0 always takes the likeliest."""
    max_tokens: Annotated[int, IDENTITY, Field(ge=1, le=1_000_000)] = 512
    """The longest reply in tokens."""
    top_p: Annotated[float | None, IDENTITY, Field(gt=0, le=1)] = None
    """Draw from the likeliest tokens that make up this probability; null leaves it to the engine."""
    top_k: Annotated[int | None, IDENTITY, Field(ge=1)] = None
    """Draw from this many likeliest tokens; null leaves it to the engine."""
    min_p: Annotated[float | None, IDENTITY, Field(ge=0, le=1)] = None
    """Leave out tokens less likely than this share of the likeliest; null leaves it to the engine."""
    presence_penalty: Annotated[float | None, IDENTITY, Field(ge=-2, le=2)] = None
    """How much a token that occurred at all is held back; null leaves it to the engine."""
    frequency_penalty: Annotated[float | None, IDENTITY, Field(ge=-2, le=2)] = None
    """How much a token is held back for each time it occurred; null leaves it to the engine."""
    repetition_penalty: Annotated[float | None, IDENTITY, Field(gt=0, le=10)] = None
    """By what factor a token that occurred, in the prompt too, is made less likely; null leaves it to the engine."""
    stop: Annotated[Listed[Text], IDENTITY] = ()
    """Texts that end a reply."""
    reasoning_effort: Annotated[Text | None, IDENTITY] = None
    """How hard a reasoning model thinks, in the engine's own words such as `low`; null leaves it to the engine."""
    verbosity: Annotated[Literal["low", "medium", "high"] | None, IDENTITY] = None
    """How much the model writes, for engines that have such a setting; null leaves it to the engine."""
    thinking: Annotated[bool | None, IDENTITY] = None
    """Whether a model that can think before it replies does so for this agent; null leaves it to the model."""
    reasoning: Annotated[Literal["required", "optional", "off"] | None, IDENTITY] = None
    """Whether it writes down its reasoning before it answers; null leaves it to the environment, as `optional`."""
    reasoning_chars_max: Annotated[int | None, IDENTITY, Field(ge=1, le=100_000)] = None
    """The longest reasoning in characters: said in the prompt, and enforced where decoding is held to a schema."""
    system: Annotated[Text | None, IDENTITY] = None
    """Words of yours at the end of its system message."""
    role_specific_config: RoleSpecificConfig = RoleSpecificConfig()
    """What the environment lets this agent differ in."""


class TokenPrices(Section):
    """What a million tokens of an engine cost, in US dollars."""

    prompt: Annotated[float, RUNTIME, Field(ge=0, le=1_000_000)]
    """Of prompts."""
    cached: Annotated[float | None, RUNTIME, Field(ge=0, le=1_000_000)] = None
    """Of those tokens of prompts that the engine has in its cache; null: as much as the others."""
    completion: Annotated[float, RUNTIME, Field(ge=0, le=1_000_000)]
    """Of replies."""


BACKENDS: tuple[str, ...] = tuple(backend_specs())


class _ModelDefinition(Section):
    """One engine: which backend, and the section of that backend (and of no other)."""

    if TYPE_CHECKING:
        backend: str
        settings: Mapping[str, AnyJson] | None
        record_tokens: bool
        constrained_decoding: Decoding
        reply_form: ReplyForm | None
        latency: EngineLatency | None
        usd_per_mtok: TokenPrices | None
        usd_per_hour: float | None

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
        return self.backend not in BACKENDS or getattr(self, section_key(self.backend)) is not None

    @property
    def backend_settings(self) -> Any:
        """What sets up its backend: a section, or the model of a plug-in."""
        if self.backend in BACKENDS:
            return getattr(self, section_key(self.backend))
        return read_settings(self.spec, self.settings or {})

    def with_settings(self, settings: Settings) -> _ModelDefinition:
        """The same definition with other settings of its backend."""
        value = settings if self.backend in BACKENDS else write_settings(settings)
        return self.model_copy(update={section_key(self.backend): value})


def section_key(backend: str) -> str:
    """The key of a backend's section."""
    return f"{backend}_config" if backend in BACKENDS else SETTINGS


if TYPE_CHECKING:
    ModelDefinition = _ModelDefinition
else:
    ModelDefinition = create_model(
        "ModelDefinition",
        __base__=_ModelDefinition,
        __module__=__name__,
        __doc__=_ModelDefinition.__doc__,
        backend=(
            Annotated[Text, IDENTITY],
            Field(
                description=f"What serves the model: {', '.join(f'`{name}`' for name in BACKENDS)}, which the section "
                "`<backend>_config` sets up; or the name of an installed one, `package.module:Name`, or "
                "`./file.py:Name` relative to this file, which `settings` sets up.",
                examples=[*BACKENDS],
            ),
        ),
        settings=(
            Annotated[Mapping[Text, AnyJson] | None, IDENTITY],
            Field(None, description="What sets up a backend that is not built in; the backend says what it may hold."),
        ),
        **{
            section_key(name): (spec.settings | None, Field(None, description=f"Settings of the backend `{name}`."))
            for name, spec in backend_specs().items()
        },
        record_tokens=(
            Annotated[bool, IDENTITY],
            Field(
                False,
                description="Whether each reply is recorded with its token ids and log-probabilities, for training on "
                "it later.",
            ),
        ),
        constrained_decoding=(
            Annotated[Decoding, IDENTITY],
            Field(
                "schema",
                description="What the engine holds replies to: the prompt's schema or choices (where the backend can), "
                "any JSON object, or nothing.",
            ),
        ),
        reply_form=(
            Annotated[ReplyForm | None, IDENTITY],
            Field(
                None,
                description="The form of reply that prompts teach; null: json where decoding is constrained, markup "
                "where not, as far as the environment knows both.",
            ),
        ),
        latency=(
            EngineLatency | None,
            Field(
                None,
                description="Makes replies take as long as the latency model says, where the engine is faster; null "
                "leaves it alone.",
            ),
        ),
        usd_per_mtok=(
            TokenPrices | None,
            Field(None, description="What a million of its tokens cost, for the costs in reports; null: not known."),
        ),
        usd_per_hour=(
            Annotated[float | None, RUNTIME, Field(ge=0, le=1_000_000)],
            Field(
                None,
                description="What an hour of the engine costs in US dollars, such as a GPU hour times the number of "
                "GPUs; it is added to the costs of tokens. Null: not known.",
            ),
        ),
    )


DEFAULT_PROFILE: Final = "embedded"
_ENVIRONMENT: Final = (
    f"The kind of conversation: {', '.join(f'`{name}`' for name in ENVIRONMENTS)}, the name of an installed one, "
    "`package.module:Name`, `./file.py:name` relative to this file, `textarena:GAME`, or `pettingzoo:MODULE`."
)
STEP_LIMIT_S: Final = 60.0
"""How long a step may take where the file does not say so."""
ENVIRONMENT_KEY: Final = ("conversation_config", "environment")
SETTINGS: Final = "settings"
"""The key of the settings of an environment that is not built in."""
PLUGINS: Final = "plugins"
"""The key under which the code is recorded that an experiment names."""
MODELS: Final = "model_definitions"
METRICS: Final = "metrics"
METRIC_PLUGINS: Final = "metric_plugins"
"""The key under which the code of metrics is recorded."""
REWARDS: Final = "rewards"
FLEET: Final = "fleet"
LIMITS: Final = "limits"

S = TypeVar("S", bound=Settings)


class ExperimentMetadata(Section):
    """What the experiment is called."""

    experiment_name: Annotated[Name, IDENTITY]
    """Its name: of the run directory, and the beginning of each task's id."""
    description: Annotated[str, RUNTIME] = ""
    """What it asks, for people."""


class ConversationConfig(Section):
    """What is played, and how often."""

    environment: Annotated[Text, IDENTITY, Field(description=_ENVIRONMENT)]
    conversations: Annotated[Annotated[int, Field(ge=1, le=1_000_000)] | Literal["all"], RUNTIME]
    """How many conversations to run, or `all`: one about each question; a run can be extended by raising it."""
    samples_per_task: Annotated[int, IDENTITY, Field(ge=1, le=10_000)] = 1
    """How often each deal is played, with other draws from the engines; `conversations` counts all of them."""
    step_limit_s: Annotated[float | None, RUNTIME, Field(gt=0, le=86_400)] = STEP_LIMIT_S
    """How long a step of an environment of your own may take; null: as long as it likes, and the run waits."""


class PluginCode(Section):
    """The code that a name of the file refers to; it is filled in when the file is loaded."""

    distribution: Annotated[Text | None, IDENTITY] = None
    """The installed package that it came with; null for a file."""
    version: Annotated[Text | None, IDENTITY] = None
    """The version of that package."""
    sha256: Annotated[str, IDENTITY] = ""
    """The digest of its source; empty for a game of a family such as `textarena`."""
    path: Annotated[str, RUNTIME] = ""
    """Where it was found."""
    runtime_settings: Annotated[Listed[Text], RUNTIME] = ()
    """The keys of `settings` that decide only how fast and where the same results are made."""


class MetricCode(Section):
    """The code of a metric; it is filled in when the file is loaded. It is not part of the identity."""

    distribution: Annotated[Text | None, RUNTIME] = None
    """The installed package that it came with; null for a file."""
    version: Annotated[Text | None, RUNTIME] = None
    """The version of that package."""
    sha256: Annotated[str, RUNTIME] = ""
    """The digest of its source."""
    path: Annotated[str, RUNTIME] = ""
    """Where it was found."""


class RewardsConfig(Section):
    """What conversations are worth to those who take part, for training; see `Environment.rewards` for the rest."""

    shaped: Annotated[Mapping[Name, Text], IDENTITY] = Field(default={})
    """By name, further rewards: functions from an ended conversation to a number for each agent."""
    total: Annotated[Mapping[Name, float] | None, RUNTIME] = None
    """The weight of each reward in the one number `reward`; without it, the preferred reward alone."""


class RetryConfig(Section):
    """What happens when a reply cannot be used or does not come."""

    max_retries: Annotated[int, IDENTITY, Field(ge=0, le=20)] = 2
    """How often an agent is asked to correct a malformed reply before its default act is taken."""
    when_exhausted: Annotated[WhenExhausted, IDENTITY] = "pass"
    """What follows a reply that is malformed after all corrections: the default act, or the conversation fails."""
    max_attempts: Annotated[int, RUNTIME, Field(ge=1, le=100)] = 5
    """How often one request is sent to an engine that does not answer; rejections as too many are not counted."""
    backoff_s: Annotated[float, RUNTIME, Field(ge=0, le=3600)] = 1.0
    """The pause before the second sending; it doubles each time."""
    backoff_s_max: Annotated[float, RUNTIME, Field(ge=0, le=3600)] = 30.0
    """The longest pause between two sendings."""
    request_deadline_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 600.0
    """The time one request may take, all sendings and pauses together."""
    engine_patience_s: Annotated[float, RUNTIME, Field(gt=0, le=604_800)] = 60.0
    """How long a run waits for an engine that is away: that many requests fail at, and that answers none."""


class ReportConfig(Section):
    """With what the combinations of a grid are compared; it changes no conversation."""

    baseline: Annotated[Mapping[Text, AnyJson] | Text | None, RUNTIME] = None
    """The combination of the grid that all others are compared with: its values by column, or its directory's name."""
    primary: Annotated[Text | None, RUNTIME] = None
    """The figure that the study is about, such as `accuracy.final` or `bias.final.ambiguous`; it is reported first."""


class LimitsConfig(Section):
    """How much a run may use, over all its sessions; it stops in good order at the first of these."""

    tokens: Annotated[int | None, RUNTIME, Field(ge=1)] = None
    """The tokens of prompts and replies, as the engines count them."""
    usd: Annotated[float | None, RUNTIME, Field(gt=0)] = None
    """The US dollars, at the prices of its models (`usd_per_mtok`, `usd_per_hour`)."""
    hours: Annotated[float | None, RUNTIME, Field(gt=0)] = None
    """The hours at play, in which engines were up and conversations left; those of several workers add up."""


class _Experiment(Section):
    """An experiment as it will run: profile and overrides applied, every default filled in.

    The types bind each field by itself; what must hold between fields (`consistency`) is checked by
    `load_experiment`, which is the way in.
    """

    if TYPE_CHECKING:
        experiment_metadata: ExperimentMetadata
        seed: int = 0
        profile: str = DEFAULT_PROFILE
        model_definitions: Mapping[str, ModelDefinition]
        agent_definitions: tuple[AgentDefinition, ...]
        conversation_config: ConversationConfig
        settings: Mapping[str, AnyJson] | None = None
        plugins: Mapping[str, PluginCode] = {}
        metrics: tuple[str, ...] = ()
        metric_plugins: Mapping[str, MetricCode] = {}
        rewards: RewardsConfig | None = None
        retry_config: RetryConfig = RetryConfig()
        report: ReportConfig = ReportConfig()
        fleet: FleetConfig | None = None
        limits: LimitsConfig | None = None

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
        spec = self.known_spec
        if spec is None:
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

    def with_settings(self, settings: Settings) -> _Experiment:
        """The same experiment with other settings of its environment."""
        value = settings if self.is_builtin else write_settings(settings)
        return self.model_copy(update={self.settings_key: value})

    def dumped(self) -> JsonObject:
        """All its values as plain data; without the sections of plug-ins where it has none."""
        values: JsonObject = self.model_dump(mode="json")
        empty: JsonObject = {
            SETTINGS: None,
            PLUGINS: {},
            METRICS: [],
            METRIC_PLUGINS: {},
            REWARDS: None,
            FLEET: None,
            LIMITS: None,
        }
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
    def _without_report(cls, data: object) -> object:
        """A profile takes the section back with null."""
        if isinstance(data, dict) and data.get("report") is None:
            return {key: value for key, value in data.items() if key != "report"}
        return data

    @model_validator(mode="before")
    @classmethod
    def _fill_in_settings(cls, data: object) -> object:
        """Add the section of an environment whose settings all have defaults; the record of the run has it."""
        conversation = data.get("conversation_config") if isinstance(data, dict) else None
        name = conversation.get("environment") if isinstance(conversation, dict) else None
        spec = environment_specs().get(name) if isinstance(name, str) else None
        if not isinstance(data, dict) or spec is None or spec.needs or data.get(spec.section) is not None:
            return data
        return {**data, spec.section: {}}


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


def _described(annotation: object, description: str, default: object = ...) -> tuple[object, object]:
    return annotation, Field(default, description=description)


if TYPE_CHECKING:
    Experiment = _Experiment
else:
    Experiment = create_model(
        "Experiment",
        __base__=_Experiment,
        __module__=__name__,
        __doc__=_Experiment.__doc__,
        experiment_metadata=_described(ExperimentMetadata, "What the experiment is called."),
        seed=_described(
            Annotated[int, IDENTITY, Field(ge=0)], "The seed of every random decision of the experiment.", 0
        ),
        profile=_described(
            Annotated[Name, RUNTIME],
            "The profile that runs when none is chosen; `embedded` is the file itself.",
            DEFAULT_PROFILE,
        ),
        model_definitions=_described(
            Annotated[Mapping[Name, ModelDefinition], Field(min_length=1)],
            "The engines, each under the name its agents call it by.",
        ),
        agent_definitions=_described(
            Annotated[Listed[AgentDefinition], Field(min_length=1)], "The kinds of participant."
        ),
        conversation_config=_described(ConversationConfig, "What is played, and how often."),
        **{
            spec.section: _described(spec.settings | None, spec.description, None)
            for spec in environment_specs().values()
            if spec.section is not None
        },
        settings=_described(
            Annotated[Mapping[Text, AnyJson] | None, IDENTITY],
            "What sets up an environment that is not built in; the environment says what it may hold.",
            None,
        ),
        plugins=_described(
            Mapping[Text, PluginCode],
            "By name, the code that the file names. It is filled in; written here, it must be the code that is found.",
            {},
        ),
        metrics=_described(
            Annotated[Listed[Text], RUNTIME],
            "Functions from an ended conversation to numbers, which go to its row and the summary.",
            (),
        ),
        metric_plugins=_described(Mapping[Text, MetricCode], "By name, the code of the metrics. It is filled in.", {}),
        rewards=_described(
            RewardsConfig | None,
            "What conversations are worth to those who take part, for training; null: what their outcomes say.",
            None,
        ),
        retry_config=_described(
            RetryConfig, "What happens when a reply cannot be used or does not come.", RetryConfig()
        ),
        report=_described(
            ReportConfig | None,
            "With what the combinations of a grid are compared; it changes no conversation.",
            ReportConfig(),
        ),
        fleet=_described(
            FleetConfig | None,
            "The GPUs that the models with the backend `fleet` share, and how their engines are kept running.",
            None,
        ),
        limits=_described(
            LimitsConfig | None,
            "How much the run may use, over all its sessions; it stops in good order at the first of these.",
            None,
        ),
    )
