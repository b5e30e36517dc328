"""Town of Salem as an Environment: from an experiment to its games."""

from __future__ import annotations

from random import Random
from typing import Final

from mac_runner.config import Experiment, reply_form_of
from mac_runner.environments.base import Policy, player_of
from mac_runner.environments.dialogue import rehearsal
from mac_runner.environments.templates import said_of_template
from mac_runner.environments.town_of_salem.bots import POLICIES
from mac_runner.environments.town_of_salem.casting import Casting
from mac_runner.environments.town_of_salem.conversation import Game
from mac_runner.environments.town_of_salem.model.state import Options
from mac_runner.environments.town_of_salem.roles.catalogue import catalogue_of
from mac_runner.environments.town_of_salem.rules.calendar import new_game
from mac_runner.environments.town_of_salem.rules.lobbies import NAMES, deal, role_list
from mac_runner.environments.town_of_salem.seat.asking import Asking
from mac_runner.environments.town_of_salem.seat.prompts import Prompts
from mac_runner.environments.town_of_salem.settings import GameCalendar, GameConfig
from mac_runner.spec import AgentDefinition, RetryConfig
from mac_runner.types import Lineup, Reply, Task, stable_hash

_DAYS_MIN: Final = 2
_TURN_BYTES_MIN: Final = 900
"""What a turn takes in a transcript: key, digest, a short reply, its receipt and its events."""


class TownOfSalem:
    """Games of one experiment: its role list, its rules, its players."""

    def __init__(self, experiment: Experiment) -> None:
        game = experiment.settings_as(GameConfig)
        self._catalogue = catalogue_of(game.roles)
        with self._catalogue.in_force():
            self._slots = role_list(game.lobby)
            casting = None if game.casting is None else Casting(game.casting, self._slots)
        self._cast = None if casting is None else self._catalogue.bound(casting.definitions)
        self._seats = game.seats
        self._options = options_of(game)
        self._asking = {
            definition.agent_id: asking_of(experiment, definition) for definition in experiment.agent_definitions
        }
        self._latency = game.latency
        self.transcript_bytes_min = _turns_min(len(self._slots), game.calendar) * _TURN_BYTES_MIN
        self._context_tokens_max = game.context_tokens_max
        self._retry = experiment.retry_config
        self._prompts = Prompts()
        if game.template is not None:
            with self._catalogue.in_force(), said_of_template("game", file=game.template_file):
                self._prompts = Prompts(game.template, game.template_file or "template")
                self._rehearse()
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
        with self._catalogue.in_force():
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
                retry=self._retry,
                latency=self._latency,
                context_tokens_max=self._context_tokens_max,
                asking=self._asking,
                prompts=self._prompts,
            )

    def _rehearse(self) -> None:
        """Render the prompts of a short game, asked in every way of the experiment."""
        roles = deal(self._slots, 0)
        options = self._options.model_copy(update={"max_days": 2})
        for asking in dict.fromkeys(self._asking.values()):
            names = NAMES[: len(roles)]
            state, opening = new_game(seed=0, names=names, roles=roles, lobby=self._slots, options=options)
            game = Game(
                task=rehearsal(names),
                state=state,
                opening=opening,
                retry=RetryConfig(max_retries=0),
                asking={"all": asking},
                prompts=self._prompts,
            )
            while turns := game.turns():
                chance = Random(stable_hash(0, turns[0].key))  # noqa: S311 - a rehearsal
                text = POLICIES["random"](game.prompt(turns[0]).view, chance)
                game.receive(turns[0], Reply(text=text))

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
        return self._catalogue.bound(player_of("town_of_salem", POLICIES, name))


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
    """Flags, calendar and the rest of the experiment, as the rules take them."""
    own = game.model_dump(include={"edition", "notes", "tools", "shuffle_options"})
    return Options(**game.flags.model_dump(), **game.calendar.model_dump(), **own)


def asking_of(experiment: Experiment, definition: AgentDefinition) -> Asking:
    """How the players of one agent definition are asked."""
    model = experiment.model_definitions[definition.model]
    return Asking(
        form=reply_form_of(experiment, model),
        reasoning=definition.reasoning or "optional",
        reasoning_chars_max=definition.reasoning_chars_max,
        persona=(definition.persona or "").strip(),
        system=(definition.system or "").strip(),
    )
