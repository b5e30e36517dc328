"""Who an agent definition says that its agents are, in grammatical words.

`{age: elderly}` and the persona `economist` make "an elderly economist"; a persona in sentences is kept as it is, and
so are demographics that are a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from mac_runner.spec import AgentDefinition

Demographics: TypeAlias = Mapping[str, str | int] | str
"""As an agent definition has them: a mapping, or a text."""

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


def introduction(name: str, definition: AgentDefinition) -> str:
    """The sentences that introduce an agent to itself, beginning with its name."""
    who = phrase(definition.persona, definition.demographics)
    sentences = [f"You are {name}{f', {who}' if who else ''}."]
    if described := description(definition.demographics):
        sentences.append(described)
    if definition.persona and not is_noun(definition.persona):
        sentences.append(definition.persona.strip())
    if definition.if_as_human is not None:
        as_what = "a human and speak as one" if definition.if_as_human else "an AI and do not pretend otherwise"
        sentences.append(f"You take part as {as_what}.")
    return " ".join(sentences)


def phrase(persona: str | None, demographics: Demographics) -> str:
    """ "an elderly economist": article, adjectives, noun; the rest in brackets behind.

    Demographics that are a text without sentences come first, as they are written.
    """
    if isinstance(demographics, str):
        text = "" if is_description(demographics) else demographics.strip()
        return ", ".join(part for part in (text, phrase(persona, {})) if part)
    traits = {key: value for key, value in demographics.items() if str(value).strip()}
    noun = _LEADING_ARTICLE.sub("", persona.strip()) if persona and is_noun(persona) else ""
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


def is_noun(persona: str) -> bool:
    """Whether a persona names what somebody is, rather than describing it in sentences."""
    text = persona.strip()
    return len(text.split()) <= _NOUN_WORDS_MAX and not re.search(r"[.!?;:\n]|^(?:you|i)\b", text, re.IGNORECASE)


def description(demographics: Demographics) -> str:
    """Demographics that are sentences; empty for others."""
    return demographics.strip() if isinstance(demographics, str) and is_description(demographics) else ""


def is_description(demographics: str) -> bool:
    """Whether a text on demographics is in sentences, rather than words that fit into one."""
    return re.search(r"[.!?;:\n]|^(?:you|i)\b", demographics.strip(), re.IGNORECASE) is not None


def _spaced(key: str) -> str:
    return key.replace("_", " ")
