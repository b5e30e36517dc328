"""FIXME Whom the heuristic player wants on trial, and how it judges.

What the heuristic player does at night: the tactics of its role's abilities.

A seat with several abilities uses the first of its role's card that has something to do.

The heuristic player: plays to win by simple rules, from what its seat may know.

The Town shares findings, believes proven words, votes for the most suspicious and protects those who know. The
Mafia kills those who know, keeps quiet, and lies when accused. An Executioner accuses his target; a Jester asks for it.
What it does is decided phase by phase: in `talk`, `voting`, `by_day` and `by_night`.

The random player: uniform over its legal acts, each target and choice of an act counted as an act of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from mac_runner.environments.base import Policy
from mac_runner.environments.town_of_salem.bots.beliefs import is_town_role
from mac_runner.environments.town_of_salem.bots.seat import Seat, agreed_prey, prey
from mac_runner.environments.town_of_salem.bots.statements import claim, write
from mac_runner.environments.town_of_salem.bots.talk import bid, chat, cover, defence, discuss, greet, use_the_day
from mac_runner.environments.town_of_salem.game.acts import ACTS
from mac_runner.environments.town_of_salem.game.events import Event
from mac_runner.environments.town_of_salem.game.lobbies import roles_in_play
from mac_runner.environments.town_of_salem.game.state import Ballot, Phase
from mac_runner.environments.town_of_salem.roles import ROLES, NightAbility
from mac_runner.environments.town_of_salem.roles.tactics import Choice
from mac_runner.environments.town_of_salem.view.knowledge import SeatView


def vote(seat: Seat) -> str:
    """A vote, unless one's standing vote is already right."""
    if "vote" not in seat.choices:
        return write("wait", thought="I have no vote to give.")
    target = _wanted(seat)
    if target is None or target not in seat.choices["vote"].targets:
        return write("wait", thought="Nobody else I would vote for.", will=seat.will())
    return write("vote", target=target, thought=f"I want {target} on trial.", will=seat.will())


def _wanted(seat: Seat) -> str | None:
    if seat.quarry is not None:
        return seat.quarry
    if seat.is_hostile:
        return _scapegoat(seat)
    found = seat.beliefs.most_suspicious()
    return found[0] if found is not None and found[1] >= seat.enough else None


def _scapegoat(seat: Seat) -> str | None:
    """Whom the others already vote for, if not one of ours; else whoever accuses one of us, or the worst."""
    outside = [target for target in seat.view.votes.values() if target not in seat.view.team]
    if outside:
        return max(dict.fromkeys(outside), key=outside.count)
    accusers = [name for name in seat.accusers() if name not in seat.view.team]
    if accusers:
        return accusers[0]
    found = [(doubt, name) for name, doubt in seat.beliefs.suspicion.items() if name not in seat.view.team]
    doubt, name = max(found, default=(0.0, ""))
    return name if doubt >= seat.enough else None


def judge(seat: Seat) -> str:
    """A ballot on the accused."""
    accused = seat.view.accused or ""
    if seat.is_hostile:
        ballot = Ballot.INNOCENT if accused in seat.view.team else Ballot.GUILTY
    elif accused == seat.quarry:
        ballot = Ballot.GUILTY
    else:
        doubt = seat.beliefs.suspicion.get(accused, 0.0)
        ballot = Ballot.GUILTY if doubt >= seat.enough else Ballot.INNOCENT
    return write("ballot", choice=ballot.value, thought=f"{accused}: {ballot}.")


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


def play_to_win(view: object, chance: Random) -> str:
    """One reply."""
    if not isinstance(view, SeatView):
        raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
    seat = Seat(view, chance)
    match view.phase:
        case Phase.GREETING:
            return greet(seat)
        case Phase.NIGHT_CHAT:
            return chat(seat)
        case Phase.NIGHT:
            return act_at_night(seat)
        case Phase.JUDGEMENT:
            return judge(seat)
        case Phase.VOTING:
            return use_the_day(seat) or vote(seat)
        case Phase.DEFENCE | Phase.LAST_WORDS:
            return seat.say(defence(seat), "I must convince them.")
        case Phase.BIDDING:
            return use_the_day(seat) or bid(seat)
        case _:
            return use_the_day(seat) or discuss(seat)


def play_at_random(view: object, chance: Random) -> str:
    """Draw one legal act."""
    if not isinstance(view, SeatView):
        raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
    options: list[tuple[str, str, str, str]] = []
    for choice in view.choices:
        if ACTS[choice.verb].is_side_act:
            continue
        for target in choice.targets or ("",):
            for second in choice.seconds or ("",):
                for option in choice.choices or ("",):
                    options.append((choice.verb, target, second, option))
    verb, target, second, option = chance.choice(options)
    return write(verb, target=target, second=second, choice=option, text=_words(view, chance))


def _words(view: SeatView, chance: Random) -> str:
    """Something to say that means nothing: the random player is the baseline without talk."""
    return f"I am {view.name}, and I look at {chance.choice(view.living)}."


POLICIES: Mapping[str, Policy] = MappingProxyType({"heuristic": play_to_win, "random": play_at_random})
"""Name in YAML to scripted player."""
