"""What the heuristic player does at night: the tactics of its role's abilities.

A seat with several abilities uses the first of its role's card that has something to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mac_runner.environments.town_of_salem.events import Event
from mac_runner.environments.town_of_salem.lobbies import roles_in_play
from mac_runner.environments.town_of_salem.players.findings import is_town_role
from mac_runner.environments.town_of_salem.players.prey import agreed_prey, prey
from mac_runner.environments.town_of_salem.players.seat import Seat
from mac_runner.environments.town_of_salem.players.statements import claim
from mac_runner.environments.town_of_salem.players.talk import cover
from mac_runner.environments.town_of_salem.players.writing import write
from mac_runner.environments.town_of_salem.roles import ROLES, NightAbility
from mac_runner.environments.town_of_salem.roles.tactics import Choice

_DEATH_NOTE = "Nobody is safe in this town."


class NightBot(Seat):
    """A seat as the tactics of abilities ask it (`roles.tactics.Bot`)."""

    @property
    def name(self) -> str:
        """Its own public name."""
        return self.view.name

    @property
    def day(self) -> int:
        """The day before this night."""
        return self.view.day

    @property
    def living(self) -> Sequence[str]:
        """The living, itself included."""
        return self.view.living

    @property
    def graveyard(self) -> Mapping[str, str]:
        """The dead, with the roles that were shown."""
        return self.view.graveyard

    @property
    def public(self) -> Sequence[Event]:
        """What everybody learned."""
        return self.view.public

    @property
    def private(self) -> Sequence[Event]:
        """What only this seat learned."""
        return self.view.private

    @property
    def suspicion(self) -> Mapping[str, float]:
        """How suspicious the others are."""
        return self.beliefs.suspicion

    @property
    def claims(self) -> Mapping[str, str]:
        """The roles that players claimed."""
        return self.beliefs.claims

    def others(self, choice: Choice) -> list[str]:
        """Whom to go to: not oneself, and for the Town not a claimed Veteran, who may be on alert."""
        others = [name for name in choice.targets if name != self.name]
        safe = [name for name in others if not (self.is_town and self._shoots_visitors(self.claims.get(name)))]
        return safe or others or list(choice.targets)

    def _shoots_visitors(self, role: str | None) -> bool:
        return role is not None and ROLES[role.lower()].shoots_visitors

    def worst(self, choice: Choice) -> str:
        """The most suspicious target."""
        suspicion, others = self.suspicion, self.others(choice)
        worst = max(suspicion.get(name, 0.0) for name in others)
        return self.pick([name for name in others if suspicion.get(name, 0.0) >= worst])

    def prey(self, targets: Sequence[str]) -> str:
        """Whom a killer wants dead."""
        return prey(self, targets)

    def agreed_prey(self) -> str | None:
        """Whom the bot's team agreed to kill."""
        return agreed_prey(self)

    def false_will(self) -> str:
        """A will that a role of the Town could have written."""
        return claim(cover(self), dead=True)

    def is_town_role(self, name: str) -> bool:
        """Whether a role belongs to the Town."""
        return is_town_role(name)

    def may_meet_killer_of_blockers(self) -> bool:
        """Whether a role that kills those who block it may be alive."""
        dead = set(self.graveyard.values())
        return any(role.kills_blockers and role.name not in dead for role in roles_in_play(self.view.lobby))


def act_at_night(seat: Seat) -> str:
    """Use a night ability, or wait."""
    bot = NightBot(seat.view, seat.chance)
    for ability in seat.view.role.abilities:
        choice = bot.choices.get(ability.verb)
        if choice is None or not isinstance(ability, NightAbility):
            continue
        aim = ability.tactic(bot, choice)
        if aim is not None:
            note = "" if bot.view.death_note or "death_note" not in bot.choices else _DEATH_NOTE
            thought = f"Tonight I choose {aim.target}." if aim.target else "Tonight is the night for it."
            return write(ability.verb, **aim._asdict(), thought=thought, will=bot.will(), death_note=note)
    return write("wait", thought="There is nothing worth doing tonight.", will=bot.will())
