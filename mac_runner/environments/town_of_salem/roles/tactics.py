"""How scripted players use the abilities of their roles.

A tactic is a function from what a bot knows to what it does, or None to leave the ability alone. An ability names its
tactic; a role may bring one of its own. `Bot` is all that a tactic may ask; `bots.seat` implements it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.state import LYNCH, Faction

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.bots.beliefs import Beliefs
    from mac_runner.environments.town_of_salem.roles.base import Role
    from mac_runner.environments.town_of_salem.view.knowledge import Choice, SeatView

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


class Bot(Protocol):
    """What a scripted player knows and wants, by names of players and roles."""

    @property
    def chance(self) -> Random:
        """The source of chance."""

    @property
    def view(self) -> SeatView:
        """What its seat may know."""

    @property
    def beliefs(self) -> Beliefs:
        """What it makes of that: suspicion (0 for the unknown, about 2 for a vote), claims, findings."""

    @property
    def is_town(self) -> bool:
        """Whether the bot is of the Town."""

    @property
    def enough(self) -> float:
        """The suspicion it takes today to vote, to judge guilty and to execute."""

    @property
    def roles_in_play(self) -> Sequence[Role]:
        """Every role that the game may hold."""

    def accusers(self) -> Sequence[str]:
        """The living who accused this bot."""

    def worth_protecting(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that the Town needs most."""

    def weight_of(self, role: str | None) -> float:
        """How much the holder of a role is worth guarding, and worth killing."""

    def pick(self, names: Sequence[str]) -> str:
        """Any of `names`, by lot."""

    def draw(self, names: Sequence[str], weights: Sequence[float]) -> str:
        """Any of `names`, by lot and weight."""

    def others(self, choice: Choice) -> list[str]:
        """Targets that are safe to visit; the bot itself only as the last one."""

    def worst(self, choice: Choice) -> str:
        """The most suspicious target."""

    def victim(self, targets: Sequence[str]) -> str:
        """The one of `targets` that a killer wants dead."""

    def agreed_victim(self) -> str | None:
        """The one that the bot's team agreed to kill."""

    def false_will(self) -> str:
        """A will that a role of the Town could have written."""


Tactic: TypeAlias = "Callable[[Bot, Choice], Aim | None]"


def anybody(bot: Bot, choice: Choice) -> Aim:
    """Any player but oneself; the tactic of a night ability that brings none of its own."""
    if not choice.targets:
        return Aim()
    return Aim(bot.pick(bot.others(choice)), bot.pick(choice.seconds) if choice.seconds else "")


def never(bot: Bot, choice: Choice) -> None:
    """Leave it alone; the tactic of a day ability that brings none of its own."""


def at_once(bot: Bot, choice: Choice) -> Aim:
    """Use an ability without a target."""
    return Aim()


def jail(bot: Bot, choice: Choice) -> Aim | None:
    """Once a day: the worst of those who can be executed, else one who is unknown, if that is safe."""
    if any(event.kind is EventKind.JAIL_CHOSEN and event.day == bot.view.day for event in bot.view.private):
        return None
    target = _prisoner(bot)
    return None if target is None else Aim(target, thought=f"I want a word with {target}.")


def _prisoner(bot: Bot) -> str | None:
    suspicion = bot.beliefs.suspicion
    can_execute = bot.view.day > 1 and bot.view.uses.get("execute", 0) > 0
    guilty = sorted((name for name in suspicion if suspicion[name] >= bot.enough), key=lambda name: -suspicion[name])
    if guilty and can_execute:
        # The Town will see to the worst of all.
        return guilty[min(1, len(guilty) - 1)]
    if not any(role.kills_jailors for role in bot.roles_in_play):
        unknown = [name for name in suspicion if name not in bot.beliefs.claims]
        return bot.pick(unknown or list(suspicion))
    trusted = bot.worth_protecting([*suspicion])
    return bot.pick(trusted) if trusted else None


def execute(bot: Bot, choice: Choice) -> Aim | None:
    """Only a prisoner who is suspicious enough."""
    jailed = [event.text("prisoner") for event in bot.view.private if event.kind is EventKind.JAILING]
    doubt = bot.beliefs.suspicion.get(jailed[-1], 0.0) if jailed else 0.0
    return Aim() if doubt >= bot.enough else None


def reveal(bot: Bot, choice: Choice) -> Aim | None:
    """From a certain day on, or when a trial is near."""
    given = Counter(bot.view.votes.values())
    is_close = bool(given) and max(given.values()) >= bot.view.votes_needed - _CLOSE
    return Aim(thought="It is time they know me.") if bot.view.day >= _REVEAL_FROM_DAY or is_close else None


def seance(bot: Bot, choice: Choice) -> Aim:
    """The most trusted of the living."""
    trusted = min(bot.beliefs.suspicion, key=lambda name: bot.beliefs.suspicion[name])
    return Aim(trusted, thought=f"I trust {trusted} most.")


def kill(bot: Bot, choice: Choice) -> Aim:
    """The victim that the team agreed on, if it did."""
    agreed = bot.agreed_victim()
    return Aim(agreed if agreed is not None and agreed in choice.targets else bot.victim(choice.targets))


def strike(bot: Bot, choice: Choice) -> Aim:
    """A victim that the Town does not watch over: the tactic of lone killers."""
    watched = bot.worth_protecting(choice.targets)
    return Aim(bot.victim([name for name in choice.targets if name not in watched] or choice.targets))


def shoot(bot: Bot, choice: Choice) -> Aim | None:
    """Only those as good as proven evil: a mistake costs the gun and one's life."""
    name = bot.worst(choice)
    return Aim(name) if bot.beliefs.suspicion.get(name, 0.0) >= _SHOOT_FROM else None


def protect(bot: Bot, choice: Choice) -> Aim:
    """Those that killers would most like to see dead."""
    worth = bot.worth_protecting(choice.targets)
    weights = [bot.weight_of(bot.beliefs.claims.get(name)) for name in worth]
    return Aim(bot.draw(worth, weights) if worth else bot.pick(bot.others(choice)))


def ask(bot: Bot, choice: Choice) -> Aim:
    """A player without a finding so far."""
    asked = {event.text("about") for event in bot.view.private if event.kind is EventKind.RESULT}
    others = bot.others(choice)
    return Aim(bot.pick([name for name in others if name not in asked] or others))


def block(bot: Bot, choice: Choice) -> Aim:
    """The Town keeps the worst busy; its enemies keep those busy who would protect or find out."""
    if not bot.is_town:
        return Aim(bot.victim(choice.targets))
    dead = set(bot.view.graveyard.values())
    if not any(role.kills_blockers and role.name not in dead for role in bot.roles_in_play):
        return Aim(bot.worst(choice))
    # The Town sees to those as good as caught: one of them may kill those who block him.
    others = bot.others(choice)
    doubtful = [name for name in others if 0.0 <= bot.beliefs.suspicion.get(name, 0.0) < bot.enough]
    return Aim(bot.pick(doubtful or others))


def silence(bot: Bot, choice: Choice) -> Aim:
    """Those the Town needs most."""
    return Aim(bot.pick(bot.worth_protecting(choice.targets) or bot.others(choice)))


def forge(bot: Bot, choice: Choice) -> Aim:
    """A false will for the one who is to die tonight."""
    return kill(bot, choice)._replace(text=bot.false_will())


def disguise(bot: Bot, choice: Choice) -> Aim:
    """Pass for a player the Town thinks well of."""
    return Aim(bot.pick(choice.targets), min(choice.seconds, key=lambda name: bot.beliefs.suspicion.get(name, 0.0)))


def swap(bot: Bot, choice: Choice) -> Aim | None:
    """Put the most suspicious in the way of what is meant for those who know."""
    worst = bot.worst(choice)
    worth = [name for name in bot.worth_protecting(choice.targets) if name != worst]
    return Aim(bot.pick(worth), worst) if worth else None


def raise_dead(bot: Bot, choice: Choice) -> Aim | None:
    """Let the dead who find things out look at the worst of the living; the rest is not worth the risk."""
    finders = [name for name in choice.targets if bot.view.graveyard.get(name) in ("Sheriff", "Investigator")]
    guards = [name for name in choice.targets if bot.view.graveyard.get(name) in ("Doctor", "Bodyguard")]
    worth = bot.worth_protecting(choice.seconds)
    if finders:
        return Aim(bot.pick(finders), max(choice.seconds, key=lambda name: bot.beliefs.suspicion.get(name, 0.0)))
    return Aim(bot.pick(guards), bot.pick(worth)) if guards and worth else None


def remember(bot: Bot, choice: Choice) -> Aim:
    """A role of the Town, which has the most living."""
    town = {role.name for role in bot.roles_in_play if role.faction is Faction.TOWN}
    return Aim(bot.pick([name for name in choice.targets if bot.view.graveyard[name] in town] or choice.targets))


def control(bot: Bot, choice: Choice) -> Aim:
    """Turn any player on those the Town needs most."""
    victim = bot.victim(choice.seconds)
    return Aim(bot.pick([name for name in bot.others(choice) if name != victim] or choice.targets), victim)


def ignite(bot: Bot, choice: Choice) -> Aim | None:
    """When enough are doused."""
    doused = _doused(bot) & set(bot.view.living)
    is_time = len(doused) >= _IGNITE_FROM or len(doused) >= len(bot.view.living) - 1
    return Aim() if is_time else None


def douse(bot: Bot, choice: Choice) -> Aim:
    """A player who is not doused yet."""
    doused = _doused(bot)
    return Aim(bot.victim([name for name in choice.targets if name not in doused] or choice.targets))


def _doused(bot: Bot) -> set[str]:
    """The players that the bot poured petrol over since it last set fire."""
    doused: set[str] = set()
    for event in bot.view.private:
        if event.kind is EventKind.VISITED:
            doused.update(event.names("visitors"))
        elif event.kind is EventKind.ACTION_CHOSEN and event.data["verb"] == "ignite":
            doused.clear()
        elif event.kind is EventKind.ACTION_CHOSEN and event.data["verb"] == "douse":
            doused.update(event.names("targets"))
    return doused


def alert(bot: Bot, choice: Choice) -> Aim | None:
    """Once known or accused: killers call on a known Veteran, the Town stays away."""
    is_known = bot.view.name in bot.beliefs.claims or bool(bot.accusers())
    return Aim() if is_known or bot.chance.random() < _ALERT_UNASKED else None


def vest(bot: Bot, choice: Choice) -> Aim | None:
    """When several were killed last night, or few are left to choose from."""
    killed = sum(
        event.kind is EventKind.DEATH and event.day == bot.view.day and event.data["causes"] != [LYNCH.name]
        for event in bot.view.public
    )
    return Aim() if killed > 1 or len(bot.view.living) <= _FEW_LIVING else None
