"""A game as pages show it: days and nights, who was what, claims with verdicts, the nights in truth, and the votes.

Everything comes from the record. What a seat may know has the event that showed it; the words of such a part come from
that event alone, so that they hold nothing else. What only the truth knows has no event. Rows of tables are in seat
order: any order by the truth would say who belongs together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mac_runner.environments.town_of_salem.claims import ClaimKind, Says
from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, EventKind
from mac_runner.environments.town_of_salem.model.state import LYNCH, Faction
from mac_runner.environments.town_of_salem.record import (
    Claim,
    Event,
    GameRecord,
    Outcome,
    Voting,
    faction_of,
    read_record,
)
from mac_runner.environments.town_of_salem.truth import claimed, night_lines
from mac_runner.results import parsed
from mac_runner.types import JsonObject
from mac_runner.view_model import Cell, Fact, Mark, Note, Phase, Scene, Share, TableRow, Tone, ViewTable

_CARDS: Final = frozenset({EventKind.ROLE_CARD, EventKind.CONVERTED})
_NAMED: Final = frozenset({EventKind.REVEALED, EventKind.DEATH, EventKind.TEAM_CHANGED, EventKind.TEAM_JOINED})
"""Events that say which role the `player` of their data holds."""
_SPOKEN: Final = frozenset(
    {EventKind.SPEECH, EventKind.CHAT, EventKind.WHISPER, EventKind.WHISPER_SEEN, EventKind.VOTE, EventKind.UNVOTE}
)
"""Events in which the `player` of their data acts."""
_CHOSEN: Final = frozenset({EventKind.ACTION_CHOSEN, EventKind.JAIL_CHOSEN, EventKind.SEANCE_CHOSEN})
"""Events in which the one who learns of them acted."""


_TONES: Final[Mapping[Faction, Tone]] = {
    Faction.TOWN: "one",
    Faction.MAFIA: "two",
    Faction.NEUTRAL: "three",
    Faction.VAMPIRE: "four",
}
_BALLOT_SIGNS: Final[Mapping[str, str]] = {"guilty": "G", "innocent": "I", "abstain": "A"}
_BLANK: Final = Cell("")
_VOTE_TONES: Final[Mapping[str, Tone]] = {"right": "good", "wrong": "bad", "": "quiet"}
_VERDICT_TONES: Final[Mapping[str, Tone]] = {"honest": "good", "lie": "bad"}
_OPPOSITES: Final = (
    {Says.SUSPICIOUS, Says.NOT_SUSPICIOUS},
    {Says.MAFIA, Says.NOT_MAFIA},
    {Says.TOWN, Says.NOT_TOWN},
    {Says.MAFIA, Says.TOWN},
    {Says.EVIL, Says.NOT_EVIL},
    {Says.VAMPIRE, Says.NOT_VAMPIRE},
)


def _tone_of(faction: Faction | None) -> Tone:
    """How pages colour a faction."""
    return "plain" if faction is None else _TONES[faction]


def game_scene(transcript: JsonObject) -> Scene:
    """What pages show of a game, also of one that goes on or failed. Raises RunDirectoryError where it is damaged."""
    game = read_record(transcript.get("record"))
    if not game.events:
        return Scene()
    outcome = transcript.get("outcome")
    ended = parsed(Outcome, outcome, "the outcome of the game") if isinstance(outcome, dict) else None
    return Scene(
        phases=tuple(_phases(game)),
        facts=tuple(_facts(game, ended)),
        members=_member_facts(game, ended),
        notes=_notes(game),
        agents=dict(_agents(game)),
        tables=(*_vote_tables(game), *_claim_tables(game)),
    )


def _phases(game: GameRecord) -> Iterator[Phase]:
    """The days and nights, each with its deaths and trials, and with those who live at its end."""
    starts = [
        place for place, event in enumerate(game.events) if not place or event.label != game.events[place - 1].label
    ]
    for first, end in zip(starts, [*starts[1:], len(game.events)], strict=True):
        event = game.events[first]
        factions = Counter(game.faction_at(name, end) for name in game.living_at(end))
        yield Phase(
            label=event.label,
            kind="night" if event.phase.is_night else "day",
            first=first,
            marks=tuple(mark for place in range(first, end) for mark in _marks(place, game.events[place])),
            standing=tuple(
                Share(faction.value.title(), factions[faction], _tone_of(faction))
                for faction in Faction
                if faction in factions
            ),
        )


def _marks(place: int, event: Event) -> Iterator[Mark]:
    match event.kind:
        case EventKind.DEATH:
            role = event.said("role")
            faction = faction_of(role)
            yield Mark("†", f"{event.said('player')} ({role or UNKNOWN_ROLE}): {_end(event)}", place, _tone_of(faction))
        case EventKind.VERDICT:
            verdict = "guilty" if event.data.get("is_guilty") else "innocent"
            yield Mark("⚖", f"{event.said('accused')}: {verdict}", place)
        case EventKind.REVIVED:
            yield Mark("↑", f"{event.said('player')} is back from the dead", place, "good")
        case _:
            return


def _end(event: Event) -> str:
    """How a player died, by the event of the death."""
    causes = event.names("causes")
    when = f"Day {event.day}" if causes == [LYNCH.name] else f"Night {event.day - 1}"
    return f"died, {when} ({', '.join(causes)})"


def _facts(game: GameRecord, ended: Outcome | None) -> Iterator[Fact]:
    """Who won, as the list of games has it, and how the game ended, which all learned.

    All are told which groups won. Which neutrals met a goal of their own only the outcome knows.
    """
    if ended is not None:
        by_goal = {player.faction for player in ended.players if player.won}
        yield _won("winners", sorted({*ended.winners, *by_goal}))
    for place, event in enumerate(game.events):
        if event.kind == EventKind.GAME_END:
            yield _won("announced winners", event.names("winners"), place)
            yield Fact("ending", f"{event.said('ending')}: {event.said('reason')}", event=place)
            yield Fact("days", str(event.day), event=place)


def _won(name: str, winners: Sequence[str], place: int | None = None) -> Fact:
    # Another winner than a faction, such as a single player, has no colour.
    factions = [faction for faction in Faction if [faction.value] == [*winners]]
    text = ", ".join(winner.title() for winner in winners) or "none"
    return Fact(name, text, _tone_of(factions[0] if factions else None), place)


def _member_facts(game: GameRecord, ended: Outcome | None) -> dict[str, tuple[Fact, ...]]:
    """What was learned of each player, in order, then what was true at the end."""
    learned: defaultdict[str, list[Fact]] = defaultdict(list)
    for place, event in enumerate(game.events):
        for name, role in _roles_shown(event).items():
            learned[name] += _role_facts(role, place)
        match event.kind:
            case EventKind.QUARRY if event.seats is not None and len(event.seats) == 1:
                learned[event.seats[0]].append(Fact("target", event.said("target"), event=place))
            case EventKind.DEATH:
                learned[event.said("player")].append(Fact("fate", _end(event), "quiet", place))
            case EventKind.REVIVED:
                learned[event.said("player")].append(Fact("fate", f"back from the dead, {event.label}", "good", place))
            case _:
                pass
    return {name: (*learned[name], *_true_facts(game, ended, name)) for name in game.names}


def _true_facts(game: GameRecord, ended: Outcome | None, name: str) -> Iterator[Fact]:
    """What was true of a player at the end."""
    dealt, held = game.role_at(name, 0), game.role_at(name, len(game.events))
    yield from _role_facts(held, None)
    if dealt != held:
        yield Fact("dealt", dealt, _tone_of(faction_of(dealt)))
    for player in () if ended is None else ended.players:
        if player.agent == name:
            if player.alive:
                yield Fact("fate", "lived", "good")
            yield Fact("result", "won" if player.won else "lost", "good" if player.won else "quiet")


def _roles_shown(event: Event) -> Mapping[str, str]:
    """The roles that an event shows, by player; none that was cleaned away."""
    members = event.data.get("members")
    shown = {str(name): str(role) for name, role in members.items()} if isinstance(members, dict) else {}
    if event.kind in _CARDS and event.seats is not None and len(event.seats) == 1:
        shown[event.seats[0]] = event.said("role")
    elif event.kind in _NAMED and event.said("role") != UNKNOWN_ROLE:
        shown[event.said("player")] = event.said("role")
    return shown


def _role_facts(role: str, place: int | None) -> Iterator[Fact]:
    faction = faction_of(role)
    yield Fact("role", role, _tone_of(faction), place)
    if faction is not None:
        yield Fact("faction", faction.value.title(), _tone_of(faction), place)


def _notes(game: GameRecord) -> dict[int, tuple[Note, ...]]:
    """The claims of each event with their verdicts; at dawn, the night before in truth."""
    found: defaultdict[int, list[Note]] = defaultdict(list)
    for night in game.nights:
        after = bisect_right(game.events, night.day, key=lambda event: event.day)
        # The game may have ended in the night.
        last = len(game.events) - 1
        dawn = next((place for place in range(after, last) if not game.events[place].phase.is_night), last)
        found[dawn] += [Note("truth", line, verdict=f"Night {night.day}") for line in night_lines(night)]
    for claim in game.claims:
        is_open = claim.channel in ("public", "whisper")
        text = claimed(claim) if is_open else f"{claim.player} {claimed(claim)}"
        found[claim.event].append(Note("claim", text, _claim_tone(claim), claim.judgement))
    return {place: tuple(notes) for place, notes in found.items()}


def _agents(game: GameRecord) -> Iterator[tuple[int, str]]:
    """Who acted in an event, where the event says so itself."""
    names = frozenset(game.names)
    for place, event in enumerate(game.events):
        if event.kind in _SPOKEN and event.said("player") in names:
            yield place, event.said("player")
        elif event.kind in _CHOSEN and event.seats is not None and len(event.seats) == 1:
            yield place, event.seats[0]


def _vote_tables(game: GameRecord) -> Iterator[ViewTable]:
    """A table of voters and accused for each trial, and for a vote that led to none."""
    shown = (voting for voting in game.votings if voting.votes or voting.judged is not None)
    return (_vote_table(game, voting, number) for number, voting in enumerate(shown, start=1))


def _vote_table(game: GameRecord, voting: Voting, number: int) -> ViewTable:
    tried, first = voting.accused, voting.first
    accused = [*dict.fromkeys([*(vote.target for vote in voting.votes if vote.is_given), *([tried] if tried else [])])]
    day = game.events[first].label
    heads = [Cell(name, _tone_of(game.faction_at(name, first))) for name in accused]
    if voting.ballots:
        heads.append(Cell("ballot", title=f"how each voter judged {tried}", event=voting.judged))
    voters = {vote.voter for vote in voting.votes} | voting.ballots.keys()
    return ViewTable(
        name=f"votes-{number}",
        title=f"{day}: trial of {tried}" if tried else f"{day}: votes without a trial",
        kind="matrix",
        corner="voter",
        heads=tuple(heads),
        rows=tuple(
            TableRow(
                Cell(name, _tone_of(game.faction_at(name, first))),
                (
                    *(_vote_cell(game, voting, name, target) for target in accused),
                    *((_ballot_cell(game, voting, name),) if voting.ballots else ()),
                ),
            )
            for name in game.names
            if name in voters
        ),
        note=(
            "A number is the place of a vote in the order of voting; G is guilty, I innocent, A abstains. "
            "Good is what is against a player outside the Town, or for one of the Town."
        ),
    )


def _vote_cell(game: GameRecord, voting: Voting, voter: str, target: str) -> Cell:
    """The place of the last vote of a voter for a player, in parentheses where it did not last."""
    mine = [vote for vote in voting.votes if vote.voter == voter]
    given = [vote for vote in mine if vote.is_given and vote.target == target]
    if not given:
        return _BLANK
    vote, is_kept = given[-1], mine[-1] is given[-1]
    order = [one for one in voting.votes if one.is_given].index(vote) + 1
    verdict = _verdict(game, voting, target, is_against=True)
    title = f"vote {order}, for {target}"
    if is_kept:
        return Cell(str(order), _VOTE_TONES[verdict], vote.place, title, verdict)
    return Cell(f"({order})", "quiet", vote.place, f"{title}, taken back", verdict)


def _ballot_cell(game: GameRecord, voting: Voting, judge: str) -> Cell:
    ballot = voting.ballots.get(judge)
    if ballot is None:
        return _BLANK
    verdict = ""
    if ballot != "abstain":
        verdict = _verdict(game, voting, voting.accused, is_against=ballot == "guilty")
    return Cell(_BALLOT_SIGNS[ballot], _VOTE_TONES[verdict], voting.judged, ballot, verdict)


def _verdict(game: GameRecord, voting: Voting, accused: str, *, is_against: bool) -> str:
    """Whether a vote is right for the Town."""
    is_town = game.faction_at(accused, voting.first) is Faction.TOWN
    return "right" if is_against != is_town else "wrong"


def _claim_tone(claim: Claim) -> Tone:
    """How the verdict on a claim is coloured."""
    return _VERDICT_TONES.get(claim.verdict, "warn" if claim.truth else "quiet")


def _claim_tables(game: GameRecord) -> Iterator[ViewTable]:
    """The ledger: who claimed what and when, the verdict, and where the speaker said otherwise later."""
    if game.claims:
        yield ViewTable(
            name="claims",
            title="claims",
            kind="list",
            corner="speaker",
            heads=tuple(map(Cell, ("when", "where", "claim", "verdict", "later"))),
            rows=(*_claim_rows(game),)[::-1],
        )


def _claim_rows(game: GameRecord) -> Iterator[TableRow]:
    """The rows of the ledger, the last one first."""
    later: defaultdict[tuple[str, str, ClaimKind], dict[tuple[Says, tuple[str, ...]], Claim]] = defaultdict(dict)
    for claim in reversed(game.claims):
        # By what it says, the next claim of the same player about the same one, from the last to the first.
        others = later[claim.player, claim.about, claim.kind]
        found = next((other for other in reversed(others.values()) if _contradict(claim, other)), None)
        others.pop(what := (claim.says, tuple(claim.roles)), None)
        others[what] = claim
        place, speaker = claim.event, _shown_speaker(game, claim)
        real = "" if speaker == claim.player else f" (by {claim.player})"
        yield TableRow(
            Cell(speaker, _tone_of(game.faction_at(claim.player, place)), place),
            (
                Cell(game.events[place].when, event=place),
                Cell(claim.channel, event=place),
                Cell(_shown_claim(game, claim), event=place),
                Cell(f"{claim.judgement}{real}", _claim_tone(claim)),
                _BLANK if found is None else _later(game, claim, found),
            ),
        )


def _shown_speaker(game: GameRecord, claim: Claim) -> str:
    """Who speaks in a claim as its event shows it: in jail the Jailor; a death note has no name."""
    if claim.channel == "death note":
        return claim.channel
    return game.events[claim.event].said("player") or claim.player


def _shown_claim(game: GameRecord, claim: Claim) -> str:
    """What is claimed as those who read it know it: an author without a name speaks of itself by what it is called."""
    return claimed(claim, _shown_speaker(game, claim) if claim.about == claim.player else claim.about)


def _contradict(claim: Claim, other: Claim) -> bool:
    """Whether two claims with one subject say one thing and another instead.

    Two roles contradict each other where no role is in both; a role held before contradicts nothing.
    """
    if Says.WAS_ROLE in (claim.says, other.says):
        return False
    if claim.roles and other.roles:
        return not {*claim.roles} & {*other.roles}
    return claim.kind is not ClaimKind.ROLE and {claim.says, other.says} in _OPPOSITES


def _later(game: GameRecord, claim: Claim, other: Claim) -> Cell:
    """A later claim that does not go with one.

    It is known to those who saw both; the truth alone knows it where the two events have different audiences.
    """
    first, then = game.events[claim.event], game.events[other.event]
    is_seen = first.seats is None or (then.seats is not None and {*then.seats} <= {*first.seats})
    is_known = is_seen and _shown_speaker(game, claim) == _shown_speaker(game, other)
    return Cell(f"{then.label}: {_shown_claim(game, other)}", "warn", other.event if is_known else None)
