"""Who an agent is, in grammatical words: for itself, and as far as it is shown, for the others.

`{age: elderly}` and the persona `economist` make "an elderly economist"; a persona in sentences is kept as it is, and
so are demographics that are a text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mac_runner.config import AgentDefinition
from mac_runner.environments.discussion.settings import IdentityRevealConfig
from mac_runner.environments.discussion.traits import NO_TRAITS, Demographics, Traits

_NOUN_WORDS_MAX: Final = 6
_ADJECTIVES: Final = ("age", "race", "ethnicity", "nationality", "religion")
_GENDER_ADJECTIVES: Final = {"woman": "female", "man": "male", "girl": "female", "boy": "male"}
_GENDER_NOUNS: Final = {"female": "woman", "male": "man"}
_LEADING_ARTICLE: Final = re.compile(r"^(?:an?|the)\s+", re.IGNORECASE)

_SOUNDS_LIKE_AN: Final = re.compile(r"(?:hour|honest|honou?r|heir|8|11(?!\d)|18(?!\d))", re.IGNORECASE)
_SOUNDS_LIKE_A: Final = re.compile(
    r"(?:uni(?!n|m)|use|usu|uti|uto|ubi|ur(?:ani|olog)|eu|ewe|one\b|once\b|ukrain|ugand|urugua)", re.IGNORECASE
)
_SPELLED_WITH_VOWEL: Final = frozenset("AEFHILMNORSX")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An agent's identity: `own` sentences to itself, and `shown`, what the others see besides its id.

    It is shown from round `shown_from` on, counted from 0. `traits` are the parts of the former, `shown_traits` those
    of the latter.
    """

    own: str = ""
    shown: str = ""
    shown_from: int = 0
    traits: Traits = NO_TRAITS
    shown_traits: Traits = NO_TRAITS

    def shown_in(self, round_number: int) -> str:
        """What the others see of it in a round."""
        return self.shown if self.is_shown_in(round_number) else ""

    def is_shown_in(self, round_number: int) -> bool:
        """Whether the others see in a round what they may see of it."""
        return round_number >= self.shown_from


def identity_of(definition: AgentDefinition, reveal: IdentityRevealConfig, keys: tuple[str, ...] = ()) -> Identity:
    """The identity of an agent as its definition has it and `reveal` lets it be seen.

    `keys` are demographics that some agent has, so that templates may name them for each.
    """
    demographics = definition.demographics if reveal.demographics else {}
    as_human = {"hidden": None, "as_declared": definition.if_as_human, "all_human": True, "all_ai": False}
    return Identity(
        own=_own(definition),
        shown=_shown(definition, reveal),
        shown_from=reveal.reveal_from_round - 1,
        traits=_traits(definition.persona, definition.demographics, definition.if_as_human, keys),
        shown_traits=_traits(
            definition.persona if reveal.persona else None, demographics, as_human[reveal.presence_mode], keys
        ),
    )


def _traits(persona: str | None, demographics: Demographics, if_as_human: bool | None, keys: tuple[str, ...]) -> Traits:
    text = _description(demographics) or phrase(None, demographics)
    return Traits.of(persona, demographics, text, if_as_human, keys)


def _own(definition: AgentDefinition) -> str:
    who = phrase(definition.persona, definition.demographics)
    sentences = [f"You are {definition.agent_id}{f', {who}' if who else ''}."]
    if described := _description(definition.demographics):
        sentences.append(described)
    if definition.persona and not _is_noun(definition.persona):
        sentences.append(definition.persona.strip())
    if definition.if_as_human is not None:
        as_what = "a human and speak as one" if definition.if_as_human else "an AI and do not pretend otherwise"
        sentences.append(f"You take part as {as_what}.")
    return " ".join(sentences)


def _shown(definition: AgentDefinition, reveal: IdentityRevealConfig) -> str:
    persona = definition.persona if reveal.persona else None
    demographics = definition.demographics if reveal.demographics else {}
    parts = [phrase(persona, demographics)]
    descriptions = [_description(demographics), persona.strip() if persona and not _is_noun(persona) else ""]
    if described := " ".join(text for text in descriptions if text):
        parts.append(f"who is described so: {described}")
    match reveal.presence_mode:
        case "all_human":
            parts.append("a human")
        case "all_ai":
            parts.append("an AI")
        case "as_declared" if definition.if_as_human is not None:
            parts.append("a human" if definition.if_as_human else "an AI")
    return ", ".join(part for part in parts if part)


def phrase(persona: str | None, demographics: Demographics) -> str:
    """ "an elderly economist": article, adjectives, noun; the rest in brackets behind.

    Demographics that are a text without sentences come first, as they are written.
    """
    if isinstance(demographics, str):
        text = "" if _is_description(demographics) else demographics.strip()
        return ", ".join(part for part in (text, phrase(persona, {})) if part)
    traits = {key: value for key, value in demographics.items() if str(value).strip()}
    noun = _LEADING_ARTICLE.sub("", persona.strip()) if persona and _is_noun(persona) else ""
    if occupation := traits.pop("occupation", None):
        noun, extra = (noun, f"occupation: {occupation}") if noun else (str(occupation), "")
    else:
        extra = ""
    adjectives = [_adjective(key, traits.pop(key)) for key in _ADJECTIVES if key in traits]
    if gender := str(traits.pop("gender", "")):
        if noun:
            adjectives.append(_GENDER_ADJECTIVES.get(gender.lower(), gender))
        elif gender.lower() in (*_GENDER_ADJECTIVES, *_GENDER_NOUNS) or " " in gender:
            noun = _GENDER_NOUNS.get(gender.lower(), gender)
        else:
            adjectives.append(gender)
    extras = "; ".join(part for part in (extra, *(f"{_spaced(key)}: {value}" for key, value in traits.items())) if part)
    if not (noun or adjectives or extras):
        return ""
    named = " ".join((*adjectives, noun or "person"))
    return f"{article(named)} {named}" + (f" ({extras})" if extras else "")


def article(following: str) -> str:
    """`a` or `an`, by how the next word sounds."""
    word = re.split(r"[\s\-]", following, maxsplit=1)[0]
    if _SOUNDS_LIKE_AN.match(word):
        return "an"
    if word.isupper():
        return "an" if word[0] in _SPELLED_WITH_VOWEL else "a"
    if _SOUNDS_LIKE_A.match(following):
        return "a"
    return "an" if word[:1].lower() in set("aeiou") else "a"


def _adjective(key: str, value: str | int) -> str:
    is_years = key == "age" and str(value).isdecimal()
    return f"{value}-year-old" if is_years else str(value).strip()


def _is_noun(persona: str) -> bool:
    """Whether a persona names what somebody is, rather than describing it in sentences."""
    text = persona.strip()
    return len(text.split()) <= _NOUN_WORDS_MAX and not re.search(r"[.!?;:\n]|^(?:you|i)\b", text, re.IGNORECASE)


def _description(demographics: Demographics) -> str:
    """Demographics that are sentences; empty for others."""
    return demographics.strip() if isinstance(demographics, str) and _is_description(demographics) else ""


def _is_description(demographics: str) -> bool:
    """Whether a text on demographics is in sentences, rather than words that fit into one."""
    return re.search(r"[.!?;:\n]|^(?:you|i)\b", demographics.strip(), re.IGNORECASE) is not None


def _spaced(key: str) -> str:
    return key.replace("_", " ")
