"""A game as pages show it: days and nights, who was what, claims with verdicts, the nights in truth, and the votes.

Everything comes from the record. What a seat may know has the event that showed it; the words of such a part come from
that event alone, so that they hold nothing else. What only the truth knows has no event.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, EventKind
from mac_runner.environments.town_of_salem.model.state import LYNCH, Faction
from mac_runner.environments.town_of_salem.results.columns import game_values
from mac_runner.environments.town_of_salem.results.played_game import (
    GameEvent,
    PlayedGame,
    faction_of,
    listed,
    title_of,
    tone_of,
)
from mac_runner.environments.town_of_salem.results.scene_tables import claim_table, claim_tone, vote_tables
from mac_runner.environments.town_of_salem.results.truth import claimed, night_lines
from mac_runner.types import JsonObject
from mac_runner.view_model import Fact, Mark, Note, Phase, Scene, Share

_CARDS: Final = frozenset({EventKind.ROLE_CARD, EventKind.CONVERTED})
_NAMED: Final = frozenset({EventKind.REVEALED, EventKind.DEATH, EventKind.TEAM_CHANGED, EventKind.TEAM_JOINED})
"""Events that say which role the `player` of their data holds."""
_SPOKEN: Final = frozenset(
    {EventKind.SPEECH, EventKind.CHAT, EventKind.WHISPER, EventKind.WHISPER_SEEN, EventKind.VOTE, EventKind.UNVOTE}
)
"""Events in which the `player` of their data acts."""
_CHOSEN: Final = frozenset({EventKind.ACTION_CHOSEN, EventKind.JAIL_CHOSEN, EventKind.SEANCE_CHOSEN})
"""Events in which the one who learns of them acted."""


def game_scene(transcript: JsonObject) -> Scene:
    """What pages show of a game. Raises RunDirectoryError for a damaged transcript."""
    game = PlayedGame(transcript)
    if not game.events:
        return Scene()
    return Scene(
        phases=tuple(_phases(game)),
        facts=tuple(_facts(game)),
        members={name: tuple(_member_facts(game, name)) for name in game.names},
        notes=_notes(game),
        agents=dict(_agents(game)),
        tables=(*vote_tables(game), *claim_table(game)),
    )


def _phases(game: PlayedGame) -> Iterator[Phase]:
    """The days and nights, each with its deaths and trials, and with those who live at its end."""
    starts = [
        place for place, event in enumerate(game.events) if not place or event.label != game.events[place - 1].label
    ]
    living = dict.fromkeys(game.names)
    for first, end in zip(starts, [*starts[1:], len(game.events)], strict=True):
        marks = [mark for place in range(first, end) for mark in _marks(place, game.events[place])]
        for event in game.events[first:end]:
            if event.kind == EventKind.DEATH:
                living.pop(event.text("player"), None)
            elif event.kind == EventKind.REVIVED:
                living[event.text("player")] = None
        event = game.events[first]
        factions = Counter(game.faction_at(name, end) for name in living)
        yield Phase(
            label=event.label,
            kind="night" if event.is_night else "day",
            first=first,
            marks=tuple(marks),
            standing=tuple(
                Share(title_of(faction), factions[faction], tone_of(faction))
                for faction in Faction
                if faction in factions
            ),
        )


def _marks(place: int, event: GameEvent) -> Iterator[Mark]:
    match event.kind:
        case EventKind.DEATH:
            role = event.text("role")
            faction = faction_of(role)
            yield Mark("†", f"{event.text('player')} ({role or UNKNOWN_ROLE}): {_end(event)}", place, tone_of(faction))
        case EventKind.VERDICT:
            verdict = "guilty" if event.data.get("is_guilty") else "innocent"
            yield Mark("⚖", f"{event.text('accused')}: {verdict}", place)
        case EventKind.REVIVED:
            yield Mark("↑", f"{event.text('player')} is back from the dead", place, "good")
        case _:
            return


def _end(event: GameEvent) -> str:
    """How a player died, by the event of the death."""
    causes = event.names("causes")
    when = f"Day {event.day}" if causes == (LYNCH.name,) else f"Night {event.day - 1}"
    return f"died, {when} ({listed(causes)})"


def _facts(game: PlayedGame) -> Iterator[Fact]:
    """Who won, as the list of games has it, and how the game ended, which all learned.

    All are told which groups won. Which neutrals met a goal of their own only the outcome knows.
    """
    if game.outcome:
        winners = game_values(game.outcome)["winner"]
        yield _won("winners", tuple(winners) if isinstance(winners, list) else ())
    for place, event in enumerate(game.events):
        if event.kind == EventKind.GAME_END:
            yield _won("announced winners", event.names("winners"), place)
            yield Fact("ending", f"{event.text('ending')}: {event.text('reason')}", event=place)
            yield Fact("days", str(event.day), event=place)


def _won(name: str, winners: Sequence[str], place: int | None = None) -> Fact:
    tone = tone_of(faction_of_name(winners[0])) if len(winners) == 1 else "plain"
    return Fact(name, listed([winner.title() for winner in winners]) or "none", tone, place)


def faction_of_name(name: str) -> Faction | None:
    """A faction by its name; None for another winner, such as a single player."""
    return next((faction for faction in Faction if faction.value == name), None)


def _member_facts(game: PlayedGame, name: str) -> Iterator[Fact]:
    """What was learned of a player, in order, then what was true at the end."""
    for place, event in enumerate(game.events):
        for role in _roles_shown(event, name):
            yield from _role_facts(role, place)
        if event.kind == EventKind.QUARRY and event.seats == (name,):
            yield Fact("target", event.text("target"), event=place)
        if event.kind == EventKind.DEATH and event.text("player") == name:
            yield Fact("fate", _end(event), "quiet", place)
        if event.kind == EventKind.REVIVED and event.text("player") == name:
            yield Fact("fate", f"back from the dead, {event.label}", "good", place)
    yield from _true_facts(game, name)


def _roles_shown(event: GameEvent, name: str) -> Iterator[str]:
    """The role of a player that an event shows; none where it was cleaned away."""
    if (event.kind in _CARDS and event.seats == (name,)) or (
        event.kind in _NAMED and event.text("player") == name and event.text("role") != UNKNOWN_ROLE
    ):
        yield event.text("role")
    elif isinstance(members := event.data.get("members"), dict) and name in members:
        yield str(members[name])


def _role_facts(role: str, place: int | None) -> Iterator[Fact]:
    faction = faction_of(role)
    yield Fact("role", role, tone_of(faction), place)
    if faction is not None:
        yield Fact("faction", title_of(faction), tone_of(faction), place)


def _true_facts(game: PlayedGame, name: str) -> Iterator[Fact]:
    yield from _role_facts(game.role_at(name, len(game.events)), None)
    if (dealt := game.role_at(name, 0)) != game.role_at(name, len(game.events)):
        yield Fact("dealt", dealt, tone_of(faction_of(dealt)))
    players = game.outcome.get("players")
    for player in players if isinstance(players, list) else ():
        if isinstance(player, dict) and player.get("agent") == name:
            if player.get("alive"):
                yield Fact("fate", "lived", "good")
            yield Fact("result", "won" if player.get("won") else "lost", "good" if player.get("won") else "quiet")


def _notes(game: PlayedGame) -> dict[int, tuple[Note, ...]]:
    """The claims of each event with their verdicts; at dawn, the night before in truth."""
    found: defaultdict[int, list[Note]] = defaultdict(list)
    for night in game.nights.values():
        dawn = _dawn(game.events, night.day)
        found[dawn] += [Note("truth", line, verdict=f"Night {night.day}") for line in night_lines(night)]
    for claim in game.claims:
        is_open = claim.channel in ("public", "whisper")
        text = claimed(claim) if is_open else f"{claim.player} {claimed(claim)}"
        found[claim.event].append(Note("claim", text, claim_tone(claim), claim.judgement))
    return {place: tuple(notes) for place, notes in found.items()}


def _dawn(events: Sequence[GameEvent], day: int) -> int:
    """The first event after the night of a day; the last of all where the game ended in it."""
    after = (place for place, event in enumerate(events) if event.day > day and not event.is_night)
    return next(after, len(events) - 1)


def _agents(game: PlayedGame) -> Iterator[tuple[int, str]]:
    """Who acted in an event, where the event says so itself."""
    names = frozenset(game.names)
    for place, event in enumerate(game.events):
        if event.kind in _SPOKEN and event.text("player") in names:
            yield place, event.text("player")
        elif event.kind in _CHOSEN and event.seats is not None and len(event.seats) == 1:
            yield place, event.seats[0]
