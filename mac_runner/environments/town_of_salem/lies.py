"""Who lied in a recorded game, how often, and who acted on it.

A lie to all speaks for or against the player it is about: an accusation, `suspicious` or a role outside the Town
against them, a defence, `not suspicious` or a role of the Town for them. So does one about the liar's own role. Other
lies do neither.
A player was fooled by it when they are not of the liar's team and did later that day what it asks for: they voted for
the player that it is against or judged them guilty, or judged the player that it is for innocent. Each lie counts once
for each of them. That says what followed the lie, not why: a player may have had other reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mac_runner.environments.town_of_salem.model.events import EventKind
from mac_runner.environments.town_of_salem.model.state import TEAMS, Faction
from mac_runner.environments.town_of_salem.record import Claim, GameRecord

_FOOLED_SHOWN_MAX: Final = 20
_HEADS: Final = ("claims", "honest", "lies", "unclear")


class Lies:
    """The claims of a record counted by their speakers, and who was fooled by whom."""

    def __init__(self, game: GameRecord) -> None:
        self._game = game
        self._counts: dict[str, Counter[str]] = {}
        for claim in game.claims:
            self._counts.setdefault(claim.player, Counter())[claim.verdict] += 1

    @property
    def speakers(self) -> Sequence[str]:
        """All who claimed anything, in the order of their first claims."""
        return [*self._counts]

    def fooled(self) -> Mapping[str, Counter[str]]:
        """By liar, how many of their lies each player acted on."""
        found: dict[str, Counter[str]] = {}
        for lie in self._game.claims:
            if lie.verdict == "lie" and lie.channel == "public" and lie.leaning:
                acted = set(self._acted_on(lie, is_against=lie.leaning < 0))
                found.setdefault(lie.player, Counter()).update(acted)
        return found

    def _acted_on(self, lie: Claim, *, is_against: bool) -> Iterator[str]:
        """The players of no team with the liar who did what a lie asks for, later on its day."""
        accused = ""
        team = self._team(lie.player, lie.event)
        events = self._game.events
        for place, event in enumerate(events[lie.event + 1 :], lie.event + 1):
            if event.day != events[lie.event].day:
                return
            acted: list[str] = []
            match event.kind:
                case EventKind.VOTE if is_against and event.said("target") == lie.about:
                    acted = [event.said("player")]
                case EventKind.TRIAL:
                    accused = event.said("accused")
                case EventKind.BALLOTS if accused == lie.about:
                    acted = event.names("guilty" if is_against else "innocent")
                case _:
                    pass
            yield from (
                name for name in acted if name != lie.player and (team is None or self._team(name, place) is not team)
            )

    def _team(self, name: str, place: int) -> Faction | None:
        """The team that a player is of at an event; None for none."""
        faction = self._game.faction_at(name, place)
        return faction if faction in TEAMS else None

    def lines(self, names: Mapping[str, str]) -> Sequence[str]:
        """A table of all who claimed anything, the greatest liars first; `names` are the players as they are shown."""
        if not self._counts:
            return ()
        fooled = self.fooled()
        order = sorted(self._counts, key=lambda name: (-self._counts[name]["lie"], self.speakers.index(name)))
        width = max(len(names[name]) for name in order)
        rows = [
            f"{names[name]:<{width}}  {_cells(self._counts[name])}  {_victims(fooled.get(name))}".rstrip()
            for name in order
        ]
        return ("Who lied, and whom they fooled", f"{'':<{width}}  {'  '.join(_HEADS)}  fooled", *rows)


def _cells(counts: Counter[str]) -> str:
    found = (counts.total(), counts["honest"], counts["lie"], counts["unclear"])
    return "  ".join(f"{count:>{len(head)}}" for count, head in zip(found, _HEADS, strict=True))


def _victims(fooled: Counter[str] | None) -> str:
    if not fooled:
        return ""
    named = sorted(fooled.items(), key=lambda item: (-item[1], item[0]))[:_FOOLED_SHOWN_MAX]
    return ", ".join(name if count == 1 else f"{name} {count} times" for name, count in named)
