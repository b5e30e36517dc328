"""The parts of an identity as a template has them: persona, demographics, and what an agent takes part as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mac_runner.environments.personas import Demographics

USUAL_KEYS: Final = ("age", "race", "ethnicity", "nationality", "religion", "gender", "occupation")
"""The keys that a template may always name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is known of an agent. What is not known or not shown is empty, and None in `if_as_human`."""

    persona: str = ""
    demographics: Mapping[str, str | int] = field(default_factory=lambda: dict.fromkeys(USUAL_KEYS, ""), hash=False)
    demographics_text: str = ""
    if_as_human: bool | None = None

    @classmethod
    def of(
        cls,
        persona: str | None,
        demographics: Demographics,
        demographics_text: str,
        if_as_human: bool | None,
        keys: tuple[str, ...],
    ) -> Traits:
        """The traits, with an empty text under each of `keys` that is not known."""
        known = {} if isinstance(demographics, str) else demographics
        return cls(
            persona=(persona or "").strip(),
            demographics={**dict.fromkeys((*USUAL_KEYS, *keys), ""), **known},
            demographics_text=demographics_text,
            if_as_human=if_as_human,
        )

    def hidden(self) -> Traits:
        """The same agent with all of it hidden."""
        return Traits(demographics=dict.fromkeys(self.demographics, ""))

    def fields(self) -> dict[str, object]:
        """The fields of a template."""
        return {
            "persona": self.persona,
            "demographics": dict(self.demographics),
            "demographics_text": self.demographics_text,
            "if_as_human": self.if_as_human,
        }


NO_TRAITS: Final = Traits()
"""Of an agent of which nothing is known."""
