"""Results of games for readers: tables of wins, figures, who was what, and the columns of the list of games."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from mac_runner.environments.town_of_salem.game import GAMES, WINS
from mac_runner.environments.town_of_salem.measures import MEASURES, Game, Seat, default_shares, seat_tables
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.record import AGENT_COLUMNS, CONVERSATION_COLUMNS, EXPORTS, moments
from mac_runner.environments.town_of_salem.scene import game_scene
from mac_runner.environments.town_of_salem.tournament import compare_games, comparison_tables, tournament_words
from mac_runner.environments.town_of_salem.truth import game_truth
from mac_runner.measures import (
    Measure,
    MeasuredResults,
    ResultsSpec,
    counts_of,
    measure_figures,
    measure_tables,
)
from mac_runner.printable import counted
from mac_runner.results import (
    DEFAULTS_HEAD,
    DEFAULTS_NOTE,
    RATE_HEADS,
    Column,
    Columns,
    Table,
    Value,
    count_text,
    decimal_text,
    integer,
    number,
    parsed,
    rate_texts,
    rate_words,
    section,
    with_defaults_column,
)
from mac_runner.types import JsonObject

RANKING_GAMES_MIN: Final = 20
"""Rates over fewer games are marked."""
_TOO_FEW: Final = "*"
_Shares: TypeAlias = Mapping[tuple[str, ...], float]


def game_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """How many games ended how, and after how many days."""
    if games := section(summary, "games"):
        mean, most = decimal_text(games.get("days_mean")), count_text(games.get("days_max"))
        counts = ", ".join(f"{count_text(games.get(key))} {key}" for key in ("won", "draws", "capped"))
        yield "games", f"{counts}; days {mean} on average, {most} at most"


def game_headline(summary: JsonObject, compared: JsonObject) -> str:
    """Which side won how often, or who won how often on which side; of a tournament, how strong players are."""
    if found := tournament_words(compared):
        return found
    wins, games = section(summary, "wins"), section(summary, "games")
    by_name = section(wins, "by_definition_and_faction")
    if len(by_name) >= 2:
        return "; ".join(f"{name} won {_sides_won(section(by_name, name))}" for name in by_name)
    sides = section(wins, "by_faction")
    ranked = sorted(sides, key=lambda side: -(number(section(sides, side).get("rate")) or 0.0))
    won = ", ".join(
        f"{side.capitalize()}{'' if place else ' won'} {rate_words(section(sides, side))}"
        for place, side in enumerate(ranked)
    )
    draws, capped = (integer(games.get(key)) or 0 for key in ("draws", "capped"))
    undecided = [*([counted(draws, "draws")] if draws else []), *([f"{capped} capped"] if capped else [])]
    return "; ".join([won, *undecided]) if won else ""


def _sides_won(sides: JsonObject) -> str:
    return ", ".join(f"{rate_words(section(sides, side))} as {side.capitalize()}" for side in sides)


def win_tables(summary: JsonObject) -> Iterator[Table | str]:
    """Wins by side first, then what adds up all sides, and how far to trust them."""
    shares = default_shares(summary)
    tables = [table for measure in WINS for table in _win_table(measure, summary, shares)]
    yield from tables
    notes = []
    if any(row[-1] for table in tables for row in table.rows):
        notes.append(f"{_TOO_FEW} fewer than {RANKING_GAMES_MIN} games: too few to rank.")
    if any("side" in table.words for table in tables):
        notes.append("Players on one side each count its win, once a game; neutrals count their own.")
    if any("games" in table.numbers for table in tables):
        notes.append("Players of one game win together, so their intervals are by game.")
    if any(DEFAULTS_HEAD in table.numbers for table in tables):
        notes.append(DEFAULTS_NOTE)
    if notes:
        yield "\n".join(notes)


def _win_table(measure: Measure, summary: JsonObject, shares: _Shares) -> Iterator[Table]:
    """Who won how often; definitions and models only where there are several of them."""
    rows, words = measure.rows(summary), measure.names
    if not rows or (words[0] in ("definition", "model") and len({row.keys[0] for row in rows}) < 2):
        return
    is_of_games = all(row.record.get("n") == row.record.get("games") for row in rows)
    counts, unit = (("n", "wins"), "games") if is_of_games else (("n", "games", "wins"), "players")
    scope = ", over all sides" if words in (("definition",), ("model",)) else ""
    cells = [
        (
            *row.keys,
            *counts_of(row.record, *counts),
            *rate_texts(row.record),
            _TOO_FEW if (integer(row.record.get("games")) or 0) < RANKING_GAMES_MIN else "",
        )
        for row in rows
    ]
    table = Table(f"wins by {' and '.join(words)}{scope} (n {unit})", words, (*counts, *RATE_HEADS, ""), cells)
    yield with_defaults_column(table, [[shares.get((words[0], *row.keys))] for row in rows], len(table.numbers) - 1)


def who_was_what(outcome: JsonObject) -> Sequence[str]:
    """The role of each player, whether it won and whether it lived."""
    return ("Who was what", *map(_player_line, parsed(Game, outcome, "the outcome of the transcript").players))


def _player_line(player: Seat) -> str:
    end = "lived" if player.alive else f"died ({player.death})"
    changed = player.final_role not in (None, player.role)
    role = f"{player.role}, then {player.final_role}" if changed else player.role
    return f"{player.agent:<12} {role:<24} {'won ' if player.won else 'lost'}  {end}"


def game_rewards(outcome: JsonObject, agent: str) -> Mapping[str, float]:
    """Whether a player won, whether its faction did, and whether it lived to the end; nothing for another name.

    The faction is that of the role it was dealt. A neutral player has no faction but its own goal.
    """
    game = parsed(Game, outcome, "the outcome")
    player = next((player for player in game.players if player.agent == agent), None)
    if player is None:
        return {}
    has_faction_won = game.has_won(player.side, [player])
    return {"won": float(player.won), "faction_won": float(has_faction_won), "survived": float(player.alive)}


_FACTIONS: Final = tuple(faction.value for faction in Faction)
_LISTED: Final = frozenset({Faction.TOWN, Faction.MAFIA, Faction.NEUTRAL})
_SIDES_KEPT: Final = 1_000
"""A list has a hundred thousand games, and most have the same sides."""


class _Part(msgspec.Struct, frozen=True, gc=False):
    """Who played for a faction, and whether it won. Several players of a game may have the same part."""

    definition: str
    model: str
    faction: str
    won: bool


class _Listed(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag="game"):
    """What the list has of a game."""

    ending: str
    days: int
    winners: frozenset[str]
    players: frozenset[_Part]


def _values(game: _Listed) -> Mapping[str, Value]:
    """The columns of one game."""
    return {"ending": game.ending, "days": game.days, **_sides(game.winners, game.players)}


@lru_cache(_SIDES_KEPT)
def _sides(winners: frozenset[str], parts: frozenset[_Part]) -> Mapping[str, Value]:
    """Who played for which side. It was won by the factions that the table of wins counts.

    A faction's column has the agent definitions that played for it; `won_by` has those with a player who won.
    """
    found = {
        "winner": winners | {part.faction for part in parts if part.won},
        **{faction: {part.definition for part in parts if part.faction == faction} for faction in _FACTIONS},
        "definition": {part.definition for part in parts},
        "model": {part.model for part in parts},
        "won_by": {part.definition for part in parts if part.won},
    }
    return {name: tuple(sorted(words)) for name, words in found.items()}


_COLUMNS: Final = Columns(
    {
        "winner": Column("words", is_headline=True),
        "ending": Column("word"),
        "days": Column("number"),
        **{faction.value: Column("words", is_listed=faction in _LISTED) for faction in Faction},
        "definition": Column("words", is_listed=False),
        "model": Column("words", is_listed=False),
        "won_by": Column("words", is_listed=False),
    },
    _values,
    _Listed,
)


def game_results(measures: Sequence[Measure] = MEASURES) -> ResultsSpec:
    """How games are counted by some measures besides who won, and shown."""
    every = (*GAMES, *measures)
    return ResultsSpec(
        counter=lambda: MeasuredResults(every, lambda outcome, where: parsed(Game, outcome, where)),
        noun="games",
        measures=every,
        comparisons=lambda played, has_stats, _declared: compare_games(played, has_stats),
        comparison_tables=comparison_tables,
        headline=game_headline,
        lines=game_lines,
        tables=lambda summary: (
            *win_tables(summary),
            *seat_tables(summary, measures),
            *measure_tables(measures, summary),
        ),
        figures=lambda summary: measure_figures(every, summary),
        ending=who_was_what,
        columns=_COLUMNS,
        rewards=game_rewards,
        moments=moments,
        truth=game_truth,
        scene=game_scene,
        exports=EXPORTS,
        conversation_columns=CONVERSATION_COLUMNS,
        agent_columns=AGENT_COLUMNS,
    )


RESULTS: Final = game_results()
