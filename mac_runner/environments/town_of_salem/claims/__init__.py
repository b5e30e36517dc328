"""What players say in free text, read by rules: claims about themselves and each other.

Shortened days, the record and the scripted players all read speech with this one extractor. It knows names and role
words, but nothing of the game, so it cannot say whether a claim is true.

A claim is taken only where its speaker makes it in earnest: not from a question, a condition, a quotation, the
reported words of others, a negated sentence (`nobody said that Bob is evil`), or a plan to say something (`I will
claim Doctor`). A plain denial of guilt is a defence (`Bob is not mafia`). A sentence that the rules do not know holds
no claim: missing one is better than inventing one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from mac_runner.environments.town_of_salem.claims.language import (
    HAS_NAME,
    HAS_ROLE,
    Part,
    mark,
    names_in,
    own_words,
    passages,
    patterns,
    roles_in,
)
from mac_runner.environments.town_of_salem.model.events import Says
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles

__all__ = ["Claim", "ClaimKind", "Estimate", "Says", "estimates", "extract", "leaning"]


class ClaimKind(StrEnum):
    """What a claim is about: the speaker's role, a result of theirs, or what another player is."""

    ROLE = "role"
    RESULT = "result"
    ACCUSATION = "accusation"
    DEFENCE = "defence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim and its place in the text."""

    kind: ClaimKind
    says: Says
    """EVIL is every word against a player without faction or role, also a call to vote; NOT_EVIL every word for one."""
    about: str = ""
    """The name of the player it is about; "" for the speaker."""
    roles: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    start: int
    end: int
    """`text[start:end]` are the words that make it."""

    @property
    def is_against(self) -> bool:
        """Whether it makes the player it is about look guilty."""
        return self.kind is ClaimKind.ACCUSATION or (self.kind is ClaimKind.RESULT and self.says in _GUILTY)

    @property
    def is_in_favour(self) -> bool:
        """Whether it makes the player it is about look innocent."""
        return self.kind is ClaimKind.DEFENCE or (self.kind is ClaimKind.RESULT and self.says is Says.NOT_SUSPICIOUS)


@follows_roles
@lru_cache(maxsize=8192)
def leaning(claim: Claim) -> int:
    """Whether a claim speaks for (1) or against (-1) the player it is about; 0 for neither.

    A role of the Town speaks for its holder, any other against; a role held before, or not registered here, does
    neither.
    """
    if claim.is_against or claim.is_in_favour:
        return -1 if claim.is_against else 1
    held = [ROLES.get(role.lower()) for role in claim.roles]
    sides = {None if role is None else role.faction is Faction.TOWN for role in held}
    return 0 if len(sides) != 1 or None in sides or claim.says is Says.WAS_ROLE else 1 if sides == {True} else -1


_GUILTY = frozenset({Says.SUSPICIOUS, Says.MAFIA, Says.VAMPIRE})


_BOUNDARY = re.compile(r"[,:()–—\x00]|\s-|\b(?:and|so|because|since|or|but|as)\b", re.I)
_NEGATOR = re.compile(
    r"\b(?:not|never|no|nobody|none|cannot|without|neither|nor|hardly|refuse\w*|stop|doubt)\b|n't\b", re.I
)
_NO_DOUBT = re.compile(r"(?:\bno|\bnot|n't)\s+doubt\b", re.I)
_PLAN = re.compile(
    r"(?:\b(?:will|shall|going to|gonna|could|can|should|would|plan to|want to|have to|let's|let me|to)|'ll|'d)\s+"
    r"(?:\w+ly\s+|just\s+)*(?:say|claim|pretend|fake|tell\s+\w+|pose|act)\b",
    re.I,
)
# A name after one of these is not the subject: `the house of Bob is …`.
_NO_SUBJECT = re.compile(
    r"\b(?:or|either|of|for|by|against|than|about|with|to|neither|nor|from|visit\w*|killed|murdered|attacked)\s+$", re.I
)
_DENIED = {
    Says.MAFIA: Says.NOT_MAFIA,
    Says.EVIL: Says.NOT_EVIL,
    Says.TOWN: Says.NOT_TOWN,
    Says.NOT_EVIL: Says.EVIL,
}
_NEGATED = {
    Says.SUSPICIOUS: Says.NOT_SUSPICIOUS,
    Says.MAFIA: Says.NOT_SUSPICIOUS,
    Says.VAMPIRE: Says.NOT_VAMPIRE,
}
_AGAINST = frozenset({Says.MAFIA, Says.EVIL, Says.NOT_TOWN})
_PRONOUNS = frozenset({"he", "she", "they"})
_SENTENCE_ENDS = ".!?\n"


@follows_roles
@lru_cache(maxsize=8192)
def extract(text: str, players: tuple[str, ...]) -> tuple[Claim, ...]:
    """The claims that the speaker of `text` makes, in order; `players` are the names known."""
    marked = mark(text, players)
    parts = passages(marked.text)
    claimed = {role for part in parts for claim in _self_claims(part.text) for role in claim.roles}
    is_sheriff = any(ROLES[role.lower()].finds_suspicion for role in claimed)
    return tuple(
        replace(claim, start=marked.place(part.start + claim.start), end=marked.place(part.start + claim.end))
        for part in parts
        for claim in _claims(part.text, players, is_sheriff)
    )


# Cached by passage: players say the same sentence many times.
@follows_roles
@lru_cache(maxsize=16384)
def _claims(passage: str, players: tuple[str, ...], is_sheriff: bool) -> tuple[Claim, ...]:
    sentences = own_words(passage)
    found = [*_results("".join(sentence.text for sentence in sentences), players)]
    for sentence in sentences:
        if is_sheriff:
            found += _verdicts(sentence, players)
        found += _opinions(sentence, passage, players)
    taken: list[Claim] = []
    for claim in found:
        # The same words make one claim about a player.
        if not any(claim.about == old.about and claim.start < old.end and old.start < claim.end for old in taken):
            taken.append(claim)
    return tuple(sorted((*_self_claims(passage), *taken), key=lambda claim: (claim.start, claim.end)))


@follows_roles
@lru_cache(maxsize=16384)
def _self_claims(passage: str) -> tuple[Claim, ...]:
    return tuple(claim for sentence in own_words(passage) for claim in _roles(sentence))


def _stated(text: str, kind: str, ends: str = "") -> Iterator[re.Match[str]]:
    """What the patterns of a kind find and no word before it denies, in the same part of the sentence.

    A sentence begins after the last of `ends`.
    """
    for pattern in patterns(kind):
        for match in pattern.finditer(text):
            start = max((text.rfind(end, 0, match.start()) for end in ends), default=-1) + 1
            for boundary in _BOUNDARY.finditer(text, start, match.start()):
                start = boundary.end()
            if not _NEGATOR.search(_NO_DOUBT.sub("", text[start : match.start()])):
                yield match


def _roles(sentence: Part) -> Iterator[Claim]:
    text, end = sentence.text, 0
    found = _stated(text, "role") if HAS_ROLE.search(text) else ()
    for match in sorted(found, key=lambda match: match.start("roles")):
        if match.start("roles") >= end and not _is_planned(text, match.start("roles")):
            end = match.end("roles")
            yield Claim(
                kind=ClaimKind.ROLE,
                says=Says.WAS_ROLE if match.groupdict().get("WAS_ROLE") else Says.ROLE,
                roles=roles_in(match["roles"]),
                start=sentence.start + match.start(),
                end=sentence.start + end,
            )


def _results(text: str, players: tuple[str, ...]) -> Iterator[Claim]:
    for kind in ("befallen", "result") if HAS_NAME.search(text) else ("befallen",):
        for match in _stated(text, kind, _SENTENCE_ENDS):
            yield from _result(match, 0, players)


def _verdicts(sentence: Part, players: tuple[str, ...]) -> Iterator[Claim]:
    for match in _stated(sentence.text, "verdict"):
        if not _NO_SUBJECT.search(sentence.text[: match.start()]):
            yield from _result(match, sentence.start, players)


def _result(match: re.Match[str], offset: int, players: tuple[str, ...]) -> Iterator[Claim]:
    groups, says, roles = _read(match)
    if says is Says.ROLES and roles == (Faction.VAMPIRE.title(),):
        says, roles = Says.VAMPIRE, ()
    found = min(match.start(name) for name in groups if name in (says.name, "roles", "names"))
    if "about" in groups and _NEGATOR.search(match.string, match.end("about"), found):
        if says not in _NEGATED:
            return
        says = _NEGATED[says]
    for about in names_in(groups.get("about", ""), players) or ("",):
        yield _made(match, offset, ClaimKind.RESULT, says, about, roles, names_in(groups.get("names", ""), players))


def _opinions(sentence: Part, passage: str, players: tuple[str, ...]) -> Iterator[Claim]:
    for match in _stated(sentence.text, "oneself"):
        if not _is_planned(sentence.text, match.start()):
            yield _opinion(match, "", sentence.start)
    for match in _stated(sentence.text, "others") if HAS_NAME.search(passage) else ():
        for about in _meant(match, passage[: sentence.start + match.start()], players):
            yield _opinion(match, about, sentence.start)


def _meant(match: re.Match[str], before: str, players: tuple[str, ...]) -> tuple[str, ...]:
    """The players a sentence is about; a pronoun means the one player named before it, if there is only one."""
    if match["about"].lower() in _PRONOUNS:
        named = names_in(before, players)
        return named if len(named) == 1 else ()
    named = names_in(match["about"], players)
    is_subject = match.start("about") == match.start()
    # `I vote for Abel, and Bob is innocent`: of the two only Bob is.
    return named[1:][-1:] if is_subject and _NO_SUBJECT.search(before) else named


def _opinion(match: re.Match[str], about: str, offset: int) -> Claim:
    groups, said, roles = _read(match)
    says = Says.ROLE if roles else _DENIED[said] if "not" in groups else said
    of_town = (ROLES[role.lower()].faction is Faction.TOWN for role in roles)
    is_against = not all(of_town) if roles else says in _AGAINST
    return _made(match, offset, ClaimKind.ACCUSATION if is_against else ClaimKind.DEFENCE, says, about, roles)


def _read(match: re.Match[str]) -> tuple[dict[str, str], Says, tuple[str, ...]]:
    """The groups that matched, what one of them is named after, and the roles in them."""
    groups = {name: found for name, found in match.groupdict().items() if found is not None}
    says = next((Says[name] for name in groups if name in Says.__members__), Says.ROLES)
    return groups, says, roles_in(groups.get("roles", ""))


def _made(
    match: re.Match[str],
    offset: int,
    kind: ClaimKind,
    says: Says,
    about: str,
    roles: tuple[str, ...],
    names: tuple[str, ...] = (),
) -> Claim:
    start, end = offset + match.start(), offset + match.end()
    return Claim(kind=kind, says=says, about=about, roles=roles, names=names, start=start, end=end)


def _is_planned(text: str, end: int) -> bool:
    """Whether it is what the speaker means to say: `I will say I am the Doctor`."""
    return _PLAN.search(text, text.rfind(",", 0, end) + 1, end) is not None


class Estimate(NamedTuple):
    """What is stated of a player, and how probable it is said to be."""

    claim: Claim
    percent: int


def estimates(text: str, players: tuple[str, ...]) -> tuple[Estimate, ...]:
    """The probabilities that the speaker of `text` states, in order, each place of the text once.

    Such as `I am 70% sure that Abel is Mafia`: read by the rules of claims, in earnest, and from known forms alone.
    """
    if "%" not in text and "cent" not in text:
        return ()
    found: list[Estimate] = []
    for passage in passages(mark(text, players).text):
        for sentence in own_words(passage.text):
            matches = [match for pattern in patterns("estimate") for match in pattern.finditer(sentence.text)]
            read = 0
            for match in sorted(matches, key=lambda match: match.start()):
                if match.start() >= read:
                    read = match.end()
                    found.append(_estimate(match, players))
    return tuple(found)


def _estimate(match: re.Match[str], players: tuple[str, ...]) -> Estimate:
    groups, said, roles = _read(match)
    says = Says.ROLE if roles else said
    (about,) = names_in(groups["about"], players)
    kind = ClaimKind.ACCUSATION if says in _AGAINST else ClaimKind.DEFENCE
    claim = _made(match, 0, kind, says, about, roles)
    percent = int(groups["percent"])
    return Estimate(claim, 100 - percent if "not" in groups else percent)
