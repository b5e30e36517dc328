"""`game.pairings`: a tournament as a grid of castings, and its design as a table.

Each pair is played twice: one definition has the Mafia and the other the Town, and the other way round. Both play the
same deals, so each of them has every seat, name and role of a deal once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from mac_runner.config import AgentDefinition, Experiment, identity_of
from mac_runner.environments.town_of_salem.casting import EVERYBODY, keys_of, neutral_line, possible_seats
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.rules.lobbies import plain, role_list
from mac_runner.environments.town_of_salem.settings import Cast, GameConfig, GamePairings
from mac_runner.errors import ConfigError
from mac_runner.problems import Problem, suggestion
from mac_runner.registry import Planned, Variant
from mac_runner.results import Table
from mac_runner.section import KeyPath
from mac_runner.types import JsonValue

MAFIA, TOWN, NEUTRAL = Faction.MAFIA.value, Faction.TOWN.value, Faction.NEUTRAL.value
_SIDES = (MAFIA, TOWN, NEUTRAL)
_KEY: KeyPath = ("game", "pairings")


class Pair(NamedTuple):
    """Which definition plays which side."""

    mafia: str
    town: str


def pairs_of(pairings: GamePairings, ids: Sequence[str]) -> list[Pair]:
    """The pairs in the order in which they are played."""
    if pairings.versus_baseline is not None:
        baseline = pairings.versus_baseline.baseline
        return [
            pair
            for other in pairings.versus_baseline.against
            for pair in (Pair(other, baseline), Pair(baseline, other))
        ]
    return [Pair(*pair) for pair in permutations(_entrants(pairings, ids), 2)]


def _entrants(pairings: GamePairings, ids: Sequence[str]) -> Sequence[str]:
    return tuple(ids) if pairings.round_robin == "all" else pairings.round_robin or ()


def variants(experiment: Experiment, game: GameConfig) -> Iterator[Variant]:
    """One experiment for each pair; its casting is all that it has of the tournament."""
    if (pairings := game.pairings) is None:
        return
    try:
        has_neutrals = NEUTRAL in _sides(role_list(game.lobby))
    except ConfigError:
        return  # The environment refuses the lobby itself, with its reason and its place in the file.
    for pair in pairs_of(pairings, [agent.agent_id for agent in experiment.agent_definitions]):
        casting: dict[str, JsonValue] = {MAFIA: pair.mafia, TOWN: pair.town}
        if has_neutrals:
            casting[NEUTRAL] = casting.get(pairings.neutral, pairings.neutral)
        yield Variant(
            key=_KEY,
            values={MAFIA: pair.mafia, TOWN: pair.town},
            settings={_KEY: None, ("game", "casting"): casting},
        )


def pairing_problems(experiment: Experiment, game: GameConfig, pairings: GamePairings) -> Iterator[Problem]:
    """What is wrong with a tournament."""
    ids = [agent.agent_id for agent in experiment.agent_definitions]
    for key, value in (("seats", game.seats), ("casting", game.casting)):
        if value is not None:
            yield Problem(_KEY, f"is given beside game.{key}, and both say who plays; leave one of the two out")
    yield from _neutral(game, pairings, ids)
    wrong = [*_wrong_names(pairings, ids)]
    yield from wrong
    if not wrong:
        yield from _equal(experiment, pairs_of(pairings, ids))


def _wrong_names(pairings: GamePairings, ids: Sequence[str]) -> Iterator[Problem]:
    versus = pairings.versus_baseline
    if (pairings.round_robin is None) == (versus is None):
        yield Problem(_KEY, "needs one of the keys round_robin and versus_baseline, to say who meets whom")
        return
    if versus is None:
        path: KeyPath = (*_KEY, "round_robin")
        entrants = _entrants(pairings, ids)
        if len(set(entrants)) < 2:
            text = f"names {len(set(entrants))} agent definition{'s'[: len(set(entrants)) != 1]}"
            yield Problem(path, f"{text}; a tournament needs two at least")
    else:
        path, entrants = (*_KEY, "versus_baseline", "against"), versus.against
        if versus.baseline not in ids:
            text = f"there is no agent {versus.baseline!r}{suggestion(versus.baseline, ids)}"
            yield Problem((*_KEY, "versus_baseline", "baseline"), text)
    for place, name in enumerate(entrants):
        if name not in ids:
            yield Problem((*path, place), f"there is no agent {name!r}{suggestion(name, ids)}")
        elif name in entrants[:place]:
            yield Problem((*path, place), f"{name!r} is listed twice; each is entered once")
        elif versus is not None and name == versus.baseline:
            yield Problem((*path, place), f"{name!r} is the baseline itself; leave it out")


def _neutral(game: GameConfig, pairings: GamePairings, ids: Sequence[str]) -> Iterator[Problem]:
    """Sides that a lobby may not deal, and a player of neutral roles who is unknown or has none."""
    path = (*_KEY, "neutral")
    if pairings.neutral not in (known := (TOWN, MAFIA, *ids)):
        yield Problem(path, f"is no side and no agent: {pairings.neutral!r}{suggestion(pairings.neutral, known)}")
    try:
        slots = role_list(game.lobby)
    except ConfigError:
        return  # The environment refuses the lobby itself, with its reason.
    for side in (MAFIA, TOWN):
        if not any(_sides([slot]) == {side} for slot in slots):
            yield Problem(
                _KEY, f"needs a lobby whose every deal has a role of the side {side!r}; name one in game.lobby"
            )
    if pairings.neutral in (MAFIA, *ids) and NEUTRAL not in _sides(slots):
        yield Problem(path, "casts nobody: no deal of this lobby holds a neutral role; leave it out")


def _sides(slots: Sequence[str]) -> set[str]:
    """The sides that a deal of these slots may hold."""
    return {keys_of(slot, role)[-2] for slot, role in possible_seats(slots)}


def _equal(experiment: Experiment, pairs: Sequence[Pair]) -> Iterator[Problem]:
    """Pairs whose definitions differ in their names alone."""
    agents = {agent.agent_id: agent for agent in experiment.agent_definitions}
    # An unknown model is refused elsewhere.
    known = {name: agent for name, agent in agents.items() if agent.model in experiment.model_definitions}
    players = {name: _player(experiment, agent) for name, agent in known.items()}
    for one, other in dict.fromkeys(tuple(sorted(pair)) for pair in pairs):
        if one in players and players[one] == players.get(other):
            text = f"{one!r} and {other!r} differ in their names alone, so their games would compare nothing"
            yield Problem(_KEY, f"{text}; give one of them another model, persona or sampling, or leave it out")


def _player(experiment: Experiment, agent: AgentDefinition) -> str:
    """A digest of all that decides how an agent plays: the identity of an experiment of it alone."""
    alone = {
        "agent_definitions": (agent.model_copy(update={"agent_id": "player", "model": "model"}),),
        "model_definitions": {"model": experiment.model_definitions[agent.model]},
    }
    return identity_of(experiment.model_copy(update=alone))


def design(planned: Sequence[Planned]) -> Iterator[Table | str]:
    """Who plays what in which games, as far as castings say so, and whether that is balanced."""
    given = (one.experiment.settings_as(GameConfig).casting or {} for one in planned)
    castings = [{plain(key): value for key, value in casting.items()} for casting in given]
    if not any(castings):
        return
    keys = sorted({key for casting in castings for key in casting}, key=_place)
    others = [name for name in dict.fromkeys(name for one in planned for name in one.values) if name not in keys]
    rows = [
        (
            *(_words(one.values.get(name)) for name in others),
            *(_words(casting.get(key)) for key in keys),
            _deals(one),
            f"{len(one.indexes):,}",
        )
        for one, casting in zip(planned, castings, strict=True)
    ]
    yield Table("design: who plays what", (*others, *keys, "deals (seed: games)"), ("games",), rows)
    yield "\n".join(_balance(planned, castings))


def _place(key: str) -> tuple[int, str]:
    """Factions first, as in `mafia plays town`."""
    return (_SIDES.index(key) if key in _SIDES else len(_SIDES), key)


def _words(value: JsonValue | Cast) -> str:
    """A cell: several definitions take turns."""
    if isinstance(value, list | tuple):
        return " / ".join(map(str, value))
    return "–" if value is None else str(value)


def _deals(one: Planned) -> str:
    """The seed of an experiment, and the numbers of its games."""
    indexes = one.indexes
    if len(indexes) < 3:
        numbers = ", ".join(map(str, indexes))
    elif (step := indexes[1] - indexes[0]) == 1:
        numbers = f"{indexes[0]}–{indexes[-1]}"
    else:
        numbers = f"{indexes[0]}, {indexes[0] + step}, … {indexes[-1]}"
    return f"{one.experiment.seed}: {numbers or 'none'}"


def _balance(planned: Sequence[Planned], castings: Sequence[Mapping[str, Cast]]) -> Iterator[str]:
    """Whether each definition has what its opponents have, counted over the experiments themselves."""
    games: dict[str, Counter[str]] = {}
    legs: dict[str, Counter[Pair]] = {}
    for one, casting in zip(planned, castings, strict=True):
        mafia, town = (casting.get(side, casting.get(EVERYBODY)) for side in (MAFIA, TOWN))
        if not isinstance(mafia, str) or not isinstance(town, str) or casting.keys() - {*_SIDES, EVERYBODY}:
            yield "balance: not every experiment casts one definition as the Mafia and one as the Town"
            return
        for name, side in ((mafia, MAFIA), (town, TOWN)):
            games.setdefault(name, Counter())[side] += len(one.indexes)
        legs.setdefault(_setting(one), Counter())[Pair(mafia, town)] += 1
    for name, counts in games.items():
        yield f"{name}: {counts[MAFIA]:,} games as the Mafia, {counts[TOWN]:,} as the Town"
    single = [pair for met in legs.values() for pair in met if met[pair] != met[Pair(pair.town, pair.mafia)]]
    if single:
        pairs = ", ".join(f"{pair.mafia} as the Mafia against {pair.town}" for pair in dict.fromkeys(single))
        yield f"not balanced: no return with sides changed for {pairs}; game.pairings plays both sides"
    else:
        yield (
            "balanced: each pair plays every deal on both sides, so the two of them have each of its seats, names and "
            "roles equally often"
        )
    if casts := [*_casts(planned, castings)]:
        yield neutral_line(casts)


def _casts(planned: Sequence[Planned], castings: Sequence[Mapping[str, Cast]]) -> Iterator[dict[str, str | None]]:
    """The player of each side in the experiments whose lobby may deal a neutral role."""
    for one, casting in zip(planned, castings, strict=True):
        if NEUTRAL in _sides(role_list(one.experiment.settings_as(GameConfig).lobby)):
            players = {side: casting.get(side, casting.get(EVERYBODY)) for side in _SIDES}
            yield {side: player if isinstance(player, str) else None for side, player in players.items()}


def _setting(one: Planned) -> str:
    """All but the players: experiments with the same setting have the same deals under the same rules."""
    game = one.experiment.settings_as(GameConfig).model_copy(update={"casting": None})
    values = {name: value for name, value in one.values.items() if name not in (MAFIA, TOWN)}
    return repr((one.experiment.seed, _deals(one), len(one.indexes), values, game.model_dump_json()))
