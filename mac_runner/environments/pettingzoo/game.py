"""One game with PettingZoo's AEC interface: an agent at a time sees its observation and chooses an action.

Modules with PettingZoo's AEC interface: how one is found, begun, and put into words.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Annotated, Any, Final, Literal

from mac_runner.environments.adapters.chance import NUMPY_SEEDS, OwnChance
from mac_runner.environments.adapters.environment import AdapterConfig, Opener, quiet
from mac_runner.environments.adapters.game import Asked, Heard, Move, Result
from mac_runner.environments.generators.replies import read_answer
from mac_runner.environments.generators.table import Ask
from mac_runner.environments.reading import Problem
from mac_runner.errors import ConfigError, ConversationError, boundary
from mac_runner.section import IDENTITY, Listed, Text
from mac_runner.spec import ENVIRONMENT_KEY
from mac_runner.types import JsonValue, Reply, stable_hash

_LIBRARY: Final = "pettingzoo"
VALUES_MAX: Final = 2_000
"""The largest observation that is written out."""
_RULES_CHARS_MAX: Final = 8_000
_FRONT_MATTER: Final = re.compile(r"\A\s*---\n.*?\n---\n", re.DOTALL)
_FIGURE: Final = re.compile(r"```\{figure\}.*?```\n?|<[^>\n]{1,300}>", re.DOTALL)
_HISTORY: Final = re.compile(r"^#+ *Version History.*\Z", re.DOTALL | re.MULTILINE)


def is_in_library(game: str) -> bool:
    """Whether a game is one of PettingZoo's own modules."""
    try:
        return find_spec(f"{_LIBRARY}.{game}") is not None
    except ModuleNotFoundError:
        return False


@cache
def module_of(game: str) -> Any:
    """The module of a game: one of PettingZoo's, or any other. Raises ConfigError where it has no `env()`."""
    what = f"pettingzoo:{game} cannot be imported"
    with boundary(ConfigError, what), OwnChance(0), quiet():
        module = import_module(_full_name(game))
    if not callable(getattr(module, "env", None)):
        raise ConfigError(
            f"pettingzoo:{game}: the module {module.__name__} has no function env(); "
            "name a module with PettingZoo's AEC interface",
            key=ENVIRONMENT_KEY,
        )
    return module


def begun(game: str, arguments: Mapping[str, JsonValue], seed: int, chance: OwnChance) -> Any:
    """A game before its first move. Raises ConfigError where it cannot begin."""
    module = module_of(game)
    with boundary(ConfigError, f"pettingzoo:{game} cannot begin"), chance:
        env = module.env(**arguments)
        env.reset(seed=seed % NUMPY_SEEDS)
    return env


def rules_of(env: Any) -> str:
    """The documentation of a game: of its module or of its class, whichever says more."""
    kind = type(env.unwrapped)
    found = max(kind.__dict__.get("__doc__") or "", sys.modules[kind.__module__].__doc__ or "", key=len)
    text = _HISTORY.sub("", _FIGURE.sub("", _FRONT_MATTER.sub("", found)))
    return re.sub(r"\n{3,}", "\n\n", text).strip()[:_RULES_CHARS_MAX]


def in_words(observation: Any) -> str | None:
    """An observation as text, without its action mask; None where it is too large for that."""
    if isinstance(observation, Mapping):
        parts = [(str(name), in_words(value)) for name, value in observation.items() if name != "action_mask"]
        if any(words is None for _, words in parts):
            return None
        return parts[0][1] if len(parts) == 1 else "\n".join(f"{name}: {words}" for name, words in parts)
    if isinstance(observation, str):
        return observation
    if hasattr(observation, "tolist"):
        if observation.size > VALUES_MAX:
            return None
        observation = observation.tolist()
    return _rows(observation)


def _rows(value: Any) -> str:
    """Numbers row by row: a list of lists has each list on a line of its own."""
    if isinstance(value, list | tuple):
        are_rows = any(isinstance(row, list | tuple) for row in value)
        return ("\n" if are_rows else " ").join(_row(row) if are_rows else _number(row) for row in value)
    return _number(value)


def _row(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(f"({_row(one)})" if isinstance(one, list | tuple) else _number(one) for one in value)
    return _number(value)


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _full_name(game: str) -> str:
    return f"{_LIBRARY}.{game}" if is_in_library(game) else game


_CHOICES_MAX: Final = 500
"""To how many actions an engine is held; a game with more legal ones leaves the reply free."""
_DEAD_STEPS_MAX: Final = 10_000


class PettingzooConfig(AdapterConfig):
    """A game with the AEC interface of PettingZoo."""

    rules: Annotated[Text | None, IDENTITY] = None
    """The system message; without it, the documentation that the game has in its source."""
    show: Annotated[Literal["observation", "render"], IDENTITY] = "observation"
    """What a player sees: its observation as numbers, or the whole game as the game itself draws it in text."""
    action_names: Annotated[Listed[Text], IDENTITY] = ()
    """A name for each action, in the order of their numbers; without them actions go by their numbers."""


def opener_of(game: str, settings: PettingzooConfig) -> Opener:
    """What begins a game. Raises ConfigError where there is no such module."""
    module_of(game)

    def open_game(players: int, seed: int) -> PettingzooGame:
        return PettingzooGame(game, settings, players, seed)

    return open_game


class PettingzooGame:
    """One game, from the library's `reset` until no agent is left."""

    def __init__(self, game: str, settings: PettingzooConfig, players: int, seed: int) -> None:
        self._name = game
        self._settings = settings
        self._seed = seed
        self._moves = 0
        self._chance = OwnChance(seed)
        self._env = begun(game, _arguments(settings), seed, self._chance)
        self._agents: list[Any] = list(self._env.possible_agents)
        if len(self._agents) != players:
            names = ", ".join(map(str, self._agents))
            text = f"there are {players}; pettingzoo:{game} is played by {len(self._agents)} ({names})"
            raise ConfigError.at(("agent_definitions",), text)
        self._rules = settings.rules or rules_of(self._env)
        self._rewards = dict.fromkeys(range(players), 0.0)
        self._cut: set[int] = set()
        self._heard: list[Heard] = []
        self._legal: tuple[int, ...] = ()
        self._seen = ""
        self._asked: Asked | None = None
        self._advance()

    @property
    def asked(self) -> Asked | None:
        """The agent to act, and what it sees."""
        return self._asked

    def play(self, said: str, *, may_correct: bool) -> Move:
        """Take the action that the words name; any legal one where they name none and may not be corrected."""
        action = self._read(said)
        if not isinstance(action, Problem):
            return self._take(action)
        if not may_correct:
            return self._take(self._any_legal(), refusal=action.reason)
        self._ask(note=f"\n\nYour last reply could not be used: {action.reason}. Try again.")
        return Move(action.reason, refusal=action.reason, is_asked_again=True)

    def play_default(self) -> Move:
        """Any legal action."""
        return self._take(self._any_legal())

    def heard(self) -> list[Heard]:
        """What agents saw and did since the last call."""
        taken, self._heard = self._heard, []
        return taken

    def result(self) -> Result:
        """The sum of each agent's rewards."""
        with self._chance:
            self._env.close()
        reason = "the game has ended" if self._asked is None else "the limit of moves"
        if self._cut:
            reason = "the game was truncated by its own limit"
        return Result(rewards=self._rewards, reason=reason, more={}, by_player={})

    def _advance(self) -> None:
        """On to the next agent that can act; agents that are done are taken out, as the interface wants it."""
        self._asked = None
        with self._chance:
            for _ in range(_DEAD_STEPS_MAX):
                if not self._env.agents:
                    return
                observation, reward, is_over, is_cut, info = self._env.last()
                player = self._agents.index(self._env.agent_selection)
                self._rewards[player] += float(reward)
                if is_cut:
                    self._cut.add(player)
                if not is_over and not is_cut:
                    self._see(player, observation, info)
                    return
                self._env.step(None)
        raise ConversationError(f"{self._name}: more than {_DEAD_STEPS_MAX} steps of agents that are done")

    def _see(self, player: int, observation: Any, info: Mapping[str, Any]) -> None:
        agent = self._agents[player]
        space = self._env.action_space(agent)
        if type(space).__name__ != "Discrete":
            raise ConfigError(
                f"pettingzoo:{self._name}: the actions of {agent} are {space}; only numbered actions (Discrete) "
                "can be chosen in words",
                key=ENVIRONMENT_KEY,
            )
        first, count = int(space.start), int(space.n)
        mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
        mask = info.get("action_mask") if mask is None else mask
        allowed = range(count) if mask is None else [place for place in range(count) if mask[place]]
        self._legal = tuple(first + place for place in allowed)
        names = self._settings.action_names
        if names and len(names) != count:
            raise ConfigError.at(("settings", "action_names"), f"there are {len(names)}; {agent} has {count} actions")
        self._first = first
        self._seen = self._shown(observation)
        self._heard.append(Heard(self._seen, frozenset((player,)), None, "observation"))
        self._player = player
        self._ask()

    def _shown(self, observation: Any) -> str:
        if self._settings.show == "render":
            drawn = self._env.render()
            if not isinstance(drawn, str):
                modes = self._env.metadata.get("render_modes")
                text = f"pettingzoo:{self._name} draws nothing in text (its render modes are {modes})"
                raise ConfigError.at(("settings", "show"), f"{text}; write observation")
            return drawn.rstrip()
        words = in_words(observation)
        if words is None:
            raise ConfigError(
                f"pettingzoo:{self._name}: its observations have more than {VALUES_MAX} numbers, too many for a "
                "prompt; where the game draws itself in text (render mode `ansi`), write `settings: {show: render}`",
                key=ENVIRONMENT_KEY,
            )
        return words

    def _ask(self, note: str = "") -> None:
        options = tuple(map(self._named, self._legal))
        agent, reward = self._agents[self._player], self._rewards[self._player]
        self._asked = Asked(
            player=self._player,
            rules=f"{self._rules}\n\nYou are {agent}.".strip(),
            text=f"Your rewards so far: {reward:g}\nYou see:\n{self._seen}\n\nLegal actions: {', '.join(options)}\n"
            f"Reply with exactly one of them.{note}",
            options=options,
            choices=options if len(options) <= _CHOICES_MAX else None,
        )

    def _named(self, action: int) -> str:
        names: Sequence[str] = self._settings.action_names
        return names[action - self._first] if names else str(action)

    def _read(self, said: str) -> int | Problem:
        """The legal action that is named, by its name or its number."""
        if said.strip().isdecimal() and int(said) in self._legal:
            return int(said)
        by_name = {self._named(action): action for action in self._legal}
        found = read_answer(Ask("", "", choices=tuple(by_name)), Reply(text=said))
        return found if isinstance(found, Problem) else by_name[found]

    def _any_legal(self) -> int:
        return Random(stable_hash(self._seed, "default", self._moves)).choice(self._legal)  # noqa: S311 - a game

    def _take(self, action: int, refusal: str | None = None) -> Move:
        name = self._named(action)
        self._moves += 1
        self._heard.append(Heard(name, frozenset((self._player,)), self._player, "action"))
        try:
            with self._chance:
                self._env.step(action)
            self._advance()
        except ConfigError as fault:  # What was right at the start no longer is: this game ends, not the run.
            raise ConversationError(str(fault)) from fault
        return Move(name, refusal=refusal)


def _arguments(settings: PettingzooConfig) -> dict[str, JsonValue]:
    arguments = dict(settings.arguments)
    return arguments if settings.show == "observation" else {"render_mode": "ansi", **arguments}
