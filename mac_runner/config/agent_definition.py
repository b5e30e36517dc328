"""`agent_definitions`: the kinds of participant of an experiment, and how each draws its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from mac_runner.section import IDENTITY, Listed, Name, Section, Text


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
    demographics: Annotated[Mapping[Name, Text | int], IDENTITY] = {}
    """What else it is: `age`, `race`, `ethnicity`, `nationality`, `religion`, `gender`, `occupation`, or other keys."""
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
    role_specific_config: RoleSpecificConfig = RoleSpecificConfig()
    """What the environment lets this agent differ in."""
