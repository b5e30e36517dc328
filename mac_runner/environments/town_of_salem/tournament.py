"""Games of a grid compared: who won how often on which side, over the same deals, and how strong each player is.

A deal is what chance gave: the names and the roles at the table. Combinations of one seed play the same deals, so two
of them are compared deal by deal. Of each game only its deal and the sides that won are kept, nine bytes. Who plays a
side is read from the outcomes, by the role that was dealt; a side that several play has no player of its own.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

from mac_runner import ratings
from mac_runner.compared import Comparison, compare
from mac_runner.environments.town_of_salem.casting import neutral_line
from mac_runner.environments.town_of_salem.game import rate_report
from mac_runner.environments.town_of_salem.measures import Count, Game
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.intervals import ClusteredRate
from mac_runner.paired import Paired, PairedRow, in_words, p_text, paired_of, paired_row, paired_tables
from mac_runner.results import (
    DEFAULTS_HEAD,
    DEFAULTS_NOTE,
    RATE_HEADS,
    UNKNOWN,
    PlayedCombination,
    Table,
    count_text,
    ends,
    interval_text,
    number,
    objects,
    parsed,
    percent_text,
    rate_texts,
    section,
    with_defaults_column,
)
from mac_runner.types import JsonObject, JsonValue

_PAIRS_MAX: Final = 1_000
"""As many pairs of combinations are compared."""
_ALL_PAIRS_MAX: Final = 40
"""Of more combinations that differ in one thing, each is compared with the first alone."""
_SEED: Final = "seed"
"""The value that makes other deals and no other game; combinations that differ in it are taken together."""
_SIDES: Final = (Faction.MAFIA, Faction.TOWN)
"""The two sides that every lobby has, and that pairings are of."""
_BITS: Final[Mapping[str, int]] = {faction: 1 << place for place, faction in enumerate(Faction)}
_SEVERAL: Final = "several"
_GAMES: Final = "game"
_BOTH: Final = "both"
"""The games of two players on both sides, which they swapped."""

_Player: TypeAlias = tuple[str, str]
"""A definition and its model."""
_Values: TypeAlias = Mapping[str, JsonValue]


@dataclass(slots=True)
class _Played:
    """The finished games of one combination, or of several that differ in their seed alone."""

    slugs: list[str]
    values: _Values
    planned: int
    deals: array[int] = field(default_factory=lambda: array("Q"))
    wins: bytearray = field(default_factory=bytearray)
    """For each game, the bits of the sides that won."""
    teams: defaultdict[str, set[_Player]] = field(default_factory=lambda: defaultdict(set))
    """Who played each side."""
    cast: Mapping[str, str] = field(default_factory=dict)
    """The same by name, where it is one."""
    turns: Counter[str] = field(default_factory=Counter)
    """By side, the turns of its players."""
    defaults: Counter[str] = field(default_factory=Counter)
    """By side, the turns that ended with the default act."""

    @classmethod
    def of(cls, played: PlayedCombination) -> _Played:
        found = cls([played.slug], played.values, played.planned)
        seed = json.dumps(played.values.get(_SEED))
        for place, outcome, where in played.outcomes:
            game = parsed(Game, outcome, where)
            sides = game.teams()
            found.deals.append(game.deal(seed, place))
            found.wins.append(sum(_BITS[side] for side, team in sides.items() if game.has_won(side, team)))
            for side, team in sides.items():
                found.teams[side].update((seat.definition, seat.model) for seat in team)
            for seat in game.players:
                found.turns[seat.side] += seat.count(Count.TURN)
                found.defaults[seat.side] += seat.count(Count.DEFAULT)
        return found

    def add(self, other: _Played) -> None:
        """Take in one that differs in its seed alone."""
        self.slugs += other.slugs
        self.planned += other.planned
        self.deals += other.deals
        self.wins += other.wins
        self.turns += other.turns
        self.defaults += other.defaults

    def has_won(self, side: str, places: Iterable[int] | None = None) -> list[int]:
        """For each game, or each of those at `places`, whether the side won."""
        bit = _BITS[side]
        games = self.wins if places is None else (self.wins[place] for place in places)
        return [int(bool(wins & bit)) for wins in games]

    def player(self, side: str) -> str | None:
        """Who plays a side in all games, if it is one."""
        name = self.cast.get(side)
        return None if name == _SEVERAL else name

    @property
    def others(self) -> frozenset[tuple[str, str]]:
        """Who plays what is neither of the two main sides."""
        return frozenset((side, name) for side, name in self.cast.items() if side not in _SIDES)

    @property
    def other(self) -> str | None:
        """Who plays all of that, if it is one."""
        names = {name for _, name in self.others}
        return next(iter(names)) if len(names) == 1 and _SEVERAL not in names else None

    @property
    def others_alike(self) -> frozenset[tuple[str, str]]:
        """The same, where the player of a main side goes by that side."""
        main = {self.cast.get(side): f"as {side}" for side in _SIDES}
        return frozenset((side, main.get(name, name)) for side, name in self.others)


def compare_games(played: Sequence[PlayedCombination], has_stats: bool) -> JsonObject:
    """The sections of `comparisons.json`; empty when there is nothing to compare."""
    groups = _entries([_Played.of(each) for each in played])
    every = [entry for group in groups for entry in group]
    if len(every) < 2:
        return {}
    sections: JsonObject = {"standings": [row for group in groups for row in _standings(group)]}
    casts = [{**entry.cast, Faction.NEUTRAL: entry.other} for entry in every if entry.others]
    if sections["standings"] and casts:
        sections["neutral"] = neutral_line(casts)
    if not has_stats:
        return {**sections, **Paired(of=_GAMES, unit="deal", rows=None).section(), "ratings": None}
    pairs = [*sorted(_cast_pairs(groups), key=_Pair.order), *_value_pairs(every)]
    rows = tuple(row for pair in pairs[:_PAIRS_MAX] for row in _differences(pair))
    paired = Paired(of=_GAMES, unit="deal", not_compared=max(0, len(pairs) - _PAIRS_MAX), rows=rows)
    return {**sections, **paired.section(), "ratings": [_ratings(group) for group in groups if _is_tournament(group)]}


def _entries(games: Sequence[_Played]) -> list[list[_Played]]:
    """What was played, seeds taken together, in groups of equal settings; who plays which side is not a setting."""
    games = [each for each in games if each.deals]
    named = _names({player for each in games for team in each.teams.values() for player in team})
    for each in games:
        each.cast = {
            side: named[next(iter(team))] if len(team) == 1 else _SEVERAL for side, team in sorted(each.teams.items())
        }
    # Whoever plays what only some lobbies have, such as Neutral, says which lobby it is.
    sides = Counter(side for each in games for side in each.cast)
    casts = [{side: name for side, name in each.cast.items() if sides[side] == len(games)} for each in games]
    settings = _settings([each.values for each in games], [*map(_frozen, casts)])
    groups: dict[str, dict[str, _Played]] = {}
    for each in games:
        each.values = {name: each.values[name] for name in settings if name in each.values}
        group, cast = groups.setdefault(_frozen(each.values), {}), _frozen(each.cast)
        if cast in group:
            group[cast].add(each)
        else:
            group[cast] = each
    return [[*group.values()] for group in groups.values()]


def _frozen(values: Mapping[str, JsonValue] | Mapping[str, str]) -> str:
    return json.dumps(values, sort_keys=True)


def _names(players: Iterable[_Player]) -> dict[_Player, str]:
    """The definition, and its model too where a definition has several."""
    listed = sorted(set(players))
    definitions = [definition for definition, _ in listed]
    return {
        (definition, model): definition if definitions.count(definition) == 1 else f"{definition} ({model})"
        for definition, model in listed
    }


def _settings(values: Sequence[_Values], casts: Sequence[str]) -> list[str]:
    """The names of the values that vary and are more than another way to say who plays which side, alphabetically."""

    def is_setting(name: str) -> bool:
        texts = [json.dumps(each.get(name)) for each in values]
        of_cast = dict(zip(casts, texts, strict=True))
        follows_the_cast = len(of_cast) > 1 and [of_cast[cast] for cast in casts] == texts
        return len(set(texts)) > 1 and not follows_the_cast

    return sorted(filter(is_setting, {name for each in values for name in each} - {_SEED}))


def _standings(group: Sequence[_Played]) -> Iterator[JsonObject]:
    """How often each player won on each side, over all it met; games of one deal share its luck."""
    by_deal: dict[tuple[str, str], defaultdict[int, list[int]]] = {}
    for entry in group:
        for side in entry.cast:
            if (name := entry.player(side)) is not None:
                deals = by_deal.setdefault((name, side), defaultdict(lambda: [0, 0]))
                for deal, won in zip(entry.deals, entry.has_won(side), strict=True):
                    deals[deal][0] += won
                    deals[deal][1] += 1
    if len({name for name, _ in by_deal}) < 2:
        return
    for (name, side), deals in sorted(by_deal.items()):
        counted = ClusteredRate()
        for wins, games in deals.values():
            counted.add(wins, games)
        report = rate_report(counted)
        yield {
            "player": name,
            "side": side,
            "settings": in_words(group[0].values),
            "games": report["n"],
            "deals": report["games"],
            **{key: report[key] for key in ("wins", "rate", "interval")},
            "defaults": _defaults((entry, side) for entry in group if entry.player(side) == name),
        }


def _defaults(sides: Iterable[tuple[_Played, str]]) -> float | None:
    """The part of their turns that ended with the default act; None where turns were not counted."""
    turns = defaults = 0
    for entry, side in sides:
        turns, defaults = turns + entry.turns[side], defaults + entry.defaults[side]
    return round(defaults / turns, 4) if turns else None


class _Pair(NamedTuple):
    """Two entries to compare, on these sides; under which names, and what else they have in common."""

    first: _Played
    second: _Played
    names: tuple[str, str]
    sides: tuple[str, ...]
    given: str
    is_swap: bool = False

    def order(self) -> tuple[object, ...]:
        """What orders a table: players against each other first, then against others, by name and side."""
        return (not self.is_swap, self.names, self.sides, self.given)


def _cast_pairs(groups: Sequence[Sequence[_Played]]) -> Iterator[_Pair]:
    """Entries of equal settings in which one side is played by another, the two sides are swapped, or all is played
    by one player.
    """
    for group in groups:
        for first, second in _pairs(group):
            changed = [side for side in _SIDES if first.cast.get(side) != second.cast.get(side)]
            kept = [side for side in _SIDES if side not in changed]
            is_alike = first.others == second.others or first.others_alike == second.others_alike
            if len(changed) == 1 and is_alike:
                yield from _of_side(first, second, changed[0], kept)
            elif not changed and len(moved := [each for each, _ in sorted(first.others - second.others)]) == 1:
                yield from _of_side(first, second, moved[0], kept)
            elif len(changed) == 2 and is_alike and _is_swapped(first, second):
                names = first.cast[_SIDES[0]], second.cast[_SIDES[0]]
                yield _Pair(first, second, names, _SIDES, _joined("each other", first.values), is_swap=True)
            elif len(changed) == 2 and (one := _only(first)) is not None and (other := _only(second)) is not None:
                yield _Pair(first, second, (one, other), _SIDES, _joined("on both sides", first.values))


def _of_side(first: _Played, second: _Played, side: str, kept: Sequence[str]) -> Iterator[_Pair]:
    one, other = first.player(side), second.player(side)
    if one is not None and other is not None:
        against = " and ".join(f"{each} {first.cast[each]}" for each in kept if each in first.cast)
        yield _Pair(first, second, (one, other), (side,), _joined(against, first.values))


def _is_swapped(first: _Played, second: _Played) -> bool:
    one, other = _SIDES
    players = first.player(one), first.player(other)
    return None not in players and players == (second.player(other), second.player(one))


def _only(entry: _Played) -> str | None:
    """The player of all sides, if it is one."""
    names = set(entry.cast.values())
    return next(iter(names)) if len(names) == 1 and _SEVERAL not in names else None


def _value_pairs(entries: Sequence[_Played]) -> Iterator[_Pair]:
    """Entries of one cast that differ in one setting; settings that vary together are one."""
    names = sorted({name for entry in entries for name in entry.values})
    has_one_cast = len({_frozen(entry.cast) for entry in entries}) == 1
    axes: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        texts = [json.dumps(entry.values.get(name)) for entry in entries]
        axes.setdefault(tuple(map(texts.index, texts)), []).append(name)
    for axis in axes.values():
        groups: dict[str, list[_Played]] = {}
        for entry in entries:
            rest = {name: value for name, value in entry.values.items() if name not in axis}
            groups.setdefault(_frozen({**rest, "": _frozen(entry.cast)}), []).append(entry)
        for group in groups.values():
            for first, second in _pairs(group):
                one, other = (in_words({name: each.values.get(name) for name in axis}) for each in (first, second))
                rest = {name: value for name, value in first.values.items() if name not in axis}
                cast = "" if has_one_cast else ", ".join(f"{side} {first.cast.get(side)}" for side in _SIDES)
                sides = tuple(side for side in Faction if side in first.cast and side in second.cast)
                yield _Pair(first, second, (one, other), sides, _joined(cast, rest))


def _pairs(group: Sequence[_Played]) -> Iterator[tuple[_Played, _Played]]:
    if len(group) <= _ALL_PAIRS_MAX:
        yield from combinations(group, 2)
    else:
        yield from ((group[0], other) for other in group[1:])


def _joined(text: str, values: _Values) -> str:
    return "; ".join(filter(None, (text, in_words(values))))


def _differences(pair: _Pair) -> Iterator[PairedRow]:
    """A row for each side, and one for both together where two players swapped them; none without a common deal."""
    first, second = pair.first, pair.second
    # A deal that was played several times counts where all its games finished in both.
    one_by_deal, other_by_deal = (_by_deal(each.deals) for each in (first, second))
    times = max(map(len, (*one_by_deal.values(), *other_by_deal.values())), default=1)
    common = [
        (places, other_by_deal[deal])
        for deal, places in sorted(one_by_deal.items())
        if len(places) == len(other_by_deal.get(deal, ())) == times
    ]
    if not common:
        return
    won = {
        side: (
            [sum(first.has_won(side, here)) for here, _ in common],
            [sum(second.has_won(side, there)) for _, there in common],
        )
        for side in pair.sides
    }

    def compared(one: Iterable[int], other: Iterable[int], games: int) -> Comparison:
        # The difference is the first's less the second's.
        sums = [{deal: (wins, games) for deal, wins in enumerate(each)} for each in (other, one)]
        found = compare(*sums)
        assert found is not None, "they have a deal in common"
        return found

    left_out = max(first.planned, second.planned) // times - len(common)
    for side, (one, other) in won.items():
        # The second plays this side in the second combination; of a swap, the other side's players change places.
        is_reversed = pair.is_swap and side == pair.sides[1]
        scores = (other, one) if is_reversed else (one, other)
        players = (second, first) if is_reversed else (first, second)
        one_share, other_share = (_defaults([(each, side)]) for each in players)
        yield _row(pair, side, compared(*scores, times), left_out, (one_share, other_share))
    if pair.is_swap:
        (one_here, other_there), (other_here, one_there) = (won[side] for side in pair.sides)
        one, other = (
            [a + b for a, b in zip(*each, strict=True)] for each in ((one_here, one_there), (other_here, other_there))
        )
        here, there = pair.sides[:2]
        defaults = _defaults([(first, here), (second, there)]), _defaults([(second, here), (first, there)])
        yield _row(pair, _BOTH, compared(one, other, 2 * times), left_out, defaults)


def _by_deal(deals: Iterable[int]) -> dict[int, list[int]]:
    """The places of the games of each deal."""
    found: dict[int, list[int]] = {}
    for place, deal in enumerate(deals):
        found.setdefault(deal, []).append(place)
    return found


def _row(
    pair: _Pair, side: str, found: Comparison, left_out: int, defaults: tuple[float | None, float | None]
) -> PairedRow:
    return paired_row(
        found,
        figure=side,
        first=pair.names[0],
        second=pair.names[1],
        given=pair.given,
        combinations=((*pair.first.slugs,), (*pair.second.slugs,)),
        left_out=left_out,
        defaults=defaults,
    )


def _has_players(entry: _Played) -> bool:
    return all(entry.player(side) is not None for side in _SIDES)


def _is_tournament(group: Sequence[_Played]) -> bool:
    """Whether more than two players meet."""
    return len({entry.cast[side] for entry in group if _has_players(entry) for side in _SIDES}) > 2


def _ratings(group: Sequence[_Played]) -> JsonObject:
    """The ratings of a tournament; `players` is None where its pairings do not tie all players together."""
    one, other = _SIDES
    met = [(entry, entry.cast[one], entry.cast[other]) for entry in group if _has_players(entry)]
    firsts, seconds = sorted({pair[1] for pair in met}), sorted({pair[2] for pair in met})
    # Games of one deal are in one row, so that they are drawn together: a column for each time that it was played.
    keys, results, pairings = [], [], []
    for entry, a, b in met:
        by_deal = _by_deal(entry.deals)
        for time in range(max(map(len, by_deal.values()))):
            places = {deal: places[time] for deal, places in by_deal.items() if len(places) > time}
            sides = zip(entry.has_won(one, places.values()), entry.has_won(other, places.values()), strict=True)
            keys.append([*places])
            results.append([ratings.UNDECIDED if first == second else first for first, second in sides])
            pairings.append((firsts.index(a), seconds.index(b)))
    decided = sum(result != ratings.UNDECIDED for each in results for result in each)
    games = sum(len(entry.deals) for entry, _, _ in met)
    table = ratings.deal_table(keys, results)
    found = ratings.bradley_terry(pairings, table)
    report: JsonObject = {
        "settings": in_words(group[0].values),
        "pairings": len(met),
        "deals": len(table),
        "games": decided,
        "undecided": games - decided,
        "left_out": sum(entry.planned for entry, _, _ in met) - games,
    }
    if found is None:
        return {**report, "players": None}
    rows: list[JsonValue] = []
    for side, names, strengths in ((one, firsts, found.first), (other, seconds, found.second)):
        for name, strength in zip(names, strengths, strict=True):
            share = _defaults((entry, side) for entry, *_ in met if entry.player(side) == name)
            rows.append({**_rating(name, side, strength), "defaults": share})
    advantage: JsonObject = {
        "side": one,
        "rating": round(found.advantage, 4),
        "interval": ends(found.advantage_interval),
    }
    return {**report, "advantage": advantage, "players": rows}


def _rating(name: str, side: str, strength: ratings.Strength) -> JsonObject:
    return {
        "player": name,
        "side": side,
        "rating": round(strength.rating, 4),
        "interval": ends(strength.rating_interval),
        "rate": round(strength.rate, 4),
        "rate_interval": ends(strength.rate_interval),
    }


def comparison_tables(compared: JsonObject) -> Iterator[Table | str]:
    """Tables and notes of `comparisons.json`."""
    if standings := objects(compared.get("standings")):
        yield (table := _standing_table(standings))
        neutral = compared.get("neutral")
        notes = (
            "Games of one deal share its luck, so intervals are by deal.",
            DEFAULTS_NOTE if DEFAULTS_HEAD in table.numbers else "",
            f"{neutral[:1].upper()}{neutral[1:]}." if isinstance(neutral, str) else "",
        )
        yield "\n".join(filter(None, notes))
    note = "Values: games won, %; draws and capped games are not won."
    yield from paired_tables(compared, _GAMES, head="side", note=note)
    for one in objects(compared.get("ratings")):
        yield from _rating_tables(one)


def _standing_table(rows: list[JsonObject]) -> Table:
    words = ("player", "side", *(["settings"] if any(row.get("settings") for row in rows) else []))
    counts = ("games", "deals", "wins")
    lines = [
        (*(str(row.get(key)) for key in words), *(count_text(row.get(key)) for key in counts), *rate_texts(row))
        for row in rows
    ]
    table = Table("wins by player and side (n games)", words, ("n", "deals", "wins", *RATE_HEADS), lines)
    return with_defaults_column(table, [[number(row.get("defaults"))] for row in rows], len(table.numbers))


def _rating_tables(found: JsonObject) -> Iterator[Table | str]:
    settings = f"; {found['settings']}" if found.get("settings") else ""
    players = objects(found.get("players"))
    if not players:
        yield f"No ratings{settings}: the pairings that were played do not tie all players together."
        return
    lines = [
        (
            *(str(row.get(key)) for key in ("player", "side")),
            _log_odds(row.get("rating")),
            _span(row.get("interval")),
            percent_text(row.get("rate")),
            interval_text(row.get("rate_interval")),
        )
        for row in players
    ]
    games, deals = count_text(found.get("games")), count_text(found.get("deals"))
    title = f"Bradley–Terry ratings (n {games} games of {deals} deals{settings})"
    numbers = ("rating", "95% interval", "wins against average", "95% interval")
    table = Table(title, ("player", "side"), numbers, lines)
    yield with_defaults_column(table, [[number(row.get("defaults"))] for row in players], len(numbers))
    advantage = section(found, "advantage")
    undecided, left_out = count_text(found.get("undecided")), count_text(found.get("left_out"))
    yield (
        f"In log odds, 0 the average of a side; between average players the advantage of {advantage.get('side')} "
        f"is {_log_odds(advantage.get('rating'))} ({_span(advantage.get('interval'))}).\n"
        f"Intervals: bootstrap over deals. Not counted: {undecided} games that neither side won, "
        f"{left_out} that did not finish."
    )


def tournament_words(compared: JsonObject) -> str:
    """The ratings of each side in a sentence, the strongest player first; of two players by how much one is ahead."""
    paired = paired_of(compared, _GAMES)
    both = [row for row in (paired.rows if paired else None) or () if row.figure == _BOTH]
    if len(both) == 1:
        (row,) = both
        return (
            f"{row.first} against {row.second}, on both sides: {row.difference_text(' points of wins')}, "
            f"p {p_text(row.p)}, n {count_text(row.n)} deals"
        )
    sides: dict[str, list[JsonObject]] = {}
    for rated in objects(compared.get("ratings"))[:1]:
        for player in objects(rated.get("players")):
            sides.setdefault(str(player.get("side")), []).append(player)
    ranked = (
        f"{side.capitalize()}: "
        + ", ".join(
            f"{player.get('player')} {_log_odds(player.get('rating'))} ({_span(player.get('interval'))})"
            for player in sorted(players, key=lambda player: -(number(player.get("rating")) or 0.0))
        )
        for side, players in sides.items()
    )
    text = "; ".join(ranked)
    return f"Strength in log odds, 0 the average. {text}" if text else ""


def _log_odds(value: JsonValue) -> str:
    return f"{value:+.2f}" if isinstance(value, int | float) else UNKNOWN


def _span(interval: JsonValue) -> str:
    return " to ".join(map(_log_odds, interval)) if isinstance(interval, list) else UNKNOWN
