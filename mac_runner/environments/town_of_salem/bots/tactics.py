"""How scripted players use the abilities of their roles.

A tactic is a function from what a player knows to what it does, or None to leave the ability alone. An ability gives
the name of its tactic; a role may bring one of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from mac_runner.environments.town_of_salem.bots.seat import Seat, role_named
from mac_runner.environments.town_of_salem.bots.speech import line, plain
from mac_runner.environments.town_of_salem.model.events import RESULT, EventKind
from mac_runner.environments.town_of_salem.model.role import Ability, NightAbility, Role
from mac_runner.environments.town_of_salem.model.state import LYNCH, Faction
from mac_runner.environments.town_of_salem.roles.neutral import VISITED
from mac_runner.environments.town_of_salem.roles.town import JAILING
from mac_runner.environments.town_of_salem.seat.knowledge import Choice

# A bullet cannot be taken back: it takes more than a vote does.
_SHOOT_FROM = 2.5
_IGNITE_FROM = 3
_FEW_LIVING = 7
# How often an unknown Veteran goes on alert: the Town's own visitors would be shot.
_ALERT_UNASKED = 0.25
_REVEAL_FROM_DAY = 3
# How many votes short of a trial a vote is close.
_CLOSE = 2


class Aim(NamedTuple):
    """What to do with an ability."""

    target: str = ""
    second: str = ""
    text: str = ""
    thought: str = ""


Tactic: TypeAlias = Callable[[Seat, Choice], Aim | None]

_tactics: dict[str, Tactic] = {}


def tactic(function: Tactic) -> Tactic:
    """Decorator: abilities may name this function as their tactic. Raises ValueError when its name is taken."""
    if function.__name__ in _tactics:
        raise ValueError(f"there is a tactic {function.__name__!r} already")
    _tactics[function.__name__] = function
    return function


def check_tactics(role: Role) -> None:
    """Raises ValueError when an ability of a role names a tactic that there is not."""
    for ability in role.abilities:
        if ability.tactic not in _tactics:
            raise ValueError(
                f"<{ability.verb}> of {role.name}: there is no tactic {ability.tactic!r}; "
                "a function of yours becomes one by the decorator @tactic, before the role is registered"
            )


def use(seat: Seat, kind: type[Ability]) -> tuple[str, Aim]:
    """The verb and the aim of the first ability of its role's card that has something to do; "" where none has."""
    for ability in seat.view.role.abilities:
        choice = seat.choices.get(ability.verb)
        if choice is not None and isinstance(ability, kind):
            aim = _tactics[ability.tactic](seat, choice)
            if aim is not None:
                return ability.verb, aim
    return "", Aim()


@tactic
def anybody(seat: Seat, choice: Choice) -> Aim:
    """Any player but oneself; the tactic of a night ability that brings none of its own."""
    if not choice.targets:
        return Aim()
    return Aim(seat.pick(seat.others(choice)), seat.pick(choice.seconds) if choice.seconds else "")


@tactic
def never(seat: Seat, choice: Choice) -> None:
    """Leave it alone; the tactic of a day ability that brings none of its own."""


@tactic
def at_once(seat: Seat, choice: Choice) -> Aim:
    """Use an ability without a target."""
    return Aim()


@tactic
def jail(seat: Seat, choice: Choice) -> Aim | None:
    """Once a day: the worst of those who can be executed, else one who is unknown, if that is safe."""
    view = seat.view
    if any(event.kind is EventKind.JAIL_CHOSEN and event.day == view.day for event in view.private):
        return None
    guilty = sorted((name for name in seat.suspects if seat.doubt(name) >= seat.enough), key=lambda n: -seat.doubt(n))
    if guilty and view.day > 1 and view.uses.get("execute", 0) > 0:
        # The Town will see to the worst of all.
        target = guilty[min(1, len(guilty) - 1)]
    elif any(role.kills_jailors for role in seat.roles_in_play):
        trusted = seat.worth_protecting(seat.suspects)
        if not trusted:
            return None
        target = seat.pick(trusted)
    else:
        target = seat.pick([name for name in seat.suspects if name not in seat.claims] or seat.suspects)
    return Aim(target, thought=line("jail", name=target))


@tactic
def execute(seat: Seat, choice: Choice) -> Aim | None:
    """Only a prisoner who is suspicious enough."""
    jailed = [event.text("prisoner") for event in seat.view.private if event.kind is JAILING]
    doubt = seat.doubt(jailed[-1]) if jailed else 0.0
    return Aim() if doubt >= seat.enough else None


@tactic
def reveal(seat: Seat, choice: Choice) -> Aim | None:
    """From a certain day on, or when a trial is near."""
    given = Counter(seat.view.votes.values())
    is_close = bool(given) and max(given.values()) >= seat.view.votes_needed - _CLOSE
    return Aim(thought=line("reveal")) if seat.view.day >= _REVEAL_FROM_DAY or is_close else None


@tactic
def seance(seat: Seat, choice: Choice) -> Aim:
    """The most trusted of the living."""
    trusted = min(seat.suspects, key=seat.doubt)
    return Aim(trusted, thought=line("seance", name=trusted))


@tactic
def kill(seat: Seat, choice: Choice) -> Aim:
    """The victim that the team agreed on, if it did."""
    return Aim(_agreed(seat, choice))


def _agreed(seat: Seat, choice: Choice) -> str:
    agreed = seat.agreed_victim()
    return agreed if agreed is not None and agreed in choice.targets else seat.victim(choice.targets)


@tactic
def strike(seat: Seat, choice: Choice) -> Aim:
    """A victim that the Town does not watch over: the tactic of lone killers."""
    watched = seat.worth_protecting(choice.targets)
    return Aim(seat.victim([name for name in choice.targets if name not in watched] or choice.targets))


@tactic
def shoot(seat: Seat, choice: Choice) -> Aim | None:
    """Only those as good as proven evil: a mistake costs the gun and one's life."""
    name = seat.worst(choice)
    return Aim(name) if seat.doubt(name) >= _SHOOT_FROM else None


@tactic
def protect(seat: Seat, choice: Choice) -> Aim:
    """Those that killers would most like to see dead."""
    worth = seat.worth_protecting(choice.targets)
    weights = [seat.weight_of(seat.claims.get(name)) for name in worth]
    return Aim(seat.chance.choices(worth, weights)[0] if worth else seat.pick(seat.others(choice)))


@tactic
def ask(seat: Seat, choice: Choice) -> Aim:
    """A player without a finding so far."""
    asked = {event.text("about") for event in seat.view.private if event.kind is RESULT}
    others = seat.others(choice)
    return Aim(seat.pick([name for name in others if name not in asked] or others))


@tactic
def block(seat: Seat, choice: Choice) -> Aim:
    """The Town keeps the worst busy; its enemies keep those busy who would protect or find out."""
    if not seat.is_town:
        return Aim(seat.victim(choice.targets))
    dead = set(seat.view.graveyard.values())
    if not any(role.kills_blockers and role.name not in dead for role in seat.roles_in_play):
        return Aim(seat.worst(choice))
    # The Town sees to those as good as caught: one of them may kill those who block him.
    others = seat.others(choice)
    doubtful = [name for name in others if 0.0 <= seat.doubt(name) < seat.enough]
    return Aim(seat.pick(doubtful or others))


@tactic
def silence(seat: Seat, choice: Choice) -> Aim:
    """Those the Town needs most."""
    return Aim(seat.pick(seat.worth_protecting(choice.targets) or seat.others(choice)))


@tactic
def forge(seat: Seat, choice: Choice) -> Aim:
    """A false will for the one who is to die tonight."""
    return Aim(_agreed(seat, choice), text=plain("claim dead", role=seat.cover()))


@tactic
def disguise(seat: Seat, choice: Choice) -> Aim:
    """Pass for a player the Town thinks well of."""
    return Aim(seat.pick(choice.targets), min(choice.seconds, key=seat.doubt))


@tactic
def swap(seat: Seat, choice: Choice) -> Aim | None:
    """Put the most suspicious in the way of what is meant for those who know."""
    worst = seat.worst(choice)
    worth = [name for name in seat.worth_protecting(choice.targets) if name != worst]
    return Aim(seat.pick(worth), worst) if worth else None


@tactic
def raise_dead(seat: Seat, choice: Choice) -> Aim | None:
    """Let the dead who find things out look at the worst of the living; the rest is not worth the risk."""
    held = {name: role_named(seat.view.graveyard.get(name)) for name in choice.targets}
    own = {name: [a for a in role.abilities if isinstance(a, NightAbility)] for name, role in held.items() if role}
    finders = [name for name, abilities in own.items() if any(ability.examines for ability in abilities)]
    guards = [name for name, abilities in own.items() if any(ability.protects for ability in abilities)]
    worth = seat.worth_protecting(choice.seconds)
    if finders:
        return Aim(seat.pick(finders), max(choice.seconds, key=seat.doubt))
    return Aim(seat.pick(guards), seat.pick(worth)) if guards and worth else None


@tactic
def remember(seat: Seat, choice: Choice) -> Aim:
    """A role of the Town, which has the most living."""
    town = {role.name for role in seat.roles_in_play if role.faction is Faction.TOWN}
    return Aim(seat.pick([name for name in choice.targets if seat.view.graveyard[name] in town] or choice.targets))


@tactic
def control(seat: Seat, choice: Choice) -> Aim:
    """Turn any player on those the Town needs most."""
    victim = seat.victim(choice.seconds)
    return Aim(seat.pick([name for name in seat.others(choice) if name != victim] or choice.targets), victim)


@tactic
def ignite(seat: Seat, choice: Choice) -> Aim | None:
    """When enough are doused."""
    doused = _doused(seat).intersection(seat.view.living)
    return Aim() if len(doused) >= min(_IGNITE_FROM, len(seat.view.living) - 1) else None


@tactic
def douse(seat: Seat, choice: Choice) -> Aim:
    """A player who is not doused yet."""
    doused = _doused(seat)
    return Aim(seat.victim([name for name in choice.targets if name not in doused] or choice.targets))


def _doused(seat: Seat) -> set[str]:
    """The players that the bot poured petrol over since it last set fire."""
    doused: set[str] = set()
    for event in seat.view.private:
        if event.kind is VISITED:
            doused.update(event.names("visitors"))
        elif event.kind is EventKind.ACTION_CHOSEN and event.data["verb"] == "ignite":
            doused.clear()
        elif event.kind is EventKind.ACTION_CHOSEN and event.data["verb"] == "douse":
            doused.update(event.names("targets"))
    return doused


@tactic
def alert(seat: Seat, choice: Choice) -> Aim | None:
    """Once known or accused: killers call on a known Veteran, the Town stays away."""
    is_known = seat.view.name in seat.claims or bool(seat.accusers())
    return Aim() if is_known or seat.chance.random() < _ALERT_UNASKED else None


@tactic
def vest(seat: Seat, choice: Choice) -> Aim | None:
    """When several were killed last night, or few are left to choose from."""
    killed = sum(
        event.kind is EventKind.DEATH and event.day == seat.view.day and event.data["causes"] != [LYNCH.name]
        for event in seat.view.public
    )
    return Aim() if killed > 1 or len(seat.view.living) <= _FEW_LIVING else None
