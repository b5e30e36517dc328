"""Who an agent is, for itself, and as far as it is shown, for the others; whole, and in parts for templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mac_runner.environments.discussion.settings import IdentityRevealConfig
from mac_runner.environments.personas import Demographics, description, introduction, is_noun, phrase
from mac_runner.spec import AgentDefinition

USUAL_KEYS: Final = ("age", "race", "ethnicity", "nationality", "religion", "gender", "occupation")
"""The keys that a template may always name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is known of an agent. What is not known or not shown is empty, and None in `if_as_human`."""

    persona: str = ""
    demographics: Mapping[str, str | int] = field(default_factory=lambda: dict.fromkeys(USUAL_KEYS, ""), hash=False)
    demographics_text: str = ""
    if_as_human: bool | None = None

    def hidden(self) -> Traits:
        """The same agent with all of it hidden."""
        return Traits(demographics=dict.fromkeys(self.demographics, ""))

    def fields(self) -> dict[str, Any]:
        """The fields of a template."""
        return {name: getattr(self, name) for name in Traits.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An agent's identity: `own` sentences to itself, and `shown`, what the others see besides its id.

    It is shown from round `shown_from` on, counted from 0. `traits` are the parts of the former, `shown_traits` those
    of the latter.
    """

    own: str = ""
    shown: str = ""
    shown_from: int = 0
    traits: Traits = Traits()
    shown_traits: Traits = Traits()

    def shown_in(self, round_number: int) -> str:
        """What the others see of it in a round."""
        return self.shown if self.is_shown_in(round_number) else ""

    def traits_in(self, round_number: int) -> Traits:
        """The parts of that."""
        return self.shown_traits if self.is_shown_in(round_number) else self.shown_traits.hidden()

    def is_shown_in(self, round_number: int) -> bool:
        """Whether the others see in a round what they may see of it."""
        return round_number >= self.shown_from


def identity_of(definition: AgentDefinition, reveal: IdentityRevealConfig, keys: tuple[str, ...] = ()) -> Identity:
    """The identity of an agent as its definition has it and `reveal` lets it be seen.

    `keys` are demographics that some agent has, so that templates may name them for each.
    """
    persona = definition.persona if reveal.persona else None
    demographics = definition.demographics if reveal.demographics else {}
    presence = {"hidden": None, "as_declared": definition.if_as_human, "all_human": True, "all_ai": False}
    if_as_human = presence[reveal.presence_mode]
    return Identity(
        own=introduction(definition.agent_id, definition),
        shown=_shown(persona, demographics, if_as_human),
        shown_from=reveal.reveal_from_round - 1,
        traits=_traits(definition.persona, definition.demographics, definition.if_as_human, keys),
        shown_traits=_traits(persona, demographics, if_as_human, keys),
    )


def _traits(persona: str | None, demographics: Demographics, if_as_human: bool | None, keys: tuple[str, ...]) -> Traits:
    """The traits, with an empty text under each of `keys` that is not known."""
    known = {} if isinstance(demographics, str) else demographics
    return Traits(
        persona=(persona or "").strip(),
        demographics={**dict.fromkeys((*USUAL_KEYS, *keys), ""), **known},
        demographics_text=description(demographics) or phrase(None, demographics),
        if_as_human=if_as_human,
    )


def _shown(persona: str | None, demographics: Demographics, if_as_human: bool | None) -> str:
    parts = [phrase(persona, demographics)]
    descriptions = [description(demographics), persona.strip() if persona and not is_noun(persona) else ""]
    if described := " ".join(text for text in descriptions if text):
        parts.append(f"who is described so: {described}")
    if if_as_human is not None:
        parts.append("a human" if if_as_human else "an AI")
    return ", ".join(part for part in parts if part)
