"""The players, the choice or the channel that a value of a reply names.

`Names` takes them as they are written. `LooseNames` takes them as they may have been meant, if that is exactly one.
Tried in this order: the name without what decorates it (`**Abel**`, `[Abel]`, `Abel (seat 1)`, `Abel's`), the name
behind `I vote for` or before `because …`, and a misspelt name. A misspelt name is one word, at most one letter away
from the name of one player, or two letters if the name has seven or more, and further than that from all others, dead
or alive. A letter added, left out or changed, and two letters swapped, count as one. What names two players, or a
player and a doubt, is never guessed: the correction names those it may mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from mac_runner.environments.markup import compatible, defuse
from mac_runner.environments.town_of_salem.model.state import GameState
from mac_runner.environments.town_of_salem.rules.acts import SECOND, ActSpec, IllegalActError
from mac_runner.environments.town_of_salem.rules.lobbies import NAMES

EVERYBODY: Final = frozenset(
    {"", "all", "anyone", "everybody", "everyone", "group", "none", "null", "players", "public", "town", "village"}
)
"""What names no single player but all of them."""
VALUE_CHARS_MAX: Final = 200
"""A longer value is no name."""
_NEAR_CHARS_MIN: Final = 4
_FAR_CHARS_MIN: Final = 7
_CHOICE_CHARS_MIN: Final = 5

_AROUND: Final = " \t\r\n*_`~#\"'“”‘’«»‹›„.,;:!?-–—|/\\[](){}<>@=+•$"
_INNER_TAG: Final = re.compile(r"<[^<>]*>")
_REMARK: Final = re.compile(r"[(\[{]([^()\[\]{}]*)[)\]}]")
_BEFORE: Final = re.compile(
    r"^(?:(?:i|i'll|i’ll|my|the|we|should|will|would|want|like|now|hereby|to|choose|cast|am|is|be)\s+)*"
    r"(?:(?:vote|voting|ballot|verdict|bid|target|choice|answer|name|seat\s+\d+|player)\b[\s:=\-]*"
    r"(?:(?:for|against|on|is|the|player)\s+)*|(?:for|against|to|on)\s+(?:player\s+)?)",
    re.IGNORECASE,
)
_REASON: Final = re.compile(r"[\s,.;\-–—]*\b(?:because|since|due to|as (?:he|she|they)|for being)\b.*$", re.I | re.S)
_BETWEEN: Final = re.compile(r"\s*(?:,\s*(?:and|then)\b|[,;/&+|\n]|->|→|\band\b|\bwith\b)\s*", re.IGNORECASE)


class Names:
    """Reads names as they are written; raises IllegalActError with the reason where there is no such player."""

    def __init__(self, state: GameState) -> None:
        self._state = state
        self._seats = {player.name.casefold(): player.seat for player in state.players}

    def __contains__(self, value: str) -> bool:
        return value.strip().casefold() in self._seats

    def seats(self, value: str, spec: ActSpec, remark: str = "") -> tuple[int, ...]:
        """The one or two players that an act names; a `remark` beside one may name no other."""
        if SECOND not in spec.slots:
            return (self._seat(value, spec, remark),)
        return tuple([self._seat(name, spec) for name in self._two(value, spec)])

    def choice(self, value: str, spec: ActSpec) -> str:
        """The choice that a value names; the value itself where it is none of them."""
        return value.casefold()

    def channel(self, value: str, spec: ActSpec) -> str:
        """The channel that a value names."""
        return value.strip().casefold()

    def _seat(self, value: str, spec: ActSpec, remark: str = "") -> int:
        seat = self._seats.get(value.strip().strip("\"'.").casefold())
        if seat is not None:
            return seat
        if not value.strip():
            raise IllegalActError(f"<{spec.verb}> names nobody{self._candidates(spec)}")
        shown = repr(defuse(value)[:40])
        raise IllegalActError(f"<{spec.verb}> names {shown}, who is not a player{self._candidates(spec)}")

    def _two(self, value: str, spec: ActSpec) -> Sequence[str]:
        return value.partition(",")[::2]

    def _candidates(self, spec: ActSpec) -> str:
        """Whom an act may name, for a correction."""
        return ""


class LooseNames(Names):
    """Reads names as players may have meant them; raises IllegalActError with the reason where that is unclear."""

    def __init__(self, state: GameState, seat: int) -> None:
        super().__init__(state)
        self._player = state.players[seat]
        self._mention = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, self._seats)) + r")(?!\w)", re.IGNORECASE)

    def _mentioned(self, text: str) -> frozenset[int]:
        """The players that a text names in their right spelling."""
        # A letter may match another one without being it: to a pattern, `İ` is an `i`.
        found = (self._seats.get(name.casefold()) for name in self._mention.findall(text))
        return frozenset(seat for seat in found if seat is not None)

    def _seat(self, value: str, spec: ActSpec, remark: str = "") -> int:
        shown = repr(defuse(value)[:40])
        named = self._mentioned(value) | self._mentioned(remark)
        if len(named) > 1:
            names = " and ".join(self._state.players[seat].name for seat in sorted(named))
            raise IllegalActError(f"<{spec.verb}> names {names}; name one player in it, and nothing else")
        for text in _undecorated(value):
            if (seat := self._seats.get(text.casefold())) is not None:
                return seat
        word = bare(value)
        near = [] if named else near_to(word, tuple(self._seats), _reach, but=_OTHER_NAMES - self._seats.keys())
        if len(near) == 1:
            return self._seats[near[0]]
        if near:
            names = " or ".join(self._state.players[self._seats[name]].name for name in near)
            raise IllegalActError(f"<{spec.verb}> names {shown}, which may be {names}; write the name in full")
        if named:
            raise IllegalActError(f"<{spec.verb}> says {shown}; give the player's name and nothing else")
        return super()._seat(value, spec)

    def _two(self, value: str, spec: ActSpec) -> Sequence[str]:
        parts = [part for part in _BETWEEN.split(_INNER_TAG.sub(" ", value).strip(_AROUND)) if part.strip(_AROUND)]
        if len(parts) != 2:
            raise IllegalActError(f"<{spec.verb}> must name two players")
        return parts

    def choice(self, value: str, spec: ActSpec) -> str:
        """The choice that a value names; the value itself where it is none of them."""
        offer = spec.offer(self._state, self._player)
        choices = () if offer is None else offer.choices
        named = {choice for choice in choices if re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", value, re.IGNORECASE)}
        if len(named) > 1:
            raise IllegalActError(f"<{spec.verb}> names {' and '.join(sorted(named))}; name one")
        # A minus is not a mark around a number.
        for text in () if re.search(r"[-–−]\s*\d", value) else _undecorated(value):
            if text.casefold() in choices:
                return text.casefold()
        near = near_to(bare(value), choices, lambda choice: int(len(choice) >= _CHOICE_CHARS_MIN))
        return near[0] if len(near) == 1 else value.strip().casefold()

    def channel(self, value: str, spec: ActSpec) -> str:
        """The channel that a value names; by day `public` and its like say what is so without them."""
        offer = spec.offer(self._state, self._player)
        name = re.sub(r"[\s_-]*(?:chat|channel)$", "", value.strip(_AROUND).casefold())
        return "" if name in EVERYBODY and (offer is None or not offer.choices) else name

    def _candidates(self, spec: ActSpec) -> str:
        offer = spec.offer(self._state, self._player)
        names = [] if offer is None else [self._state.players[seat].name for seat in offer.targets]
        return f"; name one of: {', '.join(names)}" if names else ""


_OTHER_NAMES: Final = frozenset(name.casefold() for name in NAMES)
"""The name of a player who is not in the game is none that is misspelt."""


def _reach(name: str) -> int:
    """How many letters away a misspelling of a name may be."""
    return 0 if len(name) < _NEAR_CHARS_MIN else 1 if len(name) < _FAR_CHARS_MIN else 2


def near_to(
    word: str, known: Sequence[str], reach: Callable[[str], int], *, but: Collection[str] = frozenset()
) -> list[str]:
    """The known words of which `word` may be a misspelling; none where it is not a word by itself."""
    folded = word.casefold()
    if not folded.isalpha() or len(folded) > VALUE_CHARS_MAX or folded in but:
        return []
    return [name for name, distance in _distances(folded, tuple(known)).items() if distance <= reach(name)]


@lru_cache(maxsize=1024)
def _distances(word: str, known: tuple[str, ...]) -> Mapping[str, int]:
    """How many letters each known word is away."""
    # Loaded by the first misspelling: most games have none.
    from rapidfuzz.distance import OSA

    return {name: OSA.distance(word, name.casefold()) for name in known}


def bare(value: str) -> str:
    """A value without marks, remarks in brackets and a genitive's ending."""
    text = _INNER_TAG.sub(" ", compatible(value[:VALUE_CHARS_MAX]))
    without = _REMARK.sub(" ", text).strip(_AROUND)
    return re.sub(r"['’]s?$", "", without or text.strip(_AROUND)).strip(_AROUND)


def _undecorated(value: str) -> Iterable[str]:
    """The value, less and less of it, down to what may be a name or a choice."""
    if len(value) > VALUE_CHARS_MAX:
        return
    plain = bare(value)
    yield plain
    behind = _BEFORE.sub("", plain, count=1).strip(_AROUND)
    yield behind
    yield bare(_REASON.sub("", behind))
