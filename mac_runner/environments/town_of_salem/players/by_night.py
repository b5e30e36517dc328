"""What the heuristic player does at night: the night abilities, by verb."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.knowledge import Choice
from mac_runner.environments.town_of_salem.players.beliefs import INFORMED
from mac_runner.environments.town_of_salem.players.prey import prey
from mac_runner.environments.town_of_salem.players.seat import Seat
from mac_runner.environments.town_of_salem.players.statements import claim
from mac_runner.environments.town_of_salem.players.talk import cover
from mac_runner.environments.town_of_salem.players.writing import write

_DEATH_NOTE = "Nobody is safe in this town."
# How often somebody does what needs nobody to be aimed at.
_ALONE = 0.3


def act_at_night(seat: Seat) -> str:
    """Use a night ability, or wait."""
    own = {ability.verb for ability in seat.view.role.abilities}
    offered = [choice for choice in seat.view.choices if choice.verb in own]
    if not offered:
        return write("wait", thought="There is nothing I can do.")
    choice = seat.chance.choice(offered) if len(offered) > 1 else offered[0]
    if choice.verb == "execute":
        return _execute(seat)
    if not choice.targets:
        use = seat.chance.random() < _ALONE
        return write(choice.verb if use else "wait", thought="It may be the night for it.", will=seat.will())
    target = _aim(seat, choice)
    if target is None:
        return write("wait", thought="Nobody is worth it tonight.", will=seat.will())
    second = seat.pick(choice.seconds) if choice.seconds else ""
    text = claim(cover(seat), dead=True) if choice.verb == "forge" else ""
    note = "" if seat.view.death_note or "death_note" not in seat.choices else _DEATH_NOTE
    return write(
        choice.verb,
        target=target,
        second=second,
        text=text,
        thought=f"Tonight I choose {target}.",
        will=seat.will(),
        death_note=note,
    )


def _execute(seat: Seat) -> str:
    jailed = [str(event.data["prisoner"]) for event in seat.view.private if event.kind is EventKind.JAILING]
    doubt = seat.beliefs.suspicion.get(jailed[-1], 0.0) if jailed else 0.0
    return write("execute" if doubt >= seat.enough else "wait", thought=f"My doubt: {doubt:.1f}.")


def _aim(seat: Seat, choice: Choice) -> str | None:
    """The best target of a night ability, by what the ability is for."""
    suspicion = seat.beliefs.suspicion
    others = [name for name in choice.targets if name != seat.view.name]
    match choice.verb:
        case "kill":
            return prey(seat)
        case "heal":
            worth = [name for name in others if seat.beliefs.claims.get(name) in INFORMED and suspicion[name] < 1.0]
            return seat.pick(worth or others)
        case "interrogate" | "investigate":
            asked = {str(event.data["about"]) for event in seat.view.private if event.kind is EventKind.RESULT}
            fresh = [name for name in others if name not in asked]
            return seat.pick(fresh or others)
        case "block":
            worst = max(suspicion[name] for name in others)
            return seat.pick([name for name in others if suspicion[name] >= worst])
        case _:
            return seat.pick(others)
