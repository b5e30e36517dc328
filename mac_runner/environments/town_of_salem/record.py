"""What a transcript says of a game: its record and its outcome, and the tables that are exported of them.

Each thing that is said is a struct, which is written and read as it stands here. What its fields mean is told by their
annotations: the columns of exported tables and the lists in the documentation come from these. A field that has a
default is not written where it has that value. Players go by their names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from operator import itemgetter
from string import capwords
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from mac_runner.environments.town_of_salem import claims
from mac_runner.environments.town_of_salem.claims import ClaimKind, Says, leaning
from mac_runner.environments.town_of_salem.model.events import EventKind
from mac_runner.environments.town_of_salem.model.state import TEAMS, Ballot, Faction, Phase
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.seat.knowledge import moment
from mac_runner.flat import NUMBER, Cells, columns_of, value_at
from mac_runner.results import AgentColumns, Export, ExportColumn, export_of, parsed
from mac_runner.types import JsonObject, JsonValue

Day: TypeAlias = Annotated[int, Meta(description="the day")]
DayBefore: TypeAlias = Annotated[int, Meta(description="the day before the night")]
PhaseOfDay: TypeAlias = Annotated[Phase, Meta(description="the phase of the day")]
Targets: TypeAlias = Annotated[list[str], Meta(description="whom it was for")]


_Known = TypeVar("_Known")
_FATES: Final = frozenset({EventKind.DEATH, EventKind.REVIVED})


class Verdict(StrEnum):
    """Whether a speaker said what they knew."""

    HONEST = "honest"
    LIE = "lie"
    UNCLEAR = "unclear"


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a transcript says."""


class CastMember(Row, frozen=True):
    """A player as it was dealt."""

    name: Annotated[str, Meta(description="the player")]
    seat: Annotated[int, Meta(description="where it sits, from 0")]
    slot: Annotated[str | None, Meta(title="role_slot", description="the entry of the role list that it fills")]
    role: Annotated[str, Meta(description="the role dealt")]
    target: Annotated[str | None, Meta(description="the player that this one wins by seeing executed")]
    definition: Annotated[str, Meta(description="its entry of `agent_definitions`")]
    model: Annotated[str, Meta(description="its entry of `model_definitions`")]


class Event(Row, frozen=True):
    """Something that happened."""

    when: Annotated[str, Meta(description="when it happened, in words")]
    day: Day
    phase: PhaseOfDay
    kind: Annotated[str, Meta(description="its kind, such as `speech`")]
    turn: Annotated[
        str | None,
        Meta(description="the turn that made it; null for what the rules do by themselves, such as a death at dawn"),
    ]
    audience: Annotated[list[str] | Literal["all"], Meta(description="`all`, or those who learned of it")]
    text: Annotated[str, Meta(description="what happened, in words")]
    data: Annotated[dict[str, Any], Meta(description="what happened, as data")]

    @property
    def label(self) -> str:
        """The day or night that it belongs to: `Day 2`, `Night 3`."""
        return self.when.partition(",")[0]

    @property
    def seats(self) -> list[str] | None:
        """Who learned of it; None for all."""
        return self.audience if isinstance(self.audience, list) else None

    def said(self, key: str) -> str:
        """A field of its data as text; empty where there is none."""
        found = self.data.get(key)
        return found if isinstance(found, str) else ""

    def names(self, key: str) -> list[str]:
        """A list of its data; empty where there is none."""
        found = self.data.get(key)
        return [*map(str, found)] if isinstance(found, list | dict) else []


class Option(Row, frozen=True):
    """Where options are shuffled, the chosen one."""

    place: Annotated[int, Meta(title="option_place", description="the place of the chosen option")]
    of: Annotated[int, Meta(title="option_of", description="of how many options")]


class Simulated(Row, frozen=True):
    """Under information lag, when a turn ran."""

    started_ms: Annotated[float, Meta(description="when it began, simulated", extra={"unit": "ms"})]
    ended_ms: Annotated[float, Meta(description="when it ended, simulated", extra={"unit": "ms"})]


class Act(Row, frozen=True):
    """What a player did, or a reply that was refused."""

    day: Day
    phase: PhaseOfDay
    round: Annotated[int, Meta(description="the round, as in `turns`")]
    player: Annotated[str, Meta(title="agent", description="who acted")]
    act: Annotated[str | None, Meta(description="what was done; empty for a reply that was refused")]
    targets: Targets
    is_default: Annotated[bool, Meta(description="whether it took the place of an answer")]
    legality: Annotated[
        Literal["legal", "default", "lapsed", "refused"], Meta(description="`legal`, `default`, `lapsed` or `refused`")
    ]
    text: Annotated[str, Meta(description="the words")] = ""
    choice: Annotated[str, Meta(description="a channel, or what was judged")] = ""
    option: Option | None = None
    is_lapsed: Annotated[bool, Meta(description="whether it was possible no more")] = False
    reason: Annotated[str, Meta(description="why it was refused, or had lapsed")] = ""
    turn: Annotated[str, Meta(description="of a refused reply, its turn")] = ""
    simulated: Simulated | None = None


class Jail(Row, frozen=True):
    """Who was held in jail."""

    jailor: Annotated[str, Meta(description="who held the prisoner")]
    prisoner: Annotated[str, Meta(description="who was held")]


class Action(Row, frozen=True):
    """What a player does at night."""

    act: Annotated[str, Meta(description="what is done, such as `heal`")]
    targets: Targets
    text: Annotated[str, Meta(description="the words that go with it")] = ""


class Deed(Row, frozen=True):
    """What a player chose to do at night."""

    player: Annotated[str, Meta(title="agent", description="who chose it")]
    role: Annotated[str, Meta(description="the role that it was chosen with")]
    act: Annotated[str, Meta(description="what was chosen, such as `heal`")]
    targets: Targets
    text: Annotated[str, Meta(description="the words that go with it")] = ""


class Change(Row, frozen=True):
    """What came between a choice and what happened."""

    how: Annotated[str, Meta(description="in a word or two, such as `blocked`")]
    players: Annotated[list[str], Meta(description="whom it befell")]
    by: Annotated[str | None, Meta(description="whose doing it was")]
    was: Annotated[Action | None, Meta(description="the deed before")]
    now: Annotated[Action | None, Meta(description="the deed after")]


class Visit(Row, frozen=True):
    """Who went to whose house."""

    visitor: Annotated[str, Meta(description="who went there")]
    house: Annotated[str, Meta(description="whose house it is")]


class Protection(Row, frozen=True):
    """What kept a player from harm."""

    how: Annotated[str, Meta(description="in a word, such as `healed`; `defended` for a defence of one's own")]
    player: Annotated[str, Meta(description="who was protected")]
    by: Annotated[str, Meta(description="by whom")]
    strength: Annotated[str, Meta(description="how strong a defence of one's own was")] = ""


class Mark(Row, frozen=True, rename={"shown_as": "as"}):
    """What a player was made to be for a night."""

    player: Annotated[str, Meta(description="who was marked")]
    mark: Annotated[str, Meta(description="`framed`, `doused` and the like")]
    shown_as: Annotated[str, Meta(description="of who was `disguised`, as whom")] = ""


class Attack(Row, frozen=True):
    """An attack, and what came of it."""

    attacker: Annotated[str, Meta(description="who attacked")]
    victim: Annotated[str, Meta(description="whom")]
    cause: Annotated[str, Meta(description="what the victim would die of, such as `mafia`")]
    strength: Annotated[str, Meta(description="how strong it was")]
    defence: Annotated[str | None, Meta(description="the defence that it met; null where none was asked")]
    outcome: Annotated[str, Meta(description="what came of it, such as `killed`")]


class Finding(Row, frozen=True):
    """What a player found out about others."""

    player: Annotated[str, Meta(description="who found it out")]
    kind: Annotated[str, Meta(description="the kind of its event")]
    data: Annotated[dict[str, Any], Meta(description="what was found out")]


class Night(Row, frozen=True):
    """How a night was resolved."""

    day: DayBefore
    jail: Annotated[Jail | None, Meta(description="who was held in jail, and by which player")]
    deeds: Annotated[list[Deed], Meta(description="what was chosen")]
    changes: Annotated[list[Change], Meta(description="deeds that became others: how, to whom, by whom")]
    visits: Annotated[list[Visit], Meta(description="who visited whom")]
    protections: Annotated[list[Protection], Meta(description="who was protected, how, by whom")]
    marks: Annotated[list[Mark], Meta(description="who was framed, doused and the like")]
    attacks: Annotated[list[Attack], Meta(description="who attacked whom, and what came of it")]
    findings: Annotated[list[Finding], Meta(description="what was found out, by whom")]
    deaths: Annotated[list[str], Meta(description="who died")]


class TrialVote(Row, frozen=True):
    """A vote that made a trial."""

    voter: Annotated[str, Meta(description="who voted")]
    order: Annotated[int, Meta(description="its place in the order of voting, from 1")]


class Trial(Row, frozen=True):
    """A trial; it has no verdict where the game was stopped before there was one."""

    day: Day
    accused: Annotated[str, Meta(description="who was tried")]
    votes: Annotated[list[TrialVote], Meta(description="the votes on the accused that opened the trial, in order")]
    guilty: Annotated[list[str], Meta(description="who judged guilty")]
    innocent: Annotated[list[str], Meta(description="who judged innocent")]
    abstain: Annotated[list[str], Meta(description="who abstained")]
    verdict: Annotated[
        Literal["guilty", "innocent"] | None, Meta(description="`guilty`, `innocent`; empty where there was none")
    ]


class Death(Row, frozen=True):
    """A death; a lynch has no killers, its trial has the votes and ballots."""

    day: Day
    at: Annotated[Literal["day", "night"], Meta(description="`day` or `night`")]
    player: Annotated[str, Meta(title="agent", description="who died")]
    role: Annotated[str, Meta(description="the role held")]
    role_shown: Annotated[str | None, Meta(description="the role that all were shown")]
    causes: Annotated[list[str], Meta(description="`lynch`, `mafia`, or another cause")]
    killers: Annotated[list[str], Meta(description="who killed; empty for a lynch")]


class RoleChange(Row, frozen=True, rename={"was": "from", "now": "to"}):
    """Who became what."""

    day: Day
    phase: PhaseOfDay
    player: Annotated[str, Meta(title="agent", description="whose role changed")]
    was: Annotated[str, Meta(description="the role before")]
    now: Annotated[str, Meta(description="the role after")]
    why: Annotated[str, Meta(description="why")]


class Claim(Row, frozen=True, kw_only=True, dict=True):
    """What a player said is so, and whether it was honest."""

    event: Annotated[int, Meta(description="the event that holds the words")]
    day: Day
    phase: PhaseOfDay
    player: Annotated[str, Meta(title="agent", description="who said it")]
    channel: Annotated[str, Meta(description="`public`, `whisper`, a chat of the night, `will` or `death note`")]
    kind: Annotated[ClaimKind, Meta(description="the kind of claim, such as `role` or `accusation`")]
    about: Annotated[str, Meta(description="the player it is about")]
    says: Annotated[Says, Meta(description="what is claimed, such as `role` or `suspicious`")]
    roles: Annotated[list[str], Meta(description="the roles that it names")] = []
    names: Annotated[list[str] | None, Meta(description="the visitors that it names")] = None
    start: Annotated[int, Meta(description="where the claim begins in the words", extra={"unit": "characters"})]
    end: Annotated[int, Meta(description="where it ends", extra={"unit": "characters"})]
    verdict: Annotated[Verdict, Meta(description="`honest`, `lie` or `unclear`")]
    is_so: Annotated[bool | None, Meta(description="whether it was so; empty where roles do not decide")]
    truth: Annotated[str, Meta(description="what was so instead, for an error")] = ""

    @property
    def judgement(self) -> str:
        """The verdict, and what was so instead: `honest, but wrong: Abel is the Doctor`."""
        return f"{self.verdict}, but wrong: {self.truth}" if self.truth else self.verdict

    @cached_property
    def words(self) -> claims.Claim:
        """What it says, wherever that was said."""
        return claims.Claim(kind=self.kind, says=self.says, about=self.about, roles=tuple(self.roles), start=0, end=0)

    @cached_property
    def leaning(self) -> int:
        """Whether it speaks for (1) or against (-1) the player it is about; 0 for neither."""
        return leaning(self.words)


class GameRecord(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What happened in a game, what was done, and the truth about it; all of it is written, also where it is empty."""

    kind: Annotated[str, Meta(description="`town_of_salem`")] = "town_of_salem"
    lobby: Annotated[list[str], Meta(description="the role list")] = []
    cast: Annotated[list[CastMember], Meta(description="the players as they were dealt")] = []
    events: Annotated[list[Event], Meta(description="what happened, in order")] = []
    acts: Annotated[list[Act], Meta(description="what players did, and whether it was legal")] = []
    nights: Annotated[list[Night], Meta(description="how nights were resolved")] = []
    trials: Annotated[list[Trial], Meta(description="the trials")] = []
    deaths: Annotated[list[Death], Meta(description="the deaths; a lynch has no killers")] = []
    role_changes: Annotated[list[RoleChange], Meta(description="who became what")] = []
    claims: Annotated[list[Claim], Meta(description="what players said is so, with a verdict on their honesty")] = []

    def __post_init__(self) -> None:
        for number, claim in enumerate(self.claims):
            if not 0 <= claim.event < len(self.events):
                raise ValueError(f"claims[{number}] is of event {claim.event}, and there are {len(self.events)}")

    @property
    def names(self) -> list[str]:
        """The players in the order of their seats."""
        return [member.name for member in self.cast]

    @cached_property
    def _held(self) -> Mapping[str, list[tuple[int, str]]]:
        """By player, the roles held, each with the event after which it was."""
        held = {member.name: [(-1, role_name(member.role))] for member in self.cast}
        for place, event in enumerate(self.events):
            if event.kind in (EventKind.ROLE_CARD, EventKind.CONVERTED):
                for name in event.seats or ():
                    held.setdefault(name, [(-1, "")]).append((place, event.said("role")))
        return held

    def role_at(self, name: str, place: int) -> str:
        """The role that a player holds at the event `place`; empty for a name that no player has."""
        return _before(self._held[name], place) if name in self._held else ""

    def faction_at(self, name: str, place: int) -> Faction | None:
        """The faction of a player at an event; None for a role that is not registered here."""
        return faction_of(self.role_at(name, place))

    @cached_property
    def _lives(self) -> Mapping[str, list[tuple[int, bool]]]:
        """By player, whether it lived, each with the event after which it did or did not."""
        lives = {name: [(-1, True)] for name in self.names}
        for place, event in enumerate(self.events):
            if event.kind in _FATES and (player := event.said("player")) in lives:
                lives[player].append((place, event.kind != EventKind.DEATH))
        return lives

    def living_at(self, place: int) -> list[str]:
        """The players who live at the event `place`, in the order of their seats."""
        return [name for name in self.names if _before(self._lives[name], place)]

    @cached_property
    def votings(self) -> list[Voting]:
        """Every voting, in order."""
        return [*votings(self.events)]

    @cached_property
    def _judgements(self) -> list[_Judgement]:
        found = list[_Judgement]()
        for voting in self.votings:
            found += [
                _Judgement(vote.place, voting.day, vote.voter, vote.target, True)
                for vote in voting.votes
                if vote.is_given
            ]
            found += [
                _Judgement(voting.judged, voting.day, judge, voting.accused, ballot == Ballot.GUILTY)
                for judge, ballot in voting.ballots.items()
                if voting.judged is not None and ballot != Ballot.ABSTAIN
            ]
        return found

    def followers(self, lie: Claim) -> list[str] | None:
        """Who did what a lie to all asks for later on its day, each time; None where nobody then voted or judged.

        They voted for the player that it is against or judged them guilty, or judged the player that it is for
        innocent. The liar's own team knows better.
        """
        day = self.events[lie.event].day
        after = [one for one in self._judgements if one.day == day and one.place > lie.event]
        team = self.faction_at(lie.player, lie.event)
        followers = [
            one.player
            for one in after
            if one.about == lie.about
            and one.is_against == (lie.leaning < 0)
            and one.player != lie.player
            and (team not in TEAMS or self.faction_at(one.player, one.place) is not team)
        ]
        return followers if after else None


def role_name(role_id: str) -> str:
    """What a role is called; of one that is not registered here, by its id."""
    return ROLES[role_id].name if role_id in ROLES else capwords(role_id)


def faction_of(role: str) -> Faction | None:
    """The faction of a role by its name."""
    found = ROLES.get(role.lower())
    return None if found is None else found.faction


def read_record(record: JsonValue) -> GameRecord:
    """The record of a transcript; an empty one where there is none. Raises RunDirectoryError where it does not fit."""
    return parsed(GameRecord, record if isinstance(record, dict) else {}, "the record of the game")


class PlayerOutcome(Row, frozen=True):
    """What became of a player."""

    agent: Annotated[str, Meta(description="the player")]
    definition: Annotated[str, Meta(description="its entry of `agent_definitions`")]
    model: Annotated[str, Meta(description="its entry of `model_definitions`")]
    seat: Annotated[int, Meta(description="where it sits, from 0")]
    role: Annotated[str, Meta(description="the role dealt")]
    final_role: Annotated[str, Meta(description="the role at the end")]
    faction: Annotated[str, Meta(description="the faction at the end")]
    won: Annotated[bool, Meta(description="whether the player won")]
    alive: Annotated[bool, Meta(description="whether the player was alive at the end")]
    death: Annotated[str | None, Meta(description="what the player died of")]
    died_on_day: Annotated[int | None, Meta(description="when the player died")]
    measures: Annotated[dict[str, int], Meta(description="counts for what is measured")]


class Outcome(Row, frozen=True):
    """How a game ended."""

    kind: Annotated[str, Meta(description="`game`")]
    ending: Annotated[str, Meta(description="`win`, `draw` or how else the game ended")]
    reason: Annotated[str, Meta(description="why it ended")]
    winners: Annotated[list[str], Meta(description="the factions that won")]
    days: Annotated[int, Meta(description="how many days it lasted", extra={"unit": "days"})]
    players: Annotated[list[PlayerOutcome], Meta(description="what became of each player")]


class Vote(NamedTuple):
    """A vote for a player, or one that is taken back."""

    place: int
    """Of its event."""
    voter: str
    target: str
    is_given: bool


class Voting(NamedTuple):
    """The votes up to a trial or to the end of a day, and what came of the trial."""

    first: int
    """The place of its first event."""
    day: int
    votes: list[Vote]
    trial: int | None = None
    """The place of the event that opened the trial."""
    accused: str = ""
    judged: int | None = None
    """The place of the event that showed the ballots."""
    ballots: Mapping[str, str] = {}
    """By judge: `guilty`, `innocent` or `abstain`."""
    verdict: Literal["guilty", "innocent"] | None = None

    @property
    def standing(self) -> list[Vote]:
        """The votes on the accused when the trial opened, in order: of each player the last one counts."""
        last = {vote.voter: vote for vote in self.votes}
        for_it = (vote for vote in self.votes if vote.is_given and vote.target == self.accused)
        return [vote for vote in for_it if vote is last[vote.voter]]

    def judges(self, ballot: Ballot) -> list[str]:
        """Those who cast a ballot."""
        return [judge for judge, cast in self.ballots.items() if cast == ballot]


def _before(story: Sequence[tuple[int, _Known]], place: int) -> _Known:
    """The last of what was so before an event, of a story that begins before all events."""
    return story[bisect_left(story, place, key=itemgetter(0)) - 1][1]


class _Judgement(NamedTuple):
    """A vote for a player, or a ballot on one."""

    place: int
    day: int
    player: str
    about: str
    is_against: bool


def votings(events: Iterable[Event]) -> Iterator[Voting]:
    """Every voting of a game, in order."""
    current: Voting | None = None
    for place, event in enumerate(events):
        match event.kind:
            case EventKind.VOTING_START | EventKind.VOTE | EventKind.UNVOTE | EventKind.TRIAL as kind:
                if current is None or current.trial is not None or kind == EventKind.VOTING_START:
                    if current is not None:
                        yield current
                    current = Voting(place, event.day, [])
                if kind == EventKind.TRIAL:
                    current = current._replace(trial=place, accused=event.said("accused"))
                elif kind != EventKind.VOTING_START:
                    is_given = kind == EventKind.VOTE
                    current.votes.append(Vote(place, event.said("player"), event.said("target"), is_given))
            case EventKind.BALLOTS if current is not None:
                ballots = {name: ballot.value for ballot in Ballot for name in event.names(ballot)}
                current = current._replace(judged=place, ballots=ballots)
            case EventKind.VERDICT if current is not None:
                current = current._replace(verdict="guilty" if event.data.get("is_guilty") else "innocent")
            case _:
                pass
    if current is not None:
        yield current


def moments(record: JsonObject) -> Mapping[int, str]:
    """When each round was: `Day 2, voting`, `Night 3`."""
    return {act.round: moment(act.day, act.phase) for act in read_record(record).acts}


def _vote_rows(transcript: JsonObject, _experiment: JsonObject) -> Iterator[dict[str, Cells]]:
    """Every nomination and judgement of a game, in order."""
    name = value_at(transcript, ("task", "task_id"))
    for number, row in enumerate(_votes(read_record(transcript.get("record")).events)):
        yield {"conversation": name if isinstance(name, str) else None, "vote": number, **row}


def _votes(events: Iterable[Event]) -> Iterator[dict[str, Cells]]:
    trials = 0
    for voting in votings(events):
        places = {vote: place for place, vote in enumerate(voting.standing, start=1)}
        for vote in voting.votes:
            yield {
                "trial": trials if vote in places else None,
                "day": voting.day,
                "agent": vote.voter,
                "accused": vote.target,
                "kind": "nominate" if vote.is_given else "withdraw",
                "place": places.get(vote),
                "event": vote.place,
            }
        for judge, ballot in voting.ballots.items():
            yield {"trial": trials, "day": voting.day, "agent": judge, "accused": voting.accused, "kind": ballot}
        trials += voting.trial is not None


def _export(
    where: str,
    row: type[Row],
    meaning: str,
    *,
    first: Sequence[str] = (),
    number: str = "",
    counted: str = "its number in the game",
    above: Mapping[str, ExportColumn] | None = None,
    without: str = "",
    has_more: bool = False,
) -> Export:
    """The table of the elements of a list. The columns `first` lead; they are its key, if rows have no `number`.

    `above` are columns of what the elements lie in; what is under the key `without` has a table of its own.
    """
    columns = {**(above or {}), **columns_of(where, row, without=(without,))}
    if number:
        columns[number] = ExportColumn("integer", f"{counted}, counted from 0", source=NUMBER)
    if has_more:
        columns["more"] = ExportColumn("json", "what else the record has of it", source=f"{where}.*")
    key = ("conversation", number) if number else ("conversation", *first)
    columns["conversation"] = _CONVERSATION
    leading = {name: columns[name] for name in (*key, *first)}
    return export_of(where, {**leading, **columns}, key=key, meaning=meaning)


_CONVERSATION: Final = ExportColumn("text", "the game", source="task.task_id")
_VOTE_COLUMNS: Final = {
    "conversation": _CONVERSATION,
    "vote": ExportColumn("integer", "its number in the game, counted from 0", source=NUMBER),
    "trial": ExportColumn("integer", "the trial, as in `trials`; empty for a vote that led to none"),
    "day": ExportColumn("integer", "the day", source="record.events[].day"),
    "agent": ExportColumn("text", "who voted", source="record.trials[].votes[].voter"),
    "accused": ExportColumn("text", "the player voted on", source="record.trials[].accused"),
    "kind": ExportColumn("text", "`nominate`, `withdraw`, or what was judged: `guilty`, `innocent`, `abstain`"),
    "place": ExportColumn(
        "integer", "of a vote that led to a trial, its place, from 1", source="record.trials[].votes[].order"
    ),
    "event": ExportColumn("integer", "of a nomination, its event"),
}
_NIGHTS: Final = _export(
    "record.nights[]", Night, "How nights were resolved.", first=("day",), without="deeds", has_more=True
)
EXPORTS: Final[Mapping[str, Export]] = {
    "claims": _export(
        "record.claims[]", Claim, "What players said is so, with a verdict on their honesty.", number="claim"
    ),
    "votes": Export(_VOTE_COLUMNS, _vote_rows, "Nominations, and the judgements of trials.", ("conversation", "vote")),
    "trials": _export("record.trials[]", Trial, "The trials.", number="trial", without="votes"),
    "deaths": _export("record.deaths[]", Death, "The deaths.", first=("agent", "day", "at"), has_more=True),
    "deeds": _export(
        "record.nights[].deeds[]",
        Deed,
        "What was chosen at night.",
        number="deed",
        above={"day": _NIGHTS.columns["day"]},
        without="text",
        has_more=True,
    ),
    "nights": _NIGHTS,
    "acts": _export(
        "record.acts[]",
        Act,
        "What players did, and whether it was legal.",
        first=(
            *("day", "phase", "round", "agent", "act", "targets", "choice", "text"),
            *("legality", "is_default", "is_lapsed", "reason", "turn"),
        ),
        number="place",
        counted="its place among the acts of the game",
    ),
    "role_changes": _export("record.role_changes[]", RoleChange, "Who became what.", number="change"),
}
"""The tables of games beside those that every run has."""

CONVERSATION_COLUMNS: Final = columns_of("outcome", Outcome, without=("kind", "players"))
_CAST: Final = columns_of("record.cast[]", CastMember, without=("name", "seat", "definition", "model"))
AGENT_COLUMNS: Final = (
    AgentColumns("record.cast[]", "name", {"role": _CAST["role"], **_CAST}),
    AgentColumns(
        "outcome.players[]",
        "agent",
        columns_of("outcome.players[]", PlayerOutcome, without=("agent", "definition", "model", "seat", "role")),
    ),
)
