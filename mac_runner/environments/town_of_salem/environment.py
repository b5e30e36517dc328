"""Town of Salem as an Environment: from an experiment to its games."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from mac_runner.config import Experiment
from mac_runner.environments.base import Policy
from mac_runner.environments.town_of_salem.bots import POLICIES
from mac_runner.environments.town_of_salem.casting import Casting
from mac_runner.environments.town_of_salem.conversation import Game
from mac_runner.environments.town_of_salem.game.lobbies import NAMES, deal, role_list
from mac_runner.environments.town_of_salem.game.rules import new_game
from mac_runner.environments.town_of_salem.game.state import Options
from mac_runner.environments.town_of_salem.settings import GameCalendar, GameConfig
from mac_runner.environments.town_of_salem.view.prompts import system_text
from mac_runner.errors import ConfigError
from mac_runner.types import Lineup, Task

_DAYS_MIN: Final = 2
_TURN_BYTES_MIN: Final = 900
"""What a turn takes in a transcript: key, digest, a short reply, its receipt and its events."""


class TownOfSalem:
    """Games of one experiment: its role list, its rules, its players."""

    def __init__(self, experiment: Experiment) -> None:
        game = experiment.settings_as(GameConfig)
        self._slots = role_list(game.lobby)
        self._seats = game.seats
        self._cast = None if game.casting is None else Casting(game.casting, self._slots).definitions
        self._options = options_of(game)
        self._system = system_text(self._slots, self._options)
        self._latency = game.latency
        self.transcript_bytes_min = _turns_min(len(self._slots), game.calendar) * _TURN_BYTES_MIN
        self._context_tokens_max = game.context_tokens_max
        self._max_retries = experiment.retry_config.max_retries
        self._speak_after = {
            definition.agent_id: frozenset(definition.role_specific_config.speak_after_within_round)
            for definition in experiment.agent_definitions
        }

    @property
    def lineup(self) -> Lineup:
        """The role list, one slot per role, and the names of the players."""
        return Lineup(slots=self._slots, names=NAMES, seats=self._seats, cast=self._cast, key=("game", "seats"))

    def open(self, task: Task) -> Game:
        """A game in its greeting; a seat has the role of its agent's slot."""
        roles = deal(self._slots, task.seed)
        state, opening = new_game(
            seed=task.seed,
            names=[agent.agent_id for agent in task.agents],
            roles=[roles[agent.slot] for agent in task.agents],
            lobby=self._slots,
            options=self._options,
            speak_after=self._gates(task),
        )
        return Game(
            task=task,
            state=state,
            opening=opening,
            system=self._system,
            max_retries=self._max_retries,
            latency=self._latency,
            context_tokens_max=self._context_tokens_max,
        )

    def _gates(self, task: Task) -> dict[int, frozenset[int]]:
        """`speak_after_within_round` of the definitions, as seats of this game."""
        gates = {
            agent.seat: frozenset(
                other.seat for other in task.agents if other.definition in self._speak_after[agent.definition]
            )
            for agent in task.agents
        }
        return {seat: before for seat, before in gates.items() if before}

    def policy(self, name: str) -> Policy:
        """The scripted player called `name`."""
        if name not in POLICIES:
            known = ", ".join(POLICIES)
            raise ConfigError(f"town_of_salem has no scripted policy {name!r}; it has: {known}")
        return POLICIES[name]


def _turns_min(players: int, calendar: GameCalendar) -> int:
    """The turns of a short game: the greeting, then as many nights and days as players need to end it.

    Few days are counted, with all players alive and all rounds held, because later days have fewer of both.
    """
    if calendar.completion_tokens_max is not None:
        return players * calendar.greeting_rounds
    talk = 1 if calendar.discussion_mode == "bidding" else calendar.discussion_rounds
    days = min(_DAYS_MIN, max(0, calendar.max_days - 1))
    return players * (calendar.greeting_rounds + days * (1 + talk + calendar.vote_rounds))


def options_of(game: GameConfig) -> Options:
    """Flags and calendar of the experiment, as the rules take them."""
    chosen = {**game.flags.model_dump(), **game.calendar.model_dump(), "edition": game.edition}
    return Options(**{field.name: chosen[field.name] for field in fields(Options)})
