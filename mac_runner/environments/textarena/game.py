"""One game of TextArena as the adapter plays it.

The library keeps what each player has yet to read in `state.observations`, and all messages in `state.logs`. Both are
read after each move, so that the record has each message with the players it was for. An invalid move is noted where
the library counts it (`state.set_invalid_move`); what follows it is the library's own decision.

The library TextArena: its list of games, and how one is set up without network, downloads and output.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

from mac_runner.environments.adapters.chance import NUMPY_SEEDS, OwnChance
from mac_runner.environments.adapters.environment import Opener, quiet
from mac_runner.environments.adapters.game import Asked, Heard, Move, Result
from mac_runner.errors import ConfigError, ConversationError, boundary
from mac_runner.problems import suggestion
from mac_runner.spec import ENVIRONMENT_KEY
from mac_runner.types import JsonValue

_VERSIONED: Final = re.compile(r"(.+?)-v(\d+)")
_PLAYERS_MAX: Final = 20


def full_name(game: str) -> str:
    """The name with its version: the newest where none is written. Raises ConfigError for an unknown one."""
    known = _registry()
    if game in known:
        return game
    named = [(match, name) for name in known if (match := _VERSIONED.match(name))]
    versions = [(int(match[2]), name) for match, name in named if match[1] == game and match.end() == len(name)]
    if versions:
        return max(versions)[1]
    plain = {match[1] for match, _ in named}
    base = game.partition("-")[0]
    variants = [name for match, name in named if match[1].casefold() == base.casefold()]
    raise ConfigError(
        f"conversation_config.environment: TextArena has no game {game!r}{suggestion(game, variants or plain)}",
        key=ENVIRONMENT_KEY,
    )


def check_arguments(name: str, arguments: Mapping[str, JsonValue]) -> None:
    """Raises ConfigError for a keyword argument that the game does not take."""
    parameters = inspect.signature(_class_of(name).__init__).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    taken = [key for key in parameters if key != "self"]
    for key in arguments:
        if key not in taken:
            allowed = suggestion(key, taken) or "; it takes none"
            raise ConfigError.at(("settings", "arguments", key), f"the game {name} has no such argument{allowed}")


def begun(name: str, arguments: Mapping[str, JsonValue], players: int, seed: int, chance: OwnChance) -> Any:
    """A game of the library before its first move. Raises ConfigError where it cannot be played."""
    _class_of(name)
    with boundary(ConfigError, f"textarena:{name} cannot be played"), chance, _offline():
        game = import_module("textarena").make(name, **arguments)
        game.reset(num_players=players, seed=seed % NUMPY_SEEDS)
    return game


def player_counts(name: str, arguments: Mapping[str, JsonValue]) -> list[int]:
    """For how many players the game begins."""
    return [players for players in range(1, _PLAYERS_MAX + 1) if _begins(name, arguments, players)]


def _begins(name: str, arguments: Mapping[str, JsonValue], players: int) -> bool:
    try:
        begun(name, arguments, players, 0, OwnChance(0))
    except ConfigError:
        return False
    return True


@cache
def _registry() -> Mapping[str, Any]:
    """The library's description of each of its games, by name."""
    with boundary(ConfigError, "the package textarena cannot be imported"), OwnChance(0), quiet():
        import_module("textarena")
        games: Mapping[str, Any] = import_module("textarena.envs.registration").ENV_REGISTRY
        return games


@cache
def _class_of(name: str) -> Any:
    """The class of a game, imported without downloads."""
    entry = _registry()[name].entry_point
    if not isinstance(entry, str):
        return entry
    module, _, attribute = entry.partition(":")
    what = f"textarena:{name} cannot be imported under Python {sys.version_info[0]}.{sys.version_info[1]}"
    with boundary(ConfigError, what), OwnChance(0), _offline(), quiet():
        found = getattr(import_module(module), attribute)
    _hush()
    return found


def _hush() -> None:
    """Take `print` from the library's games: standard output belongs to the command line."""
    for name, module in list(sys.modules.items()):
        if name.startswith("textarena.envs."):
            vars(module).setdefault("print", _say_nothing)


def _say_nothing(*_words: object, **_how: object) -> None:
    pass


@contextmanager
def _offline() -> Iterator[None]:
    """What a game may not do while it is set up: download data, or set up a model of its own to ask."""
    nltk: Any = import_module("nltk")
    agent = import_module("textarena").agents.OpenRouterAgent
    download, init = nltk.download, agent.__init__
    nltk.download, agent.__init__ = _find_data, _refuse_judge
    try:
        yield
    finally:
        nltk.download, agent.__init__ = download, init


def _find_data(names: str | list[str], **_how: object) -> bool:
    """In place of a download: whether the data is on this machine. Raises ConfigError with the command that gets it."""
    data = import_module("nltk").data
    for name in [names] if isinstance(names, str) else names:
        for folder in ("corpora", "taggers", "tokenizers"):
            try:
                data.find(f"{folder}/{name}")
            except LookupError:
                continue
            break
        else:
            raise ConfigError(
                f"the game needs the NLTK data {name!r}, which is not on this machine, and a run downloads nothing; "
                f"`python -m nltk.downloader {name}` gets it",
                key=ENVIRONMENT_KEY,
            )
    return True


def _refuse_judge(*_arguments: object, **_keywords: object) -> None:
    raise ConfigError(
        "the game asks a language model of its own over the network (OpenRouter), so a run of it could not be "
        "replayed; choose another game",
        key=ENVIRONMENT_KEY,
    )


_OPTION: Final = re.compile(r"\[[^\[\]\n]{1,60}\]")
_ROLE_TAG: Final = re.compile(r"\s*\[[^\[\]\n]{1,60}\] ?")
_PROMPT: Final = "prompt"
_LISTS_MOVES: Final = ("game_board", "game_message")
"""The kinds of message that name the moves a player has; others report moves that were made."""
_HEADING: Final = "The game so far:"
_NO_MOVE: Final = "an empty reply"
_REASON_CHARS_MAX: Final = 500


def opener_of(game: str, arguments: Mapping[str, JsonValue]) -> tuple[str, Opener]:
    """The full name of a game, and what begins it. Raises ConfigError for an unknown name or argument."""
    name = full_name(game)
    check_arguments(name, arguments)

    def open_game(players: int, seed: int) -> TextarenaGame:
        try:
            return TextarenaGame(name, arguments, players, seed)
        except ConfigError as fault:
            allowed = player_counts(name, arguments)
            if not allowed or players in allowed:
                raise
            text = f"there are {players}; {name} is played by {_listed(allowed)} agents"
            raise ConfigError.at(("agent_definitions",), text) from fault

    return name, open_game


class TextarenaGame:
    """One game, from the library's `reset` to its `close`."""

    def __init__(self, name: str, arguments: Mapping[str, JsonValue], players: int, seed: int) -> None:
        self._chance = OwnChance(seed)
        self._game = begun(name, arguments, players, seed, self._chance)
        self._state = _state_of(self._game)
        self._players = players
        self._rules: dict[int, str] = {}
        self._options: dict[int, list[str]] = {player: [] for player in range(players)}
        self._unread = dict.fromkeys(range(players), 0)
        self._logged = 0
        self._heard: list[Heard] = []
        self._refusals: list[tuple[str, bool]] = []
        if (noted := getattr(self._state, "set_invalid_move", None)) is not None:
            self._state.set_invalid_move = self._noting(noted)
        self._collect()
        with self._chance:
            shown = self._game.get_observation()
        self._asked: Asked | None = self._observed(*shown)

    @property
    def asked(self) -> Asked | None:
        """The player to move, the rules, and what the game shows it."""
        return self._asked

    def play(self, said: str, *, may_correct: bool) -> Move:
        """Hand the words to the game. Whether a refused player has another try is the game's decision."""
        del may_correct
        return self._step(said, said)

    def play_default(self) -> Move:
        """An empty reply: the game treats it by its own rules."""
        return self._step("", _NO_MOVE)

    def heard(self) -> list[Heard]:
        """The messages since the last call."""
        taken, self._heard = self._heard, []
        return taken

    def result(self) -> Result:
        """The library's rewards, and what it says of each player."""
        with self._chance:
            rewards, info = self._game.close()
        of_players = {player: each for player in range(self._players) if isinstance(each := info.get(player), dict)}
        roles = {player: str(each["role"]) for player, each in of_players.items() if each.get("role")}
        are_plain = all(role == f"Player {player}" for player, role in roles.items())
        reasons = [str(each["reason"]) for each in of_players.values() if each.get("reason")]
        return Result(
            rewards={int(player): self._number(player, reward) for player, reward in (rewards or {}).items()},
            reason=reasons[0][:_REASON_CHARS_MAX] if reasons else "",
            more={},
            by_player={} if are_plain else {"role": dict(roles)},
        )

    def _number(self, player: int, reward: object) -> float:
        """Some games hand the library a reason in the place of a reward. Raises ConversationError."""
        if isinstance(reward, str):
            raise ConversationError(
                f"the game gave player {player} the text {reward[:100]!r} as a reward, which is a fault of the game; "
                "its conversations fail where this happens"
            )
        return float(reward)  # type: ignore[arg-type]

    def _noting(self, set_invalid_move: Callable[..., Any]) -> Callable[..., Any]:
        """The library's own function, which notes the reason too, and whether the player is out."""

        def noted(*arguments: Any, **keywords: Any) -> Any:
            is_out = set_invalid_move(*arguments, **keywords)
            reason = keywords.get("reason") or (arguments[0] if arguments else "")
            self._refusals.append((str(reason)[:_REASON_CHARS_MAX], bool(is_out)))
            return is_out

        return noted

    def _step(self, said: str, detail: str) -> Move:
        assert self._asked is not None, "a move in a game that has ended"
        player = self._asked.player
        self._refusals.clear()
        options, self._options[player] = self._options[player], []
        with self._chance:
            is_done = bool(self._game.step(said)[0])
            self._collect()
            shown = None if is_done else self._game.get_observation()
        if self._refusals:
            self._options[player] = self._options[player] or options
        self._asked = asked = None if shown is None else self._observed(*shown)
        if not self._refusals:
            return Move(detail)
        reason, is_out = self._refusals[-1]
        goes_on = asked is not None and asked.player == player and not is_out
        return Move(detail, refusal=reason or "the move is invalid", is_asked_again=goes_on)

    def _observed(self, player: int, shown: Any) -> Asked:
        """Whose move it is, and what it reads. The library hands each message out once, and has just done so."""
        self._unread = {each: len(messages) for each, messages in self._inboxes().items()}
        text = shown if isinstance(shown, str) else "\n".join(f"[{sender}] {words}" for sender, words, *_ in shown)
        rules = self._rules.get(player, "")
        begins = text.find(rules) if rules else -1
        if begins >= 0 and not _ROLE_TAG.sub("", text[:begins], count=1).strip():
            text = text[begins + len(rules) :]
        options = tuple(dict.fromkeys(self._options[player]))
        return Asked(
            player=player,
            rules=rules or "Play the game.",
            text=f"{_HEADING}\n{text.strip()}".rstrip(),
            options=options,
        )

    def _inboxes(self) -> Mapping[int, list[Any]]:
        found = getattr(self._state, "observations", None)
        return found if isinstance(found, dict) else {}

    def _collect(self) -> None:
        """New messages, each with the players whose inboxes have it."""
        inboxes = self._inboxes()
        waiting = {player: list(inbox[self._unread.get(player, 0) :]) for player, inbox in inboxes.items()}
        self._unread = {player: len(inbox) for player, inbox in inboxes.items()}
        logs = getattr(self._state, "logs", [])
        for sender, words in logs[self._logged :]:
            got = [player for player, inbox in waiting.items() if inbox and tuple(inbox[0][:2]) == (sender, words)]
            if got:
                kind = waiting[got[0]][0][2]
                for player in got:
                    waiting[player].pop(0)
                self._hear(got, sender, words, kind)
        self._logged = len(logs)
        for player, inbox in waiting.items():
            for sender, words, *kind in inbox:
                self._hear([player], sender, words, kind[0] if kind else None)

    def _hear(self, players: list[int], sender: int, words: str, kind: Any) -> None:
        name = str(getattr(kind, "name", "message")).lower()
        said_by = sender if sender in self._unread else None
        text = str(words)
        self._heard.append(Heard(text=text, players=frozenset(players), sender=said_by, kind=name))
        for player in players:
            if name == _PROMPT:
                self._rules.setdefault(player, text)
            elif said_by is None and name in _LISTS_MOVES and (options := _OPTION.findall(text)):
                self._options[player] = options


def _state_of(game: Any) -> Any:
    """The state of a game inside its wrappers."""
    while "env" in vars(game):
        game = game.env
    return getattr(game, "state", None)


def _listed(counts: list[int]) -> str:
    if len(counts) > 2 and counts == list(range(counts[0], counts[-1] + 1)):
        return f"{counts[0]} to {counts[-1]}"
    return " or ".join(map(str, counts))
