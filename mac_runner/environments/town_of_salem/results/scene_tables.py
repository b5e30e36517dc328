"""The votes of each trial and the ledger of claims, as tables of a page.

Rows are in seat order: any order by the truth would say who belongs together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mac_runner.environments.town_of_salem.model.events import EventKind
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.results.played_game import PlayedGame, tone_of
from mac_runner.environments.town_of_salem.results.truth import RecordedClaim, claimed
from mac_runner.view_model import Cell, TableRow, Tone, ViewTable

_BALLOTS: Final[Mapping[str, str]] = {"guilty": "G", "innocent": "I", "abstain": "A"}
_BLANK: Final = Cell("")
_VERDICT_TONES: Final[Mapping[str, Tone]] = {"honest": "good", "lie": "bad"}


class _Voting(NamedTuple):
    """The nominations up to a trial or to the end of a day, and the ballots."""

    first: int
    votes: list[tuple[int, str, str]]
    """Of each, its event, who voted, and for whom; empty for a vote withdrawn."""
    trial: int | None = None
    ballots: int | None = None


def vote_tables(game: PlayedGame) -> Iterator[ViewTable]:
    """A table of voters and accused for each trial, and for a vote that led to none."""
    for number, voting in enumerate((one for one in _votings(game) if one.votes or one.ballots is not None), start=1):
        yield _vote_table(game, voting, number)


def _votings(game: PlayedGame) -> Iterator[_Voting]:
    current: _Voting | None = None
    for place, event in enumerate(game.events):
        match event.kind:
            case EventKind.VOTING_START:
                if current is not None:
                    yield current
                current = _Voting(place, [])
            case EventKind.VOTE | EventKind.UNVOTE:
                if current is None or current.trial is not None:
                    if current is not None:
                        yield current
                    current = _Voting(place, [])
                target = event.text("target") if event.kind == EventKind.VOTE else ""
                current.votes.append((place, event.text("player"), target))
            case EventKind.TRIAL:
                current = (current or _Voting(place, []))._replace(trial=place)
            case EventKind.BALLOTS if current is not None:
                current = current._replace(ballots=place)
            case _:
                pass
    if current is not None:
        yield current


def _vote_table(game: PlayedGame, voting: _Voting, number: int) -> ViewTable:
    accused = list(dict.fromkeys(target for _, _, target in voting.votes if target))
    tried = "" if voting.trial is None else game.events[voting.trial].text("accused")
    if tried and tried not in accused:
        accused.append(tried)
    ballots = _ballots(game, voting)
    day = game.events[voting.first].label
    heads = [Cell(name, tone_of(game.faction_at(name, voting.first))) for name in accused]
    if ballots:
        heads.append(Cell("ballot", title=f"how each voter judged {tried}", event=voting.ballots))
    voters = {voter for _, voter, _ in voting.votes} | ballots.keys()
    return ViewTable(
        name=f"votes-{number}",
        title=f"{day}: trial of {tried}" if tried else f"{day}: votes without a trial",
        kind="matrix",
        corner="voter",
        heads=tuple(heads),
        rows=tuple(
            TableRow(
                Cell(name, tone_of(game.faction_at(name, voting.first))),
                (
                    *(_vote_cell(game, voting, name, target) for target in accused),
                    *((_ballot_cell(game, voting, ballots.get(name, ""), tried),) if ballots else ()),
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


def _vote_cell(game: PlayedGame, voting: _Voting, voter: str, target: str) -> Cell:
    """The place of the last vote of a voter for a player, in parentheses where it did not last."""
    order = [one for one in voting.votes if one[2]]
    mine = [one for one in voting.votes if one[1] == voter]
    given = [one for one in mine if one[2] == target]
    if not given:
        return _BLANK
    place = order.index(given[-1]) + 1
    is_kept = mine[-1] == given[-1]
    return Cell(
        text=str(place) if is_kept else f"({place})",
        tone=_tone(game, target, is_against=True, place=voting.first) if is_kept else "quiet",
        event=given[-1][0],
        title=f"vote {place}, for {target}{'' if is_kept else ', taken back'}",
        verdict=_verdict(game, target, is_against=True, place=voting.first),
    )


def _ballots(game: PlayedGame, voting: _Voting) -> dict[str, str]:
    if voting.ballots is None:
        return {}
    event = game.events[voting.ballots]
    return {name: ballot for ballot in _BALLOTS for name in event.names(ballot)}


def _ballot_cell(game: PlayedGame, voting: _Voting, ballot: str, accused: str) -> Cell:
    if not ballot:
        return _BLANK
    is_judged = ballot != "abstain"
    return Cell(
        text=_BALLOTS[ballot],
        tone=_tone(game, accused, is_against=ballot == "guilty", place=voting.first) if is_judged else "quiet",
        event=voting.ballots,
        title=ballot,
        verdict=_verdict(game, accused, is_against=ballot == "guilty", place=voting.first) if is_judged else "",
    )


def _tone(game: PlayedGame, accused: str, *, is_against: bool, place: int) -> Tone:
    return "good" if _verdict(game, accused, is_against=is_against, place=place) == "right" else "bad"


def _verdict(game: PlayedGame, accused: str, *, is_against: bool, place: int) -> str:
    """Whether a vote is right for the Town."""
    is_town = game.faction_at(accused, place) is Faction.TOWN
    return "right" if is_against != is_town else "wrong"


def claim_tone(claim: RecordedClaim) -> Tone:
    """How the verdict on a claim is coloured."""
    word = claim.judgement.partition(",")[0]
    return _VERDICT_TONES.get(word, "warn" if claim.truth else "quiet")


def claim_table(game: PlayedGame) -> Iterator[ViewTable]:
    """The ledger: who claimed what and when, the verdict, and where the speaker said otherwise later."""
    if game.claims:
        heads = ("when", "where", "claim", "verdict", "later")
        yield ViewTable(
            name="claims",
            title="claims",
            kind="list",
            corner="speaker",
            heads=tuple(map(Cell, heads)),
            rows=tuple(_claim_row(game, place) for place in range(len(game.claims))),
        )


def _claim_row(game: PlayedGame, number: int) -> TableRow:
    claim = game.claims[number]
    event, speaker = game.events[claim.event], game.shown_speaker(claim)
    real = "" if speaker == claim.player else f" (by {claim.player})"
    faction = game.faction_at(claim.player, claim.event)
    return TableRow(
        Cell(speaker, tone_of(faction), claim.event),
        (
            Cell(event.when, event=claim.event),
            Cell(claim.channel, event=claim.event),
            Cell(_shown_claim(game, claim), event=claim.event),
            Cell(f"{claim.judgement}{real}", claim_tone(claim)),
            _later(game, claim, game.claims[number + 1 :]),
        ),
    )


def _shown_claim(game: PlayedGame, claim: RecordedClaim) -> str:
    """What is claimed as those who read it know it: an author without a name speaks of itself by what it is called."""
    speaker = game.shown_speaker(claim)
    if claim.about == claim.player and speaker != claim.player:
        return claimed(claim.about_as(speaker))
    return claimed(claim)


def _later(game: PlayedGame, claim: RecordedClaim, later: Sequence[RecordedClaim]) -> Cell:
    """The next claim of the speaker that does not go with this one.

    It is known to those who saw both; the truth alone knows it where the two events have different audiences.
    """
    for other in later:
        if claim.contradicts(other):
            event = game.events[other.event]
            is_known = game.is_seen_by_all_of(claim.event, other.event) and game.shown_speaker(
                claim
            ) == game.shown_speaker(other)
            return Cell(f"{event.label}: {_shown_claim(game, other)}", "warn", other.event if is_known else None)
    return _BLANK
