"""What was true of a recorded game: the claims with their verdicts, how each night went, and who lied to whom.

A lie to all speaks for or against the player it is about: an accusation, `suspicious` or a role outside the Town
against them, a defence, `not suspicious` or a role of the Town for them. So does one about the liar's own role. Other
lies do neither. A player was fooled by a lie whom `GameRecord.followers` has, once for each lie. That says what
followed the lie, not why: a player may have had other reasons.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mac_runner.environments.town_of_salem.record import (
    Action,
    Claim,
    Deed,
    GameRecord,
    Night,
    Verdict,
    read_record,
    role_name,
)
from mac_runner.types import JsonObject

_QUOTED: Final = re.compile("(“[^”]*”)")
"""Words of players; they hold no other curly quotes."""


class GameTruth:
    """Who was what, what became of the claims of each event, how each night went, and who lied."""

    def __init__(self, record: JsonObject) -> None:
        """Raises RunDirectoryError for a record of another form."""
        self._game = read_record(record)
        self._claims: dict[int, list[Claim]] = {}
        for claim in self._game.claims:
            self._claims.setdefault(claim.event, []).append(claim)
        self._nights = {night.day: night for night in self._game.nights}
        names = "|".join(sorted((re.escape(member.name) for member in self._game.cast), key=len, reverse=True))
        # A name that has its role behind it already is left alone.
        self._name = re.compile(rf"(?<!\w)({names})(?!\w)(?! \()") if names else None

    def opening(self) -> Sequence[str]:
        """The cast as it was dealt, with who played each part."""
        lines = [
            f"{member.name:<12} {role_name(member.role):<24} {member.definition} (model {member.model})"
            f"{'' if member.target is None else f'  target: {member.target}'}"
            for member in self._game.cast
        ]
        return ("The cast", *lines) if lines else ()

    def named(self, place: int, text: str) -> str:
        """A text with the role each player then holds behind the name; players' own words stay as they are."""
        if self._name is None:
            return text
        name = self._name
        return "".join(
            part if part.startswith("“") else name.sub(lambda match: self._with_role(match[1], place + 1), part)
            for part in _QUOTED.split(text)
        )

    def _with_role(self, name: str, place: int) -> str:
        """`Abel (Sheriff)`."""
        role = self._game.role_at(name, place)
        return f"{name} ({role})" if role else name

    def closing(self) -> Sequence[str]:
        """Who lied how often, and whom they fooled."""
        end = len(self._game.events)
        return _liars(self._game, {claim.player: self._with_role(claim.player, end) for claim in self._game.claims})

    def before(self, event: JsonObject) -> Sequence[str]:
        """The night that an event of the morning after follows."""
        day = event.get("day")
        if not isinstance(day, int) or str(event.get("when")).startswith("Night"):
            return ()
        night = self._nights.pop(day - 1, None)
        return () if night is None else (f"Night {night.day}, in truth", *night_lines(night))

    def after(self, place: int) -> Iterator[str]:
        """Each claim of the event at `place`: `claims to be the Sheriff: lie`."""
        for claim in self._claims.get(place, []):
            who = "" if claim.channel in ("public", "whisper") else f"{claim.player} "
            yield f"{who}{claimed(claim)}: {claim.judgement}"


_FOOLED_SHOWN_MAX: Final = 20
_HEADS: Final = ("claims", "honest", "lies", "unclear")


def _liars(game: GameRecord, names: Mapping[str, str]) -> Sequence[str]:
    """A table of all who claimed anything, the greatest liars first; `names` are the players as they are shown."""
    if not names:
        return ()
    counts = {name: Counter[str]() for name in names}
    fooled = {name: Counter[str]() for name in names}
    for claim in game.claims:
        counts[claim.player][claim.verdict] += 1
        if claim.verdict is Verdict.LIE and claim.channel == "public" and claim.leaning:
            fooled[claim.player].update({*(game.followers(claim) or ())})
    width = max(map(len, names.values()))
    lines = ["Who lied, and whom they fooled", f"{'':<{width}}  {'  '.join(_HEADS)}  fooled"]
    for name in sorted(counts, key=lambda name: -counts[name][Verdict.LIE]):
        found = (counts[name].total(), *(counts[name][verdict] for verdict in Verdict))
        cells = "  ".join(f"{count:>{len(head)}}" for count, head in zip(found, _HEADS, strict=True))
        victims = sorted(fooled[name].items(), key=lambda item: (-item[1], item[0]))[:_FOOLED_SHOWN_MAX]
        named = ", ".join(victim if count == 1 else f"{victim} {count} times" for victim, count in victims)
        lines.append(f"{names[name]:<{width}}  {cells}  {named}".rstrip())
    return lines


def game_truth(record: JsonObject) -> GameTruth | None:
    """The truth of a record that holds its claims and nights."""
    return GameTruth(record) if {"claims", "nights"} <= record.keys() else None


_FOUND: Final = {"mafia": "of the Mafia", "vampire": "a Vampire", "visited by the mafia": "visited by the Mafia"}
_SAID: Final = {
    "mafia": "says that {about} is of the Mafia",
    "not mafia": "says that {about} is not of the Mafia",
    "town": "says that {about} is of the Town",
    "not town": "says that {about} is not of the Town",
    "evil": "speaks against {about}",
    "not evil": "stands up for {about}",
}
_STATES: Final = frozenset({"suspicious", "not suspicious", "mafia", "vampire", "not a vampire"})


def claimed(claim: Claim, about: str = "") -> str:
    """What a speaker claims, in words: `claims to be the Sheriff`; `about` is another name of whom it is about."""
    about, says, roles = about or claim.about, claim.says, " or ".join(claim.roles)
    match claim.kind:
        case "role":
            return f"claims to {'have been' if says == 'role held before' else 'be'} the {roles}"
        case "result":
            found = f"one of {roles}" if " or " in roles else f"the {roles}" if roles else _FOUND.get(says, says)
            if says == "visited by":
                found = f"visited by {' and '.join(claim.names or ()) or 'nobody'}"
            return f"claims to know that {about} {'is' if says in _STATES or roles else 'was'} {found}"
        case _:
            return f"says that {about} is the {roles}" if roles else _SAID[says].format(about=about)


def night_lines(night: Night) -> Iterator[str]:
    """A night step by step: what was chosen, what came between, who was attacked, and the result."""
    for deed in night.deeds:
        yield f"{deed.player} ({deed.role}) chose to {_act(deed)}"
    for change in night.changes:
        by = "" if change.by is None else f" by {change.by}"
        yield f"{' and '.join(change.players)}: {change.how}{by}{_turned(change.was, change.now)}"
    for kept in night.protections:
        is_own = kept.how == "defended"
        yield f"{kept.player} had a {kept.strength} defence" if is_own else f"{kept.player} was {kept.how} by {kept.by}"
    for mark in night.marks:
        yield f"{mark.player} passed for {mark.shown_as}" if mark.shown_as else f"{mark.player} was {mark.mark}"
    for attack in night.attacks:
        met = "no" if attack.defence == "none" else attack.defence
        strength = attack.strength if met is None else f"{attack.strength} against {met} defence"
        yield f"{attack.attacker} attacked {attack.victim} ({attack.cause}, {strength}): {attack.outcome}"


def _act(act: Action | Deed | None) -> str:
    return "" if act is None else f"{act.act.replace('_', ' ')} {' and '.join(act.targets)}".strip()


def _turned(was: Action | Deed | None, now: Action | Deed | None) -> str:
    """What a deed was and what it became."""
    before, after = _act(was), _act(now)
    if before and after:
        return f", to {after} and not to {before}"
    return f", to {after}" if after else f", and so did not {before}" if before else ""
