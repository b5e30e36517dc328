"""From words to claims.

A claim is taken only where its speaker makes it in earnest: not from a question, a condition, a quotation, the
reported words of somebody else, a negated sentence (`nobody said that Bob is evil`), or a plan to say something
(`I will claim Doctor`). A plain denial of guilt is a defence (`Bob is not mafia`). A sentence these rules do not know
holds no claim: they would rather miss one than make one up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from mac_runner.environments.town_of_salem.speech.claim import Claim, ClaimKind, Says
from mac_runner.environments.town_of_salem.speech.patterns import patterns
from mac_runner.environments.town_of_salem.speech.voice import Sentence, own_words
from mac_runner.environments.town_of_salem.speech.words import HAS_NAME, HAS_ROLE, OF_TOWN, Marked, mark, roles_in

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
# A name behind one of these is no subject: `the house of Bob is …`.
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


@lru_cache(maxsize=8192)
def extract(text: str, players: tuple[str, ...]) -> tuple[Claim, ...]:
    """The claims made in `text` by whoever says it, in the order in which they stand; `players` are the names known."""
    marked = mark(text, players)
    sentences = own_words(marked.text)
    roles = [claim for sentence in sentences for claim in _roles(sentence)]
    taken: list[Claim] = []
    _take(taken, _results("".join(sentence.text for sentence in sentences), marked))
    if any("Sheriff" in claim.roles for claim in roles):
        _take(taken, (claim for sentence in sentences for claim in _verdicts(sentence, marked)))
    for sentence in sentences:
        _take(taken, _oneself(sentence))
        _take(taken, _others(sentence, marked))
    found = sorted((*roles, *taken), key=lambda claim: (claim.start, claim.end))
    return tuple(replace(claim, start=marked.place(claim.start), end=marked.place(claim.end)) for claim in found)


def _take(taken: list[Claim], claims: Iterable[Claim]) -> None:
    """Add those of `claims` that are not about the same player and in the same words as one taken before."""
    for claim in claims:
        if not any(claim.about == old.about and claim.start < old.end and old.start < claim.end for old in taken):
            taken.append(claim)


def _roles(sentence: Sentence) -> Iterator[Claim]:
    text, ends = sentence.text, 0
    if not HAS_ROLE.search(text):
        return
    matches = [match for pattern in patterns().roles for match in pattern.finditer(text)]
    for match in sorted(matches, key=lambda match: match.start("roles")):
        is_counted = match.start("roles") < ends
        if is_counted or _is_denied(text, match.start()) or _is_planned(text, match.start("roles")):
            continue
        ends = match.end("roles")
        yield Claim(
            kind=ClaimKind.ROLE,
            says=Says.WAS_ROLE if match.groupdict().get("WAS_ROLE") else Says.ROLE,
            roles=roles_in(match["roles"]),
            start=sentence.start + match.start(),
            end=sentence.start + ends,
        )


def _results(text: str, marked: Marked) -> Iterator[Claim]:
    tried = patterns().results if HAS_NAME.search(text) else ()
    for pattern in (patterns().befallen, *tried):
        for match in pattern.finditer(text):
            start = max(text.rfind(end, 0, match.start()) for end in _SENTENCE_ENDS) + 1
            if not _is_denied(text[start : match.start()], match.start() - start):
                yield from _result(match, 0, marked)


def _verdicts(sentence: Sentence, marked: Marked) -> Iterator[Claim]:
    for match in patterns().verdict.finditer(sentence.text):
        before = sentence.text[: match.start()]
        if not _is_denied(before, match.start()) and not _NO_SUBJECT.search(before):
            yield from _result(match, sentence.start, marked)


def _result(match: re.Match[str], offset: int, marked: Marked) -> Iterator[Claim]:
    groups = _groups(match)
    says, roles = _said(groups), roles_in(groups.get("roles", ""))
    if says is Says.ROLES and roles == ("Vampire",):
        says, roles = Says.VAMPIRE, ()
    found = min(match.start(name) for name in groups if name in (says.name, "roles", "names"))
    if "about" in groups and _NEGATOR.search(match.string, match.end("about"), found):
        if says not in _NEGATED:
            return
        says = _NEGATED[says]
    for about in marked.names(groups.get("about", "")) or ("",):
        yield Claim(
            kind=ClaimKind.RESULT,
            says=says,
            about=about,
            roles=roles,
            names=marked.names(groups.get("names", "")),
            start=offset + match.start(),
            end=offset + match.end(),
        )


def _oneself(sentence: Sentence) -> Iterator[Claim]:
    for match in patterns().oneself.finditer(sentence.text):
        if not _is_denied(sentence.text, match.start()) and not _is_planned(sentence.text, match.start()):
            yield _opinion(match, "", sentence.start)


def _others(sentence: Sentence, marked: Marked) -> Iterator[Claim]:
    tried = patterns().others if HAS_NAME.search(sentence.said) else ()
    for pattern in tried:
        for match in pattern.finditer(sentence.text):
            if not _is_denied(sentence.text, match.start()):
                for about in _meant(match, sentence, marked):
                    yield _opinion(match, about, sentence.start)


def _meant(match: re.Match[str], sentence: Sentence, marked: Marked) -> tuple[str, ...]:
    """The players a sentence is about; a pronoun stands for the one player named before it, if there is one only."""
    before = sentence.said[: match.start()]
    if match["about"].lower() in _PRONOUNS:
        named = marked.names(before)
        return named if len(named) == 1 else ()
    named = marked.names(match["about"])
    is_subject = match.start("about") == match.start()
    # `I vote for Abel, and Bob is innocent`: of the two only Bob is.
    return named[1:][-1:] if is_subject and _NO_SUBJECT.search(before) else named


def _opinion(match: re.Match[str], about: str, offset: int) -> Claim:
    groups = _groups(match)
    said, roles = _said(groups), roles_in(groups.get("roles", ""))
    says = Says.ROLE if roles else _DENIED[said] if "not" in groups else said
    is_against = not OF_TOWN.issuperset(roles) if roles else says in _AGAINST
    return Claim(
        kind=ClaimKind.ACCUSATION if is_against else ClaimKind.DEFENCE,
        says=says,
        about=about,
        roles=roles,
        start=offset + match.start(),
        end=offset + match.end(),
    )


def _groups(match: re.Match[str]) -> dict[str, str]:
    return {name: found for name, found in match.groupdict().items() if found is not None}


def _said(groups: Mapping[str, str]) -> Says:
    """What the group that matched is named after."""
    return next((Says[name] for name in groups if name in Says.__members__), Says.ROLES)


def _is_denied(text: str, start: int) -> bool:
    """Whether what stands before `start` in the same part of the sentence denies it."""
    ends = [boundary.end() for boundary in _BOUNDARY.finditer(text, 0, start)]
    before = text[ends[-1] if ends else 0 : start]
    return _NEGATOR.search(_NO_DOUBT.sub("", before)) is not None


def _is_planned(text: str, end: int) -> bool:
    """Whether it is what the speaker means to say: `I will say I am the Doctor`."""
    return _PLAN.search(text, text.rfind(",", 0, end) + 1, end) is not None
