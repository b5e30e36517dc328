"""Who plays what: `game.seats`, `game.casting`, and `game.pairings`, a tournament as a grid of castings.

A key of a casting names seats by what was dealt to them: a role, a slot of the role list, an alignment, a faction, or
`*` for all. Where several keys name a seat, the most specific one decides, in this order. A definition plays all seats
of its key; a list of them takes turns from game to game.

Each pair of a tournament is played twice: one definition has the Mafia and the other the Town, and the other way round.
Both play the same deals, so each of them has every seat, name and role of a deal once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, permutations
from typing import NamedTuple

from mac_runner.config import Experiment, identity_of
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.catalogue import catalogue_of
from mac_runner.environments.town_of_salem.rules.lobbies import deal, plain, role_list, roles_of
from mac_runner.environments.town_of_salem.settings import Cast, GameConfig, GamePairings
from mac_runner.errors import ConfigError
from mac_runner.problems import Problem, dotted, suggestion
from mac_runner.registry import Planned, Variant
from mac_runner.results import Table
from mac_runner.section import KeyPath
from mac_runner.types import JsonValue

EVERYBODY = "*"
"""The key of all seats that no other key names."""
MAFIA, TOWN, NEUTRAL = Faction.MAFIA.value, Faction.TOWN.value, Faction.NEUTRAL.value
_SIDES = (MAFIA, TOWN, NEUTRAL)
_CASTING: KeyPath = ("game", "casting")
_PAIRINGS: KeyPath = ("game", "pairings")

SeatKeys = tuple[str, str, str, str, str]
"""The keys that name a seat, the most specific one first: role, slot, alignment, side, `*`."""


def keys_of(slot: str, role_id: str) -> SeatKeys:
    """The keys of a seat whose slot became a role."""
    role = ROLES[role_id]
    # Vampires are neutrals too.
    side = role.faction.value if role.faction in (Faction.TOWN, Faction.MAFIA) else NEUTRAL
    return (role_id, slot, role.alignment.value, side, EVERYBODY)


def _possible_seats(slots: Sequence[str]) -> list[SeatKeys]:
    """The keys of every slot with each role that a deal may put there, once each."""
    seats = (
        keys_of(slot, role)
        for slot in slots
        for role in roles_of(slot)
        # A random slot cannot become a unique role that has a slot of its own.
        if slot == role or role not in slots or not ROLES[role].is_unique
    )
    return list(dict.fromkeys(seats))


def _seats_of(game: GameConfig) -> list[SeatKeys]:
    """The possible seats of a game; [] where the environment refuses its lobby or its roles, with its reason."""
    try:
        with catalogue_of(game.roles).in_force():
            return _possible_seats(role_list(game.lobby))
    except ConfigError:
        return []


def _sides(seats: Iterable[SeatKeys]) -> set[str]:
    return {side for _role, _slot, _alignment, side, _all in seats}


def _definitions(cast: Cast) -> tuple[str, ...]:
    return (cast,) if isinstance(cast, str) else cast


def cast_names(casting: Mapping[str, Cast]) -> frozenset[str]:
    """The agent definitions that a casting names."""
    return frozenset(name for cast in casting.values() for name in _definitions(cast))


class Casting:
    """Who plays what, in each game."""

    def __init__(self, casting: Mapping[str, Cast], slots: Sequence[str]) -> None:
        """`casting` has none of the problems that a file is refused for.

        Raises ConfigError for seats that nobody is cast for, and for keys that cast nobody. A file cannot be refused
        for them: a run that goes on has the roles that it began with.
        """
        for path, text in _uncast(casting, _possible_seats(slots)):
            raise ConfigError(f"{dotted(path)}: {text}", key=path)
        # In an order of their own: that of the file does not belong to a run's identity.
        self._pools = dict(sorted((plain(key), _definitions(cast)) for key, cast in casting.items()))
        self._slots = tuple(slots)

    def definitions(self, index: int, seed: int) -> tuple[str, ...]:
        """The agent definition of each slot in the game with this index and seed.

        Several lists go through all their combinations, so that each definition of one meets each of another.
        """
        chosen: dict[str, str] = {}
        for key, pool in self._pools.items():
            index, place = divmod(index, len(pool))
            chosen[key] = pool[place]
        return tuple(
            chosen[next(key for key in keys_of(slot, role) if key in chosen)]
            for slot, role in zip(self._slots, deal(self._slots, seed), strict=True)
        )


def _uncast(casting: Mapping[str, Cast], seats: Sequence[SeatKeys]) -> Iterator[Problem]:
    """Seats that no key names, and keys whose seats all have a more specific one."""
    words = {plain(key): key for key in casting}
    deciding = [next((key for key in keys if key in words), None) for keys in seats]
    missing = dict.fromkeys(
        f"{ROLES[role].name} ({side})"
        for (role, _, _, side, _), key in zip(seats, deciding, strict=True)
        if key is None
    )
    if missing:
        text = f"nobody is cast for {', '.join(missing)}; add a key for it, or '{EVERYBODY}' for all that are left"
        yield Problem(_CASTING, text)
    for word, key in words.items():
        if word not in deciding:
            others = [words[other] for keys, other in zip(seats, deciding, strict=True) if other and word in keys]
            text = f"casts nobody: all its seats have a more specific key ({', '.join(dict.fromkeys(others))})"
            yield Problem((*_CASTING, key), f"{text}; leave it out")


def casting_problems(experiment: Experiment, game: GameConfig) -> Iterator[Problem]:
    """What is wrong with who plays what, as far as a file is refused for it."""
    ids = tuple(dict.fromkeys(agent.agent_id for agent in experiment.agent_definitions))
    for name in game.seats or ():
        yield from _unknown(("game", "seats", name), name, ids)
    if game.casting is not None:
        yield from _casting(game, game.casting, ids)
    if game.pairings is not None:
        yield from _pairings(experiment, game, game.pairings, ids)


def _unknown(path: KeyPath, name: str, ids: Sequence[str]) -> Iterator[Problem]:
    if name not in ids:
        yield Problem(path, f"there is no agent {name!r}{suggestion(name, ids)}")


def _beside(path: KeyPath, key: str) -> Problem:
    return Problem(path, f"is given beside game.{key}, and both say who plays; leave one of the two out")


def _casting(game: GameConfig, casting: Mapping[str, Cast], ids: Sequence[str]) -> Iterator[Problem]:
    """Unknown players, keys that name no seat, and those that name the same seats as another."""
    for key, cast in casting.items():
        for place, name in enumerate(_definitions(cast)):
            yield from _unknown((*_CASTING, key) if isinstance(cast, str) else (*_CASTING, key, place), name, ids)
    if game.seats is not None:
        yield _beside(_CASTING, "seats")
        return
    if not (known := {key for keys in _seats_of(game) for key in keys}):
        return
    spelled: dict[str, str] = {}
    for key in casting:
        word = plain(key)
        if word in spelled:
            text = f"names the same seats as the key {spelled[word]!r}, and neither is more specific; leave one out"
            yield Problem((*_CASTING, key), text)
        elif word not in known:
            yield Problem((*_CASTING, key), f"{_why_unknown(word)}{suggestion(word, known)}")
        spelled.setdefault(word, key)


def _why_unknown(word: str) -> str:
    if word in ROLES:
        return f"no deal of this lobby holds the role {ROLES[word].name}"
    if word in _SIDES:
        return f"no deal of this lobby holds a role of the faction {word!r}"
    if word in {role.alignment.value for role in ROLES.values()}:
        return f"no deal of this lobby holds a role of the alignment {word!r}"
    return "is no role, slot, alignment or faction of this lobby, nor '*'"


class Pair(NamedTuple):
    """Which definition plays which side."""

    mafia: str
    town: str


def _pairs(pairings: GamePairings, ids: Sequence[str]) -> list[Pair]:
    """The pairs in the order in which they are played."""
    if (versus := pairings.versus_baseline) is None:
        return [Pair(*pair) for pair in permutations(_of_round_robin(pairings, ids), 2)]
    return [pair for other in versus.against for pair in (Pair(other, versus.baseline), Pair(versus.baseline, other))]


def _of_round_robin(pairings: GamePairings, ids: Sequence[str]) -> Sequence[str]:
    return ids if pairings.round_robin == "all" else pairings.round_robin or ()


def variants(experiment: Experiment, game: GameConfig) -> Iterator[Variant]:
    """One experiment for each pair of a tournament; its casting is all that it has of it."""
    if (pairings := game.pairings) is None or not (seats := _seats_of(game)):
        return
    for pair in _pairs(pairings, [agent.agent_id for agent in experiment.agent_definitions]):
        values: dict[str, JsonValue] = {MAFIA: pair.mafia, TOWN: pair.town}
        neutral = {NEUTRAL: values.get(pairings.neutral, pairings.neutral)} if NEUTRAL in _sides(seats) else {}
        yield Variant(key=_PAIRINGS, values=values, settings={_PAIRINGS: None, _CASTING: {**values, **neutral}})


def _pairings(
    experiment: Experiment, game: GameConfig, pairings: GamePairings, ids: Sequence[str]
) -> Iterator[Problem]:
    if game.seats is not None:
        yield _beside(_PAIRINGS, "seats")
    if game.casting is not None:
        yield _beside(_PAIRINGS, "casting")
    path, neutral = (*_PAIRINGS, "neutral"), pairings.neutral
    if neutral not in (known := (TOWN, MAFIA, *ids)):
        yield Problem(path, f"is no side and no agent: {neutral!r}{suggestion(neutral, known)}")
    if seats := _seats_of(game):
        by_slot = [_sides(found) for _, found in groupby(seats, key=lambda keys: keys[1])]
        for side in (MAFIA, TOWN):
            if {side} not in by_slot:
                text = f"needs a lobby whose every deal has a role of the side {side!r}; name one in game.lobby"
                yield Problem(_PAIRINGS, text)
        if neutral in (MAFIA, *ids) and NEUTRAL not in _sides(seats):
            yield Problem(path, "casts nobody: no deal of this lobby holds a neutral role; leave it out")
    wrong = [*_wrong_entrants(pairings, ids)]
    yield from wrong or _alike(experiment, _pairs(pairings, ids))


def _wrong_entrants(pairings: GamePairings, ids: Sequence[str]) -> Iterator[Problem]:
    versus = pairings.versus_baseline
    if (pairings.round_robin is None) == (versus is None):
        yield Problem(_PAIRINGS, "needs one of the keys round_robin and versus_baseline, to say who meets whom")
        return
    path: KeyPath
    if versus is None:
        path, entrants = (*_PAIRINGS, "round_robin"), _of_round_robin(pairings, ids)
        if (count := len(set(entrants))) < 2:
            yield Problem(path, f"names {count} agent definition{'s'[: count != 1]}; a tournament needs two at least")
    else:
        path, entrants = (*_PAIRINGS, "versus_baseline", "against"), versus.against
        yield from _unknown((*_PAIRINGS, "versus_baseline", "baseline"), versus.baseline, ids)
    for place, name in enumerate(entrants):
        if name not in ids:
            yield from _unknown((*path, place), name, ids)
        elif name in entrants[:place]:
            yield Problem((*path, place), f"{name!r} is listed twice; each is entered once")
        elif versus is not None and name == versus.baseline:
            yield Problem((*path, place), f"{name!r} is the baseline itself; leave it out")


def _alike(experiment: Experiment, pairs: Iterable[Pair]) -> Iterator[Problem]:
    """Pairs whose definitions differ in their names alone."""
    players: dict[str, str] = {}
    for agent in experiment.agent_definitions:
        # An unknown model is refused elsewhere.
        if (model := experiment.model_definitions.get(agent.model)) is not None:
            # All that decides how an agent plays: the identity of an experiment of it alone.
            definition = agent.model_copy(update={"agent_id": "player", "model": "model"})
            alone = {"agent_definitions": (definition,), "model_definitions": {"model": model}}
            players[agent.agent_id] = identity_of(experiment.model_copy(update=alone))
    for one, other in dict.fromkeys(tuple(sorted(pair)) for pair in pairs):
        if one in players and players[one] == players.get(other):
            text = f"{one!r} and {other!r} differ in their names alone, so their games would compare nothing"
            yield Problem(_PAIRINGS, f"{text}; give one of them another model, persona or sampling, or leave it out")


def design(planned: Sequence[Planned]) -> Iterator[Table | str]:
    """Who plays what in which games, as far as castings say so, and whether that is balanced."""
    given = (one.experiment.settings_as(GameConfig).casting or {} for one in planned)
    castings = [{plain(key): value for key, value in casting.items()} for casting in given]
    if not any(castings):
        return
    named = {key for casting in castings for key in casting}
    # Factions first, as in `mafia plays town`.
    keys = [*(side for side in _SIDES if side in named), *sorted(named.difference(_SIDES))]
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
    casts: list[Mapping[str, str | None]] = []
    for one, casting in zip(planned, castings, strict=True):
        game = one.experiment.settings_as(GameConfig)
        cast = {side: casting.get(side, casting.get(EVERYBODY)) for side in _SIDES}
        mafia, town = cast[MAFIA], cast[TOWN]
        if not isinstance(mafia, str) or not isinstance(town, str) or casting.keys() - {*_SIDES, EVERYBODY}:
            yield "balance: not every experiment casts one definition as the Mafia and one as the Town"
            return
        for name, side in ((mafia, MAFIA), (town, TOWN)):
            games.setdefault(name, Counter())[side] += len(one.indexes)
        # Experiments that differ in their players alone have the same deals under the same rules.
        values = {name: value for name, value in one.values.items() if name not in (MAFIA, TOWN)}
        rules = game.model_copy(update={"casting": None}).model_dump_json()
        setting = repr((one.experiment.seed, _deals(one), len(one.indexes), values, rules))
        legs.setdefault(setting, Counter())[Pair(mafia, town)] += 1
        if NEUTRAL in _sides(_seats_of(game)):
            casts.append({side: player if isinstance(player, str) else None for side, player in cast.items()})
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
    if casts:
        yield neutral_line(casts)


def neutral_line(casts: Sequence[Mapping[str, str | None]]) -> str:
    """Who plays the neutral roles, where `casts` have the players of each side; None is of several players."""
    found = {cast[NEUTRAL] for cast in casts}
    if len(found) == 1 and None not in found:
        return f"neutral roles: played by {found.pop()} in all games"
    for side, name in ((TOWN, "Town"), (MAFIA, "Mafia")):
        if None not in found and all(cast[NEUTRAL] == cast.get(side) for cast in casts):
            return (
                f"neutral roles: played by the player of the {name}, so they are a part of its differences; "
                "game.pairings.neutral can name another"
            )
    return "neutral roles: not played by the same player in all games, and not by that of one side"
