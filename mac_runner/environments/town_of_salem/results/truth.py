"""What was true of a recorded game: the claims with their verdicts, and how each night went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from mac_runner.environments.town_of_salem.lies import Lies
from mac_runner.environments.town_of_salem.results.cast import Cast
from mac_runner.results import parsed
from mac_runner.types import JsonObject

_BEFORE: Final = "role held before"
_OPPOSITES: Final = (
    {"suspicious", "not suspicious"},
    {"mafia", "not mafia"},
    {"town", "not town"},
    {"mafia", "town"},
    {"evil", "not evil"},
    {"vampire", "not a vampire"},
)


class RecordedClaim(msgspec.Struct, frozen=True):
    """A claim of the record."""

    event: int
    player: str
    channel: str
    about: str
    kind: str
    says: str
    verdict: str
    truth: str = ""
    """What was so, where the speaker was wrong and did not lie."""
    roles: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def judgement(self) -> str:
        """The verdict, and what was so instead: `honest, but wrong: Abel is the Doctor`."""
        return f"{self.verdict}, but wrong: {self.truth}" if self.truth else self.verdict

    def about_as(self, name: str) -> RecordedClaim:
        """The same claim about a player under another name."""
        return msgspec.structs.replace(self, about=name)

    def contradicts(self, other: RecordedClaim) -> bool:
        """Whether another claim of the same speaker, about the same player, says something else instead.

        Two roles contradict each other where no role is in both; a role held before contradicts nothing.
        """
        if (self.player, self.about, self.kind) != (other.player, other.about, other.kind):
            return False
        if _BEFORE in (self.says, other.says):
            return False
        if self.roles and other.roles:
            return not {*self.roles} & {*other.roles}
        return self.kind != "role" and {self.says, other.says} in _OPPOSITES


class _Act(msgspec.Struct, frozen=True):
    act: str
    targets: tuple[str, ...]


class _Deed(_Act, frozen=True):
    player: str
    role: str


class _Change(msgspec.Struct, frozen=True):
    how: str
    players: tuple[str, ...]
    by: str | None
    was: _Act | None
    now: _Act | None


class _Protection(msgspec.Struct, frozen=True):
    how: str
    player: str
    by: str
    strength: str | None = None


class _Mark(msgspec.Struct, frozen=True, rename={"shown_as": "as"}):
    player: str
    mark: str
    shown_as: str | None = None


class _Attack(msgspec.Struct, frozen=True):
    attacker: str
    victim: str
    cause: str
    strength: str
    defence: str | None
    outcome: str


class RecordedNight(msgspec.Struct, frozen=True):
    """A night of the record."""

    day: int
    deeds: tuple[_Deed, ...]
    changes: tuple[_Change, ...]
    protections: tuple[_Protection, ...]
    marks: tuple[_Mark, ...]
    attacks: tuple[_Attack, ...]


class GameTruth:
    """Who was what, what became of the claims of each event, how each night went, and who lied."""

    def __init__(self, record: JsonObject) -> None:
        """Raises RunDirectoryError for a record of another form."""
        self._cast = Cast(record)
        self._lies = Lies(record, self._cast)
        self._claims: dict[int, list[RecordedClaim]] = {}
        for claim in parsed(list[RecordedClaim], record["claims"], "the claims of the record"):
            self._claims.setdefault(claim.event, []).append(claim)
        nights = parsed(list[RecordedNight], record["nights"], "the nights of the record")
        self._nights = {night.day: night for night in nights}

    def opening(self) -> Sequence[str]:
        """The cast."""
        return self._cast.lines()

    def named(self, place: int, text: str) -> str:
        """A text with the role each player then holds behind the name."""
        return self._cast.named(place, text)

    def closing(self) -> Sequence[str]:
        """Who lied how often, and whom they fooled."""
        return self._lies.lines({name: self._cast.name(name) for name in self._lies.speakers})

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


def claimed(claim: RecordedClaim) -> str:
    """What a speaker claims, in words: `claims to be the Sheriff`."""
    about, says, roles = claim.about, claim.says, " or ".join(claim.roles)
    match claim.kind:
        case "role":
            return f"claims to {'have been' if says == 'role held before' else 'be'} the {roles}"
        case "result":
            found = f"one of {roles}" if " or " in roles else f"the {roles}" if roles else _FOUND.get(says, says)
            if says == "visited by":
                found = f"visited by {' and '.join(claim.names) or 'nobody'}"
            return f"claims to know that {about} {'is' if says in _STATES or roles else 'was'} {found}"
        case _:
            return f"says that {about} is the {roles}" if roles else _SAID[says].format(about=about)


def night_lines(night: RecordedNight) -> Iterator[str]:
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
        yield f"{mark.player} was {mark.mark}" if mark.shown_as is None else f"{mark.player} passed for {mark.shown_as}"
    for attack in night.attacks:
        met = "no" if attack.defence == "none" else attack.defence
        strength = attack.strength if met is None else f"{attack.strength} against {met} defence"
        yield f"{attack.attacker} attacked {attack.victim} ({attack.cause}, {strength}): {attack.outcome}"


def _act(act: _Act | None) -> str:
    return "" if act is None else f"{act.act.replace('_', ' ')} {' and '.join(act.targets)}".strip()


def _turned(was: _Act | None, now: _Act | None) -> str:
    """What a deed was and what it became."""
    before, after = _act(was), _act(now)
    if before and after:
        return f", to {after} and not to {before}"
    return f", to {after}" if after else f", and so did not {before}" if before else ""
