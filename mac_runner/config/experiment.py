"""An experiment: the whole file, frozen. The sections with a vocabulary of their own have a module each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, model_validator

from mac_runner.config.agent_definition import AgentDefinition
from mac_runner.config.discussion import DiscussionConfig
from mac_runner.config.game import GameConfig
from mac_runner.config.model_definition import ModelDefinition
from mac_runner.config.section import IDENTITY, RUNTIME, Listed, Name, Section

DEFAULT_PROFILE: Final = "embedded"
GAME_ENVIRONMENT: Final = "town_of_salem"
DISCUSSION_ENVIRONMENT: Final = "discussion"
ECHO_ENVIRONMENT: Final = "echo"


class ExperimentMetadata(Section):
    """What the experiment is called."""

    experiment_name: Annotated[Name, IDENTITY]
    """Its name: of the run directory, and the beginning of each task's id."""
    description: Annotated[str, RUNTIME] = ""
    """What it asks, for people."""


class ConversationConfig(Section):
    """What is played, and how often."""

    environment: Annotated[Name, IDENTITY]
    """The kind of conversation: `town_of_salem`, `discussion`, `echo`."""
    conversations: Annotated[int, RUNTIME, Field(ge=1, le=1_000_000)]
    """How many conversations to run; a run can be extended by raising it."""


class EchoConfig(Section):
    """Numbers that are sent back: the smallest conversations there are, to try or to measure an engine with."""

    rounds: Annotated[int, IDENTITY, Field(ge=1, le=1000)]
    """How many numbers each agent is given, one after the other."""


class RetryConfig(Section):
    """What happens when a reply cannot be used or does not come."""

    max_retries: Annotated[int, IDENTITY, Field(ge=0, le=20)] = 2
    """How often an agent is asked to correct a malformed reply before its default act is taken."""
    max_attempts: Annotated[int, RUNTIME, Field(ge=1, le=100)] = 5
    """How often one request is sent to an engine that does not answer; being turned away as too many is not counted."""
    backoff_s: Annotated[float, RUNTIME, Field(ge=0, le=3600)] = 1.0
    """The pause before the second sending; it doubles each time."""
    backoff_s_max: Annotated[float, RUNTIME, Field(ge=0, le=3600)] = 30.0
    """The longest pause between two sendings."""
    request_deadline_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 600.0
    """The time one request may take, all sendings and pauses together."""


class Experiment(Section):
    """An experiment as it will run: profile and overrides applied, every default filled in.

    The types bind each field by itself; what must hold between fields (`consistency`) is checked by
    `load_experiment`, which is the way in.
    """

    experiment_metadata: ExperimentMetadata
    """What the experiment is called."""
    seed: Annotated[int, IDENTITY, Field(ge=0)] = 0
    """The number from which all chance of the experiment is derived."""
    profile: Annotated[Name, RUNTIME] = DEFAULT_PROFILE
    """The profile that runs when none is asked for; `embedded` is the file as it stands."""
    model_definitions: Annotated[Mapping[Name, ModelDefinition], Field(min_length=1)]
    """The engines, each under the name its agents call it by."""
    agent_definitions: Annotated[Listed[AgentDefinition], Field(min_length=1)]
    """The kinds of participant."""
    conversation_config: ConversationConfig
    """What is played, and how often."""
    game: GameConfig | None = None
    """Settings of the environment `town_of_salem`; all of them have defaults."""
    discussion: DiscussionConfig | None = None
    """Settings of the environment `discussion`."""
    echo: EchoConfig | None = None
    """Settings of the environment `echo`."""
    retry_config: RetryConfig = RetryConfig()
    """What happens when a reply cannot be used or does not come."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_game(cls, data: object) -> object:
        """A game without a `game` section is played by the defaults, and the record of the run says so."""
        if not isinstance(data, dict) or data.get("game") is not None:
            return data
        conversation = data.get("conversation_config")
        is_game = isinstance(conversation, dict) and conversation.get("environment") == GAME_ENVIRONMENT
        return {**data, "game": {}} if is_game else data
