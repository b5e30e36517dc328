"""Results of games for readers: tables of wins, figures, who was what, and what was true of a game."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from mac_runner.environments.town_of_salem.results.cast import Cast
from mac_runner.environments.town_of_salem.results.columns import GAME_COLUMNS, moments
from mac_runner.environments.town_of_salem.results.export_tables import (
    GAME_AGENT_COLUMNS,
    GAME_CONVERSATION_COLUMNS,
    GAME_EXPORTS,
)
from mac_runner.environments.town_of_salem.results.games import GameResults
from mac_runner.environments.town_of_salem.results.lies import EARLIER_VERDICTS, Lies
from mac_runner.environments.town_of_salem.results.measure_results import MeasureResults
from mac_runner.environments.town_of_salem.results.measure_tables import measure_figures, measure_tables
from mac_runner.environments.town_of_salem.results.rewards import game_rewards
from mac_runner.environments.town_of_salem.results.tournament_tables import comparison_tables
from mac_runner.results import (
    RATE_HEADS,
    Declared,
    Figure,
    JoinedResults,
    PlayedCombination,
    ResultsSpec,
    Table,
    count_text,
    decimal_text,
    figure,
    parsed,
    rate_texts,
    section,
)
from mac_runner.types import JsonObject

RANKING_GAMES_MIN: Final = 20
"""Rates over fewer games are marked."""
_TOO_FEW: Final = "*"
_NAMES: Final = ("definition", "model")
_OF_GAMES: Final = ("n", "wins")
_OF_PLAYERS: Final = ("n", "games", "wins")
"""The counts of a row of games, and of one of players."""


def game_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """How many games ended how, and after how many days."""
    if games := section(summary, "games"):
        mean, most = decimal_text(games.get("days_mean")), count_text(games.get("days_max"))
        counts = ", ".join(f"{count_text(games.get(key))} {key}" for key in ("won", "draws", "capped"))
        yield "games", f"{counts}; days {mean} on average, {most} at most"


def win_tables(summary: JsonObject) -> Iterator[Table | str]:
    """Wins by side first, then what adds up all sides, and how far to trust them."""
    wins = section(summary, "wins")
    tables = [
        *_win_table(section(wins, "by_faction"), "faction"),
        *_side_tables(wins),
        *_win_table(section(wins, "by_role"), "role"),
    ]
    for name in _NAMES:
        if len(rates := section(wins, f"by_{name}")) >= 2:
            tables += _win_table(rates, name, ", over all sides")
    yield from tables
    notes = []
    if any(row[-1] for table in tables for row in table.rows):
        notes.append(f"{_TOO_FEW} fewer than {RANKING_GAMES_MIN} games: too few to rank.")
    if any("side" in table.words for table in tables):
        notes.append("Players on one side each count its win, once a game; neutrals count their own.")
    if any("games" in table.numbers for table in tables):
        notes.append("Players of one game win together, so their intervals are by game.")
    if notes:
        yield "\n".join(notes)


def _side_tables(wins: JsonObject) -> Iterator[Table]:
    """Who won how often on which side, for each way to name players that there are several of."""
    for name in _NAMES:
        by_name = section(wins, f"by_{name}_and_faction")
        if len(by_name) >= 2:
            rows = [
                (each, faction, *_win_cells(section(section(by_name, each), faction), _OF_GAMES))
                for each in by_name
                for faction in section(by_name, each)
            ]
            yield Table(f"wins by {name} and side (n games)", (name, "side"), (*_OF_GAMES, *RATE_HEADS, ""), rows)


def _win_table(rates: JsonObject, name: str, scope: str = "") -> Iterator[Table]:
    if rates:
        is_of_games = all(section(rates, key).get("n") == section(rates, key).get("games") for key in rates)
        counts, unit = (_OF_GAMES, "games") if is_of_games else (_OF_PLAYERS, "players")
        rows = [(key, *_win_cells(section(rates, key), counts)) for key in rates]
        yield Table(f"wins by {name}{scope} (n {unit})", (name,), (*counts, *RATE_HEADS, ""), rows)


def _win_cells(rate: JsonObject, counts: Sequence[str]) -> tuple[str, ...]:
    games = rate.get("games")
    is_few = isinstance(games, int) and games < RANKING_GAMES_MIN
    return (*(count_text(rate.get(key)) for key in counts), *rate_texts(rate), _TOO_FEW if is_few else "")


def win_figures(summary: JsonObject) -> Mapping[str, Figure]:
    """How often each faction won."""
    factions = section(section(summary, "wins"), "by_faction")
    found = {f"wins.{name}": figure(section(factions, name)) for name in factions}
    return {name: one for name, one in found.items() if one is not None}


class _Ended(msgspec.Struct, frozen=True):
    agent: str
    role: str
    final_role: str
    won: bool
    alive: bool
    death: str | None = None


def who_was_what(outcome: JsonObject) -> Sequence[str]:
    """The role of each player, whether it won and whether it lived."""
    players = parsed(list[_Ended], outcome.get("players"), "the outcome of the transcript")
    return ("Who was what", *map(_player_line, players))


def _player_line(player: _Ended) -> str:
    end = "lived" if player.alive else f"died ({player.death})"
    role = player.role if player.role == player.final_role else f"{player.role}, then {player.final_role}"
    return f"{player.agent:<12} {role:<24} {'won ' if player.won else 'lost'}  {end}"


class _Claim(msgspec.Struct, frozen=True):
    event: int
    player: str
    channel: str
    about: str
    kind: str
    says: str
    verdict: str
    truth: str = ""
    """What was so, where the speaker was wrong and did not lie."""
    roles: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def judgement(self) -> str:
        """The verdict, and what was so instead: `honest, but wrong: Abel is the Doctor`."""
        if self.verdict in EARLIER_VERDICTS:
            is_opinion = self.kind in ("accusation", "defence") and self.about != self.player
            return EARLIER_VERDICTS[self.verdict][is_opinion]
        return f"{self.verdict}, but wrong: {self.truth}" if self.truth else self.verdict


class _Act(msgspec.Struct, frozen=True):
    act: str
    targets: tuple[str, ...]


class _Deed(_Act, frozen=True):
    player: str
    role: str


class _Change(msgspec.Struct, frozen=True):
    how: str
    players: tuple[str, ...]
    by: str | None
    was: _Act | None
    now: _Act | None


class _Protection(msgspec.Struct, frozen=True):
    how: str
    player: str
    by: str
    strength: str | None = None


class _Mark(msgspec.Struct, frozen=True, rename={"shown_as": "as"}):
    player: str
    mark: str
    shown_as: str | None = None


class _Attack(msgspec.Struct, frozen=True):
    attacker: str
    victim: str
    cause: str
    strength: str
    defence: str | None
    outcome: str


class _Night(msgspec.Struct, frozen=True):
    day: int
    deeds: tuple[_Deed, ...]
    changes: tuple[_Change, ...]
    protections: tuple[_Protection, ...]
    marks: tuple[_Mark, ...]
    attacks: tuple[_Attack, ...]


class GameTruth:
    """Who was what, what became of the claims of each event, how each night went, and who lied."""

    def __init__(self, record: JsonObject) -> None:
        """Raises RunDirectoryError for a record of another form."""
        self._cast = Cast(record)
        self._lies = Lies(record, self._cast)
        self._claims: dict[int, list[_Claim]] = {}
        for claim in parsed(list[_Claim], record["claims"], "the claims of the record"):
            self._claims.setdefault(claim.event, []).append(claim)
        nights = parsed(list[_Night], record["nights"], "the nights of the record")
        self._nights = {night.day: night for night in nights}

    def opening(self) -> Sequence[str]:
        """The cast."""
        return self._cast.lines()

    def named(self, place: int, text: str) -> str:
        """A text with the role each player then holds behind the name."""
        return self._cast.named(place, text)

    def closing(self) -> Sequence[str]:
        """Who lied how often, and whom they fooled."""
        return self._lies.lines({name: self._cast.name(name) for name in self._lies.speakers})

    def before(self, event: JsonObject) -> Sequence[str]:
        """The night that an event of the morning after follows."""
        day = event.get("day")
        if not isinstance(day, int) or str(event.get("when")).startswith("Night"):
            return ()
        night = self._nights.pop(day - 1, None)
        return () if night is None else (f"Night {night.day}, in truth", *_night_lines(night))

    def after(self, place: int) -> Iterator[str]:
        """Each claim of the event at `place`: `claims to be the Sheriff: lie`."""
        for claim in self._claims.get(place, []):
            who = "" if claim.channel in ("public", "whisper") else f"{claim.player} "
            yield f"{who}{_claimed(claim)}: {claim.judgement}"


def game_truth(record: JsonObject) -> GameTruth | None:
    """The truth of a record that holds its claims and nights."""
    return GameTruth(record) if {"claims", "nights"} <= record.keys() else None


_FOUND: Final = {"mafia": "of the Mafia", "vampire": "a Vampire", "visited by the mafia": "visited by the Mafia"}
_SAID: Final = {
    "mafia": "says that {about} is of the Mafia",
    "not mafia": "says that {about} is not of the Mafia",
    "town": "says that {about} is of the Town",
    "not town": "says that {about} is not of the Town",
    "evil": "speaks against {about}",
    "not evil": "stands up for {about}",
}
_STATES: Final = frozenset({"suspicious", "not suspicious", "mafia", "vampire", "not a vampire"})


def _claimed(claim: _Claim) -> str:
    about, says, roles = claim.about, claim.says, " or ".join(claim.roles)
    match claim.kind:
        case "role":
            return f"claims to {'have been' if says == 'role held before' else 'be'} the {roles}"
        case "result":
            found = f"one of {roles}" if " or " in roles else f"the {roles}" if roles else _FOUND.get(says, says)
            if says == "visited by":
                found = f"visited by {' and '.join(claim.names) or 'nobody'}"
            return f"claims to know that {about} {'is' if says in _STATES or roles else 'was'} {found}"
        case _:
            return f"says that {about} is the {roles}" if roles else _SAID[says].format(about=about)


def _night_lines(night: _Night) -> Iterator[str]:
    """A night step by step: what was chosen, what came between, who was attacked, and the result."""
    for deed in night.deeds:
        yield f"{deed.player} ({deed.role}) chose to {_act(deed)}"
    for change in night.changes:
        by = "" if change.by is None else f" by {change.by}"
        yield f"{' and '.join(change.players)}: {change.how}{by}{_turned(change.was, change.now)}"
    for kept in night.protections:
        is_own = kept.how == "defended"
        yield f"{kept.player} had a {kept.strength} defence" if is_own else f"{kept.player} was {kept.how} by {kept.by}"
    for mark in night.marks:
        yield f"{mark.player} was {mark.mark}" if mark.shown_as is None else f"{mark.player} passed for {mark.shown_as}"
    for attack in night.attacks:
        met = "no" if attack.defence == "none" else attack.defence
        strength = attack.strength if met is None else f"{attack.strength} against {met} defence"
        yield f"{attack.attacker} attacked {attack.victim} ({attack.cause}, {strength}): {attack.outcome}"


def _act(act: _Act | None) -> str:
    return "" if act is None else f"{act.act.replace('_', ' ')} {' and '.join(act.targets)}".strip()


def _turned(was: _Act | None, now: _Act | None) -> str:
    """What a deed was and what it became."""
    before, after = _act(was), _act(now)
    if before and after:
        return f", to {after} and not to {before}"
    return f", to {after}" if after else f", and so did not {before}" if before else ""


def _compared(played: Sequence[PlayedCombination], has_stats: bool, _declared: Declared | None) -> JsonObject:
    from mac_runner.environments.town_of_salem.results.tournament import compare_games

    return compare_games(played, has_stats)


RESULTS: Final = ResultsSpec(
    counter=lambda: JoinedResults(GameResults(), MeasureResults()),
    comparisons=_compared,
    comparison_tables=comparison_tables,
    lines=game_lines,
    tables=lambda summary: (*win_tables(summary), *measure_tables(summary)),
    figures=lambda summary: {**win_figures(summary), **dict(measure_figures(summary))},
    ending=who_was_what,
    columns=GAME_COLUMNS,
    rewards=game_rewards,
    moments=moments,
    truth=game_truth,
    exports=GAME_EXPORTS,
    conversation_columns=GAME_CONVERSATION_COLUMNS,
    agent_columns=GAME_AGENT_COLUMNS,
)
