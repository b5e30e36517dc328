"""The sections of an experiment file that are the same whatever environments and backends there are, and how a model
is served.

`registry.Experiment` holds them, beside those of environments and backends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic import JsonValue as AnyJson

from mac_runner.section import IDENTITY, RUNTIME, Listed, Name, Section, Text
from mac_runner.types import WhenExhausted

DEFAULT_PROFILE: Final = "embedded"
STEP_LIMIT_S: Final = 60.0
"""How long a step may take where the file does not say so."""
MODELS: Final = "model_definitions"
SETTINGS: Final = "settings"
"""The key of the settings of code that is not built in."""
PLUGINS: Final = "plugins"
"""The key under which the code is recorded that an experiment names."""
ENVIRONMENT_KEY: Final = ("conversation_config", "environment")


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
    """What it is in the conversation; most environments have a role for agents that name none."""
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


class ExperimentMetadata(Section):
    """What the experiment is called."""

    experiment_name: Annotated[Name, IDENTITY]
    """Its name: of the run directory, and the beginning of each task's id."""
    description: Annotated[str, RUNTIME] = ""
    """What it asks, for people."""


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


class SwapConfig(Section):
    """What happens when there are more models than places for them."""

    policy: Annotated[Literal["batch", "fifo", "off"], RUNTIME] = "batch"
    """`batch`: a place keeps its model until its queue is dry or `residency_s` has passed. `fifo`: requests are served
    strictly in the order in which they came. `off`: more models than places are refused."""
    residency_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 20.0
    """How long a place keeps a model while requests of another one wait."""


class RestartConfig(Section):
    """How often an engine that ended is started again."""

    budget: Annotated[int, RUNTIME, Field(ge=0, le=1000)] = 5
    """How many starts after the first one an engine gets in `per_s` seconds."""
    per_s: Annotated[float, RUNTIME, Field(gt=0, le=604_800)] = 3600.0
    """The time that the budget is for."""


class ProbeConfig(Section):
    """When an engine is taken for stuck."""

    stall_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 30.0
    """An engine with requests in flight that gives no reply for so long is sent a canary of one token."""
    start_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 900.0
    """How long an engine may take to start."""


class FleetConfig(Section):
    """The GPUs that the models with the backend `fleet` share, and how their engines are kept running."""

    gpus: Annotated[
        Literal["auto"]
        | Annotated[int, Field(ge=1, le=1024)]
        | Annotated[Listed[Annotated[int, Field(ge=0, le=1023)]], Field(min_length=1)],
        RUNTIME,
    ] = "auto"
    """`auto`: all that `nvidia-smi` lists; a list: the indices of some of them; a number: so many places without a GPU,
    on a machine that has none."""
    max_gpus: Annotated[int, RUNTIME, Field(ge=1, le=1024)] = 8
    """No more GPUs than this."""
    max_agents_per_gpu: Annotated[int, RUNTIME, Field(ge=1, le=16)] = 2
    """How many models may be resident on one GPU or slice."""
    enable_mig: Annotated[bool, RUNTIME] = False
    """Whether the MIG slices that exist are used, each as a place of its own; none is made or removed."""
    first_port: Annotated[int | None, RUNTIME, Field(ge=1024, le=65_000)] = None
    """Engines listen on this port of 127.0.0.1 and the following ones; null takes ports that are free."""
    swap: SwapConfig = SwapConfig()
    """What happens when there are more models than places for them."""
    restart: RestartConfig = RestartConfig()
    """How often an engine that ended is started again."""
    probe: ProbeConfig = ProbeConfig()
    """When an engine is taken for stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a model is served, as far as its settings say; None where they do not.

    A lane is a server, a replica or a copy of the model.
    """

    model: str | None = None
    """The checkpoint."""
    lanes: int | None = None
    slots: int | None = None
    """How many requests each lane serves at once."""
    gpus: int = 1
    """Over how many GPUs each lane is split."""
    step_tokens: int | None = None
    """How many tokens a step computes at most."""
    context_tokens: int | None = None
    """The longest prompt and reply together."""
    admits_by_tokens: bool = False
    """Whether its engine is given requests by the tokens of its cache (`Backend.token_budget`)."""
    alone: Mapping[str, object] = field(default_factory=dict)
    """The settings that differ where one of its lanes serves alone."""
    url: str | None = None
    """The server of its first lane, where it may say its version at `/version`."""


def serving_at(key: str, settings: Any) -> Serving:
    """How a model behind the servers that the setting `key` lists is served, which share `max_in_flight` requests."""
    urls = getattr(settings, key)
    slots = max(1, settings.max_in_flight // len(urls))
    alone = {key: urls[:1], "max_in_flight": slots}
    return Serving(model=settings.model, lanes=len(urls), slots=slots, alone=alone)
