"""Probabilities that players state of what another is: `I am 70% sure that Abel is Mafia`.

They are read by the rules of claims: in earnest, and from known forms alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from mac_runner.environments.town_of_salem.claims.attribution import own_words, passages
from mac_runner.environments.town_of_salem.claims.extraction import Claim, ClaimKind
from mac_runner.environments.town_of_salem.claims.vocabulary import NAME, ROLE, mark, names_in, roles_in
from mac_runner.environments.town_of_salem.model.events import Says

_PERCENT = r"(?<![\d.])(?P<percent>100|\d{1,2})(?:\.\d+)?\s?(?:%|percent\b|per cent\b)"
_IS = r"(?:\s+(?:is|being|to be)|'s)(?P<not>\s+not|n't)?"
_WHAT = (
    r"\s+(?:(?:an?|the|with|of|in|part of|a member of)\s+){0,3}"
    rf"(?:(?P<MAFIA>mafia|maf)\b|(?P<EVIL>evil|guilty|scum|bad)\b|(?P<TOWN>town|townie|townsperson)\b"
    rf"|(?P<NOT_EVIL>innocent|good|clean)\b|(?P<roles>{ROLE}))"
)
_SURE = (
    r"(?:\s+(?:sure|certain|confident|convinced|positive|(?:chance|probability|likelihood|likely|confidence)))?"
    r"(?:\s+(?:that|of))?"
)
_AGAINST = frozenset({Says.MAFIA, Says.EVIL})


class Estimate(NamedTuple):
    """What is stated of a player, and how probable it is said to be."""

    claim: Claim
    percent: int


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(
        re.compile(pattern, re.I)
        for pattern in (
            # 70% sure that Abel is Mafia; a 70% chance of Abel being evil.
            rf"{_PERCENT}{_SURE}\s+(?P<about>{NAME}){_IS}{_WHAT}",
            # Abel is 70% Mafia; Abel: 70% likely to be evil.
            rf"(?P<about>{NAME})\s*(?:\bis|:|=|-|\bat)\s*(?:(?:about|around|roughly|at)\s+)?{_PERCENT}"
            rf"(?:\s+(?:likely|certain|sure))?(?:\s+to be)?(?P<not>\s+not)?{_WHAT}",
            # Abel is Mafia (70%); Abel is Mafia, 70% sure.
            rf"(?P<about>{NAME}){_IS}{_WHAT}\s*[(,]\s*(?:(?:about|at|with|I am|I'm)\s+)?{_PERCENT}",
        )
    )


def estimates(text: str, players: tuple[str, ...]) -> tuple[Estimate, ...]:
    """The probabilities that the speaker of `text` states, in order, each place of the text once."""
    if "%" not in text and "cent" not in text:
        return ()
    return tuple(_found(text, players))


def _found(text: str, players: tuple[str, ...]) -> Iterator[Estimate]:
    for passage in passages(mark(text, players).text):
        for sentence in own_words(passage.text):
            matches = [match for pattern in _patterns() for match in pattern.finditer(sentence.text)]
            read = 0
            for match in sorted(matches, key=lambda match: match.start()):
                if match.start() >= read:
                    read = match.end()
                    yield _estimate(match, players)


def _estimate(match: re.Match[str], players: tuple[str, ...]) -> Estimate:
    groups = {name: found for name, found in match.groupdict().items() if found is not None}
    says = next((Says[name] for name in groups if name in Says.__members__), Says.ROLE)
    (about,) = names_in(groups["about"], players)
    percent = int(groups["percent"])
    claim = Claim(
        kind=ClaimKind.ACCUSATION if says in _AGAINST else ClaimKind.DEFENCE,
        says=says,
        about=about,
        roles=roles_in(groups.get("roles", "")),
        start=match.start(),
        end=match.end(),
    )
    return Estimate(claim, 100 - percent if "not" in groups else percent)
