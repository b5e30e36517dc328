"""How scripted players use the abilities of their roles at night.

A tactic is a function from what a bot knows to what it does, or None to leave the ability alone. An ability names its
tactic; a role may bring one of its own. `Bot` is all that a tactic may ask; `players` implements it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from mac_runner.environments.town_of_salem.game.events import Event, EventKind
from mac_runner.environments.town_of_salem.game.state import LYNCH

# A bullet cannot be taken back: it takes more than a vote does.
_SHOOT_FROM = 2.5
_IGNITE_FROM = 3
_FEW_LIVING = 7
# How often an unknown Veteran goes on alert: the Town's own visitors would be shot.
_ALERT_UNASKED = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An act a seat may choose now, with names instead of seats."""

    verb: str
    targets: tuple[str, ...] = ()
    seconds: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


class Aim(NamedTuple):
    """What to do with an ability."""

    target: str = ""
    second: str = ""
    text: str = ""


class Bot(Protocol):
    """What a scripted player knows and wants, by names of players and roles."""

    @property
    def chance(self) -> Random:
        """The source of chance."""
        ...

    @property
    def name(self) -> str:
        """The bot's own public name."""
        ...

    @property
    def day(self) -> int:
        """The day, or the day before this night."""
        ...

    @property
    def is_town(self) -> bool:
        """Whether the bot is of the Town."""
        ...

    @property
    def living(self) -> Sequence[str]:
        """The living, the bot included."""
        ...

    @property
    def graveyard(self) -> Mapping[str, str]:
        """The dead, with the roles that were shown."""
        ...

    @property
    def public(self) -> Sequence[Event]:
        """What everybody learned."""
        ...

    @property
    def private(self) -> Sequence[Event]:
        """What only the bot learned."""
        ...

    @property
    def suspicion(self) -> Mapping[str, float]:
        """How suspicious the others are: 0 for the unknown, about 2 for a vote."""
        ...

    @property
    def claims(self) -> Mapping[str, str]:
        """The roles that players claimed."""
        ...

    @property
    def enough(self) -> float:
        """The suspicion it takes today to vote, to judge guilty and to execute."""
        ...

    @property
    def have_doused(self) -> frozenset[str]:
        """Whom the bot poured petrol over."""
        ...

    def accusers(self) -> Sequence[str]:
        """The living who accused this bot."""
        ...

    def worth_protecting(self, names: Sequence[str]) -> list[str]:
        """Those of `names` whom the Town needs most."""
        ...

    def weight_of(self, role: str | None) -> float:
        """How much the holder of a role is worth guarding, and worth killing."""
        ...

    def pick(self, names: Sequence[str]) -> str:
        """Any of `names`, by lot."""
        ...

    def draw(self, names: Sequence[str], weights: Sequence[float]) -> str:
        """Any of `names`, by lot and weight."""
        ...

    def others(self, choice: Choice) -> list[str]:
        """Targets that are safe to visit; the bot itself only if there is nobody else."""
        ...

    def worst(self, choice: Choice) -> str:
        """The most suspicious target."""
        ...

    def prey(self, targets: Sequence[str]) -> str:
        """Whom a killer wants dead."""
        ...

    def agreed_prey(self) -> str | None:
        """Whom the bot's team agreed to kill."""
        ...

    def false_will(self) -> str:
        """A will that a role of the Town could have written."""
        ...

    def is_town_role(self, name: str) -> bool:
        """Whether a role belongs to the Town."""
        ...

    def may_meet_killer_of_blockers(self) -> bool:
        """Whether a role that kills those who block it may be alive."""
        ...


def execute(bot: Bot, choice: Choice) -> Aim | None:
    """Only a prisoner who is suspicious enough."""
    jailed = [str(event.data["prisoner"]) for event in bot.private if event.kind is EventKind.JAILING]
    doubt = bot.suspicion.get(jailed[-1], 0.0) if jailed else 0.0
    return Aim() if doubt >= bot.enough else None


def kill(bot: Bot, choice: Choice) -> Aim:
    """Whom the team agreed upon, if it did."""
    agreed = bot.agreed_prey()
    return Aim(agreed if agreed in choice.targets and agreed is not None else bot.prey(choice.targets))


def strike(bot: Bot, choice: Choice) -> Aim:
    """One who kills alone keeps away from those whom the Town watches over."""
    watched = bot.worth_protecting(choice.targets)
    return Aim(bot.prey([name for name in choice.targets if name not in watched] or choice.targets))


def shoot(bot: Bot, choice: Choice) -> Aim | None:
    """Only who is as good as proven evil: the price of a mistake is the gun and one's life."""
    name = bot.worst(choice)
    return Aim(name) if bot.suspicion.get(name, 0.0) >= _SHOOT_FROM else None


def protect(bot: Bot, choice: Choice) -> Aim:
    """Those the rather whom killers would rather have dead."""
    return Aim(_charge(bot, choice.targets) or bot.pick(bot.others(choice)))


def _charge(bot: Bot, names: Sequence[str]) -> str | None:
    worth = bot.worth_protecting(names)
    weights = [bot.weight_of(bot.claims.get(name)) for name in worth]
    return bot.draw(worth, weights) if worth else None


def ask(bot: Bot, choice: Choice) -> Aim:
    """Somebody one knows nothing of yet."""
    asked = {str(event.data["about"]) for event in bot.private if event.kind is EventKind.RESULT}
    others = bot.others(choice)
    return Aim(bot.pick([name for name in others if name not in asked] or others))


def block(bot: Bot, choice: Choice) -> Aim:
    """The Town keeps the worst busy; its enemies keep those busy who would protect or find out."""
    if not bot.is_town:
        return Aim(bot.prey(choice.targets))
    if not bot.may_meet_killer_of_blockers():
        return Aim(bot.worst(choice))
    # Who is as good as caught is left to the Town: it may be the one who kills those who block him.
    others = bot.others(choice)
    doubtful = [name for name in others if 0.0 <= bot.suspicion.get(name, 0.0) < bot.enough]
    return Aim(bot.pick(doubtful or others))


def silence(bot: Bot, choice: Choice) -> Aim:
    """Those the Town needs most."""
    return Aim(bot.pick(bot.worth_protecting(choice.targets) or bot.others(choice)))


def bury(bot: Bot, choice: Choice) -> Aim:
    """The one who is to die tonight."""
    agreed = bot.agreed_prey()
    return Aim(agreed if agreed is not None and agreed in choice.targets else bot.prey(choice.targets))


def forge(bot: Bot, choice: Choice) -> Aim:
    """A false will for the one who is to die tonight."""
    return bury(bot, choice)._replace(text=bot.false_will())


def anybody(bot: Bot, choice: Choice) -> Aim:
    """Anybody but oneself; the tactic of an ability that brings none of its own."""
    if not choice.targets:
        return Aim()
    return Aim(bot.pick(bot.others(choice)), bot.pick(choice.seconds) if choice.seconds else "")


def at_once(bot: Bot, choice: Choice) -> Aim:
    """Use an ability without a target."""
    return Aim()


def disguise(bot: Bot, choice: Choice) -> Aim:
    """Pass for somebody the Town thinks well of."""
    return Aim(bot.pick(choice.targets), min(choice.seconds, key=lambda name: bot.suspicion.get(name, 0.0)))


def swap(bot: Bot, choice: Choice) -> Aim | None:
    """Put the most suspicious in the way of what is meant for those who know."""
    worst = bot.worst(choice)
    worth = [name for name in bot.worth_protecting(choice.targets) if name != worst]
    return Aim(bot.pick(worth), worst) if worth else None


def raise_dead(bot: Bot, choice: Choice) -> Aim | None:
    """Let the dead who find things out look at the worst of the living; nobody else is worth the risk."""
    finders = [name for name in choice.targets if bot.graveyard.get(name) in ("Sheriff", "Investigator")]
    guards = [name for name in choice.targets if bot.graveyard.get(name) in ("Doctor", "Bodyguard")]
    worth = bot.worth_protecting(choice.seconds)
    if finders:
        return Aim(bot.pick(finders), max(choice.seconds, key=lambda name: bot.suspicion.get(name, 0.0)))
    return Aim(bot.pick(guards), bot.pick(worth)) if guards and worth else None


def remember(bot: Bot, choice: Choice) -> Aim:
    """To be of the Town while the Town has the most living is the safest."""
    town = [name for name in choice.targets if bot.is_town_role(bot.graveyard[name])]
    return Aim(bot.pick(town or choice.targets))


def control(bot: Bot, choice: Choice) -> Aim:
    """Turn anybody on those the Town needs most."""
    victim = bot.prey(choice.seconds)
    return Aim(bot.pick([name for name in bot.others(choice) if name != victim] or choice.targets), victim)


def ignite(bot: Bot, choice: Choice) -> Aim | None:
    """When enough are doused."""
    doused = bot.have_doused & set(bot.living)
    is_time = len(doused) >= _IGNITE_FROM or len(doused) >= len(bot.living) - 1
    return Aim() if is_time else None


def douse(bot: Bot, choice: Choice) -> Aim:
    """Somebody who is not doused yet."""
    dry = [name for name in choice.targets if name not in bot.have_doused]
    return Aim(bot.prey(dry or choice.targets))


def alert(bot: Bot, choice: Choice) -> Aim | None:
    """Once known or accused, a Veteran is called on by killers; the Town's own stay away."""
    is_known = bot.name in bot.claims or bool(bot.accusers())
    return Aim() if is_known or bot.chance.random() < _ALERT_UNASKED else None


def vest(bot: Bot, choice: Choice) -> Aim | None:
    """When several were killed last night, or few are left to choose from."""
    killed = sum(
        event.kind is EventKind.DEATH and event.day == bot.day and event.data["causes"] != [LYNCH.name]
        for event in bot.public
    )
    return Aim() if killed > 1 or len(bot.living) <= _FEW_LIVING else None
