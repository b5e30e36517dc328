"""Who lied in a recorded game, how often, and who acted on it.

A lie is a claim with the verdict `lie`; records of edition 1 have `false` there, which a player may have believed.

A player was fooled when they heard the lie, are of no team with the liar, and then did what it asks for on the same
day. A lie against a player (an accusation, or a result that speaks against them) asks to vote for them or to judge them
guilty. A lie in favour of a player, and one about the liar's own role, ask to judge that player innocent. Other lies
ask for nothing. It does not say why they did so: they may have had other reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from mac_runner.environments.town_of_salem.claims import ClaimKind, Says
from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.results import parsed
from mac_runner.types import JsonObject

HONEST: Final = frozenset({"honest", "true"})
LIES: Final = frozenset({"lie", "false"})
_AGAINST: Final = frozenset({Says.SUSPICIOUS.value, Says.MAFIA.value, Says.VAMPIRE.value})
_IN_FAVOUR: Final = frozenset(
    {Says.NOT_SUSPICIOUS.value, Says.NOT_MAFIA.value, Says.NOT_VAMPIRE.value, Says.TOWN.value}
)
_FOOLED_SHOWN_MAX: Final = 20
_HEADS: Final = ("claims", "honest", "lies", "unclear")


class _Claim(msgspec.Struct, frozen=True):
    event: int
    player: str
    kind: str
    about: str
    says: str
    verdict: str


class _Event(msgspec.Struct, frozen=True):
    audience: list[str] | str
    data: dict[str, Any]
    kind: str = ""
    day: int = 0

    def names(self, key: str) -> list[str]:
        found = self.data.get(key)
        return [str(name) for name in found] if isinstance(found, list | dict) else []


class Lies:
    """The claims of a record counted by their speakers, and who was fooled by whom."""

    def __init__(self, record: JsonObject) -> None:
        """Raises RunDirectoryError for claims or events of another form."""
        self._claims = parsed(list[_Claim], record.get("claims", []), "the claims of the record")
        self._events = parsed(list[_Event], record.get("events", []), "the events of the record")
        self._counts: dict[str, Counter[str]] = {}
        for claim in self._claims:
            self._counts.setdefault(claim.player, Counter())[_verdict(claim)] += 1

    @property
    def speakers(self) -> Sequence[str]:
        """All who claimed anything, in the order of their first claims."""
        return [*self._counts]

    def fooled(self) -> Mapping[str, Counter[str]]:
        """By liar, how many of their lies each player acted on."""
        found: dict[str, Counter[str]] = {}
        teams = [frozenset(event.names("members")) for event in self._events if event.kind == EventKind.TEAM]
        for lie in self._claims:
            if lie.verdict in LIES:
                knowing = frozenset({lie.player}).union(*(team for team in teams if lie.player in team))
                heard = self._events[lie.event].audience
                acted = dict.fromkeys(self._acted_on(lie))
                victims = [name for name in acted if name not in knowing and (heard == "all" or name in heard)]
                found.setdefault(lie.player, Counter()).update(victims)
        return found

    def _acted_on(self, lie: _Claim) -> Iterator[str]:
        """The players who did what a lie asks for, later on its day."""
        is_against, is_in_favour = _aims(lie)
        accused = ""
        for event in self._events[lie.event + 1 :]:
            if event.day != self._events[lie.event].day:
                return
            match event.kind:
                case EventKind.VOTE if is_against and event.data.get("target") == lie.about:
                    yield str(event.data.get("player"))
                case EventKind.TRIAL:
                    accused = str(event.data.get("accused"))
                case EventKind.BALLOTS if accused == lie.about and (is_against or is_in_favour):
                    yield from event.names("guilty" if is_against else "innocent")
                case _:
                    pass

    def lines(self, names: Mapping[str, str]) -> Sequence[str]:
        """A table of all who claimed anything, the greatest liars first; `names` are the players as they are shown."""
        if not self._counts:
            return ()
        is_earlier = any(claim.verdict in ("true", "false", "undecidable") for claim in self._claims)
        heads = ("claims", "true", "false", "undecided") if is_earlier else _HEADS
        title = "Who said what was false, and who acted on it" if is_earlier else "Who lied, and whom they fooled"
        fooled = self.fooled()
        order = sorted(self._counts, key=lambda name: (-self._counts[name]["lie"], self.speakers.index(name)))
        width = max(len(names[name]) for name in order)
        rows = [
            f"{names[name]:<{width}}  {_cells(self._counts[name], heads)}  {_victims(fooled.get(name))}".rstrip()
            for name in order
        ]
        head = f"{'':<{width}}  {'  '.join(heads)}  {'acted on by' if is_earlier else 'fooled'}"
        return (title, head, *rows)


def _verdict(claim: _Claim) -> str:
    return "honest" if claim.verdict in HONEST else "lie" if claim.verdict in LIES else "unclear"


def _aims(lie: _Claim) -> tuple[bool, bool]:
    """Whether a lie is against the player it is about, and whether it is in their favour."""
    match lie.kind:
        case ClaimKind.ACCUSATION:
            return True, False
        case ClaimKind.DEFENCE | ClaimKind.ROLE:
            return False, True
        case _:
            return lie.says in _AGAINST, lie.says in _IN_FAVOUR


def _cells(counts: Counter[str], heads: Sequence[str]) -> str:
    found = (counts.total(), counts["honest"], counts["lie"], counts["unclear"])
    return "  ".join(f"{count:>{len(head)}}" for count, head in zip(found, heads, strict=True))


def _victims(fooled: Counter[str] | None) -> str:
    if not fooled:
        return ""
    named = sorted(fooled.items(), key=lambda item: (-item[1], item[0]))[:_FOOLED_SHOWN_MAX]
    return ", ".join(name if count == 1 else f"{name} {count} times" for name, count in named)
