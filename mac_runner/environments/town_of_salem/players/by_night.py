"""What the heuristic player does at night: one function for each ability's verb, in one table.

A seat with several abilities uses the first in the table that has something to do; a new ability is a new line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.knowledge import Choice
from mac_runner.environments.town_of_salem.lobbies import roles_in_play
from mac_runner.environments.town_of_salem.players.findings import is_town_role
from mac_runner.environments.town_of_salem.players.prey import agreed_prey, prey
from mac_runner.environments.town_of_salem.players.seat import Seat
from mac_runner.environments.town_of_salem.players.statements import claim
from mac_runner.environments.town_of_salem.players.talk import cover
from mac_runner.environments.town_of_salem.players.writing import write

_DEATH_NOTE = "Nobody is safe in this town."
# A bullet cannot be taken back: it takes more than a vote does.
_SHOOT_FROM = 2.5
_STRIKES_BACK = "Serial Killer"
_IGNITE_FROM = 3
_FEW_LIVING = 7
# How often a Veteran of whom nobody knows goes on alert: the Town's own visitors would be shot.
_ALERT_UNASKED = 0.25


class Aim(NamedTuple):
    """What to do with an ability."""

    target: str = ""
    second: str = ""
    text: str = ""


def act_at_night(seat: Seat) -> str:
    """Use a night ability, or wait."""
    for verb, decide in DEEDS.items():
        choice = seat.choices.get(verb)
        aim = decide(seat, choice) if choice is not None else None
        if aim is not None:
            note = "" if seat.view.death_note or "death_note" not in seat.choices else _DEATH_NOTE
            thought = f"Tonight I choose {aim.target}." if aim.target else "Tonight is the night for it."
            return write(verb, **aim._asdict(), thought=thought, will=seat.will(), death_note=note)
    return write("wait", thought="There is nothing worth doing tonight.", will=seat.will())


def _execute(seat: Seat, choice: Choice) -> Aim | None:
    jailed = [str(event.data["prisoner"]) for event in seat.view.private if event.kind is EventKind.JAILING]
    doubt = seat.beliefs.suspicion.get(jailed[-1], 0.0) if jailed else 0.0
    return Aim() if doubt >= seat.enough else None


def _kill(seat: Seat, choice: Choice) -> Aim:
    """Whom the team agreed upon, if it did."""
    agreed = agreed_prey(seat)
    return Aim(agreed if agreed in choice.targets and agreed is not None else prey(seat, choice.targets))


def _strike(seat: Seat, choice: Choice) -> Aim:
    """One who kills alone keeps away from those whom the Town watches over."""
    watched = seat.worth_protecting(choice.targets)
    return Aim(prey(seat, [name for name in choice.targets if name not in watched] or choice.targets))


def _shoot(seat: Seat, choice: Choice) -> Aim | None:
    """Only who is as good as proven evil: the price of a mistake is the gun and one's life."""
    name = _worst(seat, choice)
    return Aim(name) if seat.beliefs.suspicion.get(name, 0.0) >= _SHOOT_FROM else None


def _protect(seat: Seat, choice: Choice) -> Aim:
    """Those the rather whom killers would rather have dead."""
    return Aim(_charge(seat, choice.targets) or seat.pick(_others(seat, choice)))


def _charge(seat: Seat, names: Sequence[str]) -> str | None:
    worth = seat.worth_protecting(names)
    weights = [seat.weight_of(seat.beliefs.claims.get(name)) for name in worth]
    return seat.draw(worth, weights) if worth else None


def _ask(seat: Seat, choice: Choice) -> Aim:
    """Somebody one knows nothing of yet."""
    asked = {str(event.data["about"]) for event in seat.view.private if event.kind is EventKind.RESULT}
    others = _others(seat, choice)
    return Aim(seat.pick([name for name in others if name not in asked] or others))


def _block(seat: Seat, choice: Choice) -> Aim:
    """The Town keeps the worst busy; its enemies keep those busy who would protect or find out."""
    if not seat.is_town:
        return Aim(prey(seat, choice.targets))
    if not _may_still_live(seat, _STRIKES_BACK):
        return Aim(_worst(seat, choice))
    # Who is as good as caught is left to the Town: it may be the one who kills those who block him.
    others = _others(seat, choice)
    doubtful = [name for name in others if 0.0 <= seat.beliefs.suspicion.get(name, 0.0) < seat.enough]
    return Aim(seat.pick(doubtful or others))


def _may_still_live(seat: Seat, role: str) -> bool:
    """Whether a role of which there is one at most may be among the living."""
    is_in_play = any(role == other.name for other in roles_in_play(seat.view.lobby))
    return is_in_play and role not in seat.view.graveyard.values()


def _silence(seat: Seat, choice: Choice) -> Aim:
    return Aim(seat.pick(seat.worth_protecting(choice.targets) or _others(seat, choice)))


def _bury(seat: Seat, choice: Choice) -> Aim:
    """Whoever is to die tonight."""
    agreed = agreed_prey(seat)
    target = agreed if agreed in choice.targets else prey(seat, choice.targets)
    return Aim(target or "", text=claim(cover(seat), dead=True) if choice.verb == "forge" else "")


def _anybody(seat: Seat, choice: Choice) -> Aim:
    return Aim(seat.pick(_others(seat, choice)))


def _disguise(seat: Seat, choice: Choice) -> Aim:
    """Pass for somebody the Town thinks well of."""
    return Aim(seat.pick(choice.targets), min(choice.seconds, key=lambda name: seat.beliefs.suspicion.get(name, 0.0)))


def _swap(seat: Seat, choice: Choice) -> Aim | None:
    """Put the most suspicious in the way of what is meant for those who know."""
    worst = _worst(seat, choice)
    worth = [name for name in seat.worth_protecting(choice.targets) if name != worst]
    return Aim(seat.pick(worth), worst) if worth else None


def _raise(seat: Seat, choice: Choice) -> Aim | None:
    """Let the dead who find things out look at the worst of the living; nobody else is worth the risk."""
    finders = [name for name in choice.targets if seat.view.graveyard.get(name) in ("Sheriff", "Investigator")]
    guards = [name for name in choice.targets if seat.view.graveyard.get(name) in ("Doctor", "Bodyguard")]
    worth = seat.worth_protecting(choice.seconds)
    if finders:
        return Aim(seat.pick(finders), max(choice.seconds, key=lambda name: seat.beliefs.suspicion.get(name, 0.0)))
    return Aim(seat.pick(guards), seat.pick(worth)) if guards and worth else None


def _remember(seat: Seat, choice: Choice) -> Aim:
    """To be of the Town while the Town has the most living is the safest."""
    town = [name for name in choice.targets if is_town_role(seat.view.graveyard[name])]
    return Aim(seat.pick(town or choice.targets))


def _control(seat: Seat, choice: Choice) -> Aim:
    """Turn anybody on those the Town needs most."""
    victim = prey(seat, choice.seconds)
    return Aim(seat.pick([name for name in _others(seat, choice) if name != victim] or choice.targets), victim)


def _ignite(seat: Seat, choice: Choice) -> Aim | None:
    doused = seat.have_doused & set(seat.view.living)
    is_time = len(doused) >= _IGNITE_FROM or len(doused) >= len(seat.view.living) - 1
    return Aim() if is_time else None


def _douse(seat: Seat, choice: Choice) -> Aim:
    dry = [name for name in choice.targets if name not in seat.have_doused]
    return Aim(prey(seat, dry or choice.targets))


def _alert(seat: Seat, choice: Choice) -> Aim | None:
    """Once known or accused, a Veteran is called on by killers; the Town's own stay away."""
    is_known = seat.view.name in seat.beliefs.claims or bool(seat.accusers())
    return Aim() if is_known or seat.chance.random() < _ALERT_UNASKED else None


def _vest(seat: Seat, choice: Choice) -> Aim | None:
    """When several were killed last night, or few are left to choose from."""
    killed = sum(
        event.kind is EventKind.DEATH and event.day == seat.view.day and event.data["causes"] != ["lynch"]
        for event in seat.view.public
    )
    return Aim() if killed > 1 or len(seat.view.living) <= _FEW_LIVING else None


def _others(seat: Seat, choice: Choice) -> list[str]:
    """Whom to go to: not oneself, and for the Town not a Veteran, who may be on alert."""
    others = [name for name in choice.targets if name != seat.view.name]
    safe = [name for name in others if not (seat.is_town and seat.beliefs.claims.get(name) == "Veteran")]
    return safe or others or list(choice.targets)


def _worst(seat: Seat, choice: Choice) -> str:
    suspicion, others = seat.beliefs.suspicion, _others(seat, choice)
    worst = max(suspicion.get(name, 0.0) for name in others)
    return seat.pick([name for name in others if suspicion.get(name, 0.0) >= worst])


DEEDS: Mapping[str, Callable[[Seat, Choice], Aim | None]] = MappingProxyType(
    {
        "execute": _execute,
        "kill": _kill,
        "stab": _strike,
        "bite": _kill,
        "rampage": _strike,
        "ignite": _ignite,
        "wash": lambda seat, choice: Aim(),
        "douse": _douse,
        "shoot": _shoot,
        "alert": _alert,
        "heal": _protect,
        "guard": _protect,
        "vest": _vest,
        "watch": _protect,
        "bug": _protect,
        "interrogate": _ask,
        "investigate": _ask,
        "look_into": _ask,
        "check": _ask,
        "block": _block,
        "blackmail": _silence,
        "clean": _bury,
        "forge": _bury,
        "frame": _anybody,
        "haunt": _anybody,
        "disguise": _disguise,
        "swap": _swap,
        "raise": _raise,
        "revive": _anybody,
        "remember": _remember,
        "control": _control,
    }
)
"""Verb to what it is used for."""
