"""What is measured in a finished game: counts for each seat, as `measures.py` lists them.

One pass over the events, with the claims and stated probabilities of each where they were made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mac_runner.environments.dialogue import Replies
from mac_runner.environments.town_of_salem.claims import Claim, ClaimKind, Says, estimates, leaning
from mac_runner.environments.town_of_salem.history import effects
from mac_runner.environments.town_of_salem.measures import Count
from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, Event, EventKind
from mac_runner.environments.town_of_salem.model.role import NightState
from mac_runner.environments.town_of_salem.model.state import TEAMS, Faction, GameState, Phase
from mac_runner.environments.town_of_salem.record import Verdict
from mac_runner.environments.town_of_salem.roles import ROLES, Role
from mac_runner.environments.town_of_salem.verdicts import JudgedClaim, Utterance, fits, opposes_town
from mac_runner.types import ReceiptKind

_VERDICTS = {Verdict.HONEST: Count.HONEST, Verdict.LIE: Count.LIE, Verdict.UNCLEAR: Count.UNCLEAR}
_KINDS = {
    ReceiptKind.CORRECTION: Count.CORRECTION,
    ReceiptKind.DEFAULT: Count.DEFAULT,
    ReceiptKind.OBSERVATION: Count.TOOL,
}
_SEEN = frozenset(
    {
        *(EventKind.ROLE_CARD, EventKind.CONVERTED, EventKind.DEATH, EventKind.REVEALED, EventKind.REVIVED),
        *(EventKind.VOTING_START, EventKind.VOTE, EventKind.UNVOTE, EventKind.TRIAL, EventKind.SPEECH),
        *(EventKind.BALLOTS, EventKind.VERDICT),
    }
)
"""The kinds of events that change what is counted."""


def reply_counts(replies: Replies, waits: int) -> Counter[str]:
    """What was made of the replies of a seat, which chose to wait so often."""
    row = Counter[str](
        {
            Count.REPLY: replies.turns,
            **{count: replies.of(kind) for kind, count in _KINDS.items()},
            Count.TURN: replies.of(ReceiptKind.ACT, ReceiptKind.DEFAULT),
            Count.SILENT: waits,
            Count.COUNTED_REPLY: replies.counted,
            Count.PROMPT_TOKENS: replies.tokens.prompt,
            Count.COMPLETION_TOKENS: replies.tokens.completion if replies.counted else 0,
        }
    )
    for (_, cause), count in replies.counts.items():
        if cause is not None:
            row[f"{Count.REFUSED}.{cause}"] += count
    return row


def measure(
    state: GameState,
    events: Sequence[Event],
    nights: Iterable[tuple[GameState, NightState]],
    words: Iterable[Utterance],
    claims: Iterable[JudgedClaim],
) -> list[Counter[str]]:
    """The counts of each seat of a finished game."""
    nights = tuple(nights)
    game = _Pass(state, events, {dusk.day: dusk for dusk, _ in nights})
    claims_at: defaultdict[int, list[JudgedClaim]] = defaultdict(list)
    for claim in claims:
        claims_at[claim.said.event].append(claim)
    words_at: defaultdict[int, list[Utterance]] = defaultdict(list)
    for said in words:
        words_at[said.event].append(said)
    for place, event in enumerate(events):
        game.see(event)
        for claim in claims_at.get(place, ()):
            game.hear(claim)
        for said in words_at.get(place, ()):
            game.note_estimates(said)
    game.end_day()
    for player in state.players:
        if ROLES[player.dealt].is_key:
            game.rows[player.name][Count.KEY_ROLE] = 1
            game.rows[player.name][Count.KEY_ROLE_ALIVE] = int(player.alive)
    for dusk, night in nights:
        for seat, had_effect in effects(dusk, night):
            row = game.rows[state.players[seat].name]
            row[Count.NIGHT_ACT] += 1
            row[Count.NIGHT_EFFECT] += had_effect
    return [game.rows[player.name] for player in state.players]


@dataclass(slots=True)
class _Lie:
    """A lie, and what came of it so far."""

    claim: Claim
    speaker: str
    about: str
    faction: Faction
    """That of the speaker."""
    followers: int = 0


@dataclass(slots=True)
class _Trial:
    accused: str
    backers: list[str]
    has_spoken: bool = False
    ballots: dict[str, list[str]] = field(default_factory=dict)


class _Pass:
    """A game as it went, event by event; players by name."""

    def __init__(self, state: GameState, events: Iterable[Event], dusks: dict[int, GameState]) -> None:
        self.rows: dict[str, Counter[str]] = {player.name: Counter() for player in state.players}
        self._state, self._dusks = state, dusks
        self._names = tuple(self.rows)
        self._roles: dict[str, Role] = {}
        self._evil: set[str] = set()
        """Those who oppose the Town, dead or alive."""
        for player in state.players:
            self._change_role(player.name, ROLES[player.dealt])
        self._living = set(self._names)
        self._seats = {player.name: player.seat for player in state.players}
        self._to_be_revealed = {event.text("player") for event in events if event.kind is EventKind.REVEALED}
        """Those who will show themselves."""
        self._day = 1
        self._standing: dict[str, str] = {}
        self._nominations: list[tuple[str, str]] = []
        self._last_voter = ""
        """Who voted in the event before this one."""
        self._trial: _Trial | None = None
        self._accused: set[str] = set()
        """Those whom another has accused or voted for."""
        self._lies: defaultdict[str, list[_Lie]] = defaultdict(list)
        """By the player they are about, those that nothing has contradicted."""
        self._heard: list[_Lie] = []
        """Those said to all today."""
        self._judged_until = 0
        """How many of these had been heard at the last vote or ballot."""
        self._spoken_for: defaultdict[str, set[str]] = defaultdict(set)
        """By player, those who spoke for them today."""

    def see(self, event: Event) -> None:
        """Go on by one event."""
        if event.day != self._day:
            self.end_day()
            self._day = event.day
        voter, self._last_voter = self._last_voter, ""
        if event.kind not in _SEEN:
            return
        match event.kind:
            case EventKind.ROLE_CARD | EventKind.CONVERTED:
                for seat in event.audience or ():
                    self._change_role(self._names[seat], ROLES[event.text("role").lower()])
            case EventKind.VOTING_START:
                self._standing, self._nominations = {}, []
            case EventKind.VOTE:
                self._vote(event.text("player"), event.text("target"))
            case EventKind.UNVOTE:
                self._standing.pop(event.text("player"), None)
            case EventKind.TRIAL:
                self._open_trial(event.text("accused"), voter)
            case EventKind.SPEECH if self._trial and event.phase is Phase.DEFENCE:
                self._trial.has_spoken = True
            case EventKind.BALLOTS if self._trial:
                self._trial.ballots = {key: event.names(key) for key in ("guilty", "innocent", "abstain")}
            case EventKind.VERDICT if self._trial:
                self._judge(self._trial, is_guilty=bool(event.data["is_guilty"]))
                self._trial = None
            case EventKind.DEATH:
                self._living.discard(event.text("player"))
                self._show(event)
            case EventKind.REVEALED:
                self._to_be_revealed.discard(event.text("player"))
                self._show(event)
            case EventKind.REVIVED:
                self._living.add(event.text("player"))
            case _:
                pass

    def _vote(self, voter: str, target: str) -> None:
        row, is_right = self.rows[voter], self._opposes(target)
        row[f"{Count.VOTE}.{self._day}"] += 1
        row[f"{Count.VOTE_RIGHT}.{self._day}"] += is_right
        row[f"{Count.VOTE_CHANCE}.{self._day}"] += self._chance(voter)
        self._standing.pop(voter, None)
        if target not in self._standing.values():
            row[Count.NOMINATION] += 1
            self._nominations.append((voter, target))
        self._standing[voter] = target
        self._last_voter = voter
        self._accused.add(target)
        self._follow(voter, target, is_against=True)

    def _chance(self, voter: str) -> int:
        """How many of the other living oppose the Town, in thousandths."""
        others = len(self._living) - (voter in self._living)
        evil = len(self._living & self._evil) - (voter in self._evil and voter in self._living)
        return round(1000 * evil / others) if others else 0

    def _opposes(self, name: str) -> bool:
        return name in self._evil

    def _change_role(self, name: str, role: Role) -> None:
        self._roles[name] = role
        if opposes_town(role):
            self._evil.add(name)
        else:
            self._evil.discard(name)

    def _open_trial(self, accused: str, voter: str) -> None:
        for nominator, target in self._nominations:
            self.rows[nominator][Count.NOMINATION_TRIED] += target == accused
        if voter:
            self.rows[voter][Count.VOTE_DECISIVE] += 1
            self.rows[voter][Count.VOTE_DECISIVE_RIGHT] += self._opposes(accused)
        backers = [name for name, target in self._standing.items() if target == accused]
        self._trial = _Trial(accused, backers)
        self._standing, self._nominations = {}, []

    def _judge(self, trial: _Trial, *, is_guilty: bool) -> None:
        weights = {name: self._weight(name) for side in ("guilty", "innocent") for name in trial.ballots[side]}
        margin = sum(weights[name] for name in trial.ballots["guilty"])
        margin -= sum(weights[name] for name in trial.ballots["innocent"])
        is_evil = self._opposes(trial.accused)
        for name, weight in weights.items():
            row, condemns = self.rows[name], name in trial.ballots["guilty"]
            is_right = condemns == is_evil
            # An innocent ballot on a player drawn by lot is right where a guilty one is wrong.
            chance = self._chance(name) if condemns else 1000 - self._chance(name)
            row[f"{Count.BALLOT}.{self._day}"] += 1
            row[f"{Count.BALLOT_RIGHT}.{self._day}"] += is_right
            row[f"{Count.BALLOT_CHANCE}.{self._day}"] += chance
            is_decisive = condemns == is_guilty and (margin - weight <= 0 if condemns else margin + weight > 0)
            row[Count.BALLOT_DECISIVE] += is_decisive
            row[Count.BALLOT_DECISIVE_RIGHT] += is_decisive and is_right
            if condemns and is_guilty:
                row[Count.LYNCH] += 1
                row[Count.MISLYNCH] += not is_evil
            self._follow(name, trial.accused, is_against=condemns)
        self._acquit(trial, is_acquitted=not is_guilty)

    def _acquit(self, trial: _Trial, *, is_acquitted: bool) -> None:
        """Count what words for the accused came to."""
        row = self.rows[trial.accused]
        row[Count.TRIED] += 1
        row[Count.ACQUITTED] += is_acquitted
        if trial.has_spoken:
            row[Count.DEFENDED] += 1
            row[Count.DEFENDED_ACQUITTED] += is_acquitted
            row[Count.BACKER] += len(trial.backers)
            row[Count.BACKER_SWAYED] += sum(name not in trial.ballots["guilty"] for name in trial.backers)
        for name in self._spoken_for[trial.accused]:
            self.rows[name][Count.SPOKE_FOR] += 1
            self.rows[name][Count.SPOKE_FOR_ACQUITTED] += is_acquitted

    def _weight(self, name: str) -> int:
        """How much a ballot weighs: by the player's marks at dusk, unless they showed themselves in between."""
        if name in self._to_be_revealed:
            return 1
        player = self._dusks.get(self._day, self._state).players[self._seats[name]]
        return ROLES[player.role].votes(player)

    def _show(self, event: Event) -> None:
        """Contradict lies by a role that all are shown."""
        name, shown = event.text("player"), event.text("role")
        if shown == UNKNOWN_ROLE:
            return
        role = ROLES[shown.lower()]
        self._contradict(name, lambda lie: lie.claim.says is not Says.WAS_ROLE and fits(lie.claim, role) is False)

    def hear(self, judged: JudgedClaim) -> None:
        """Count a claim, and let it contradict earlier lies."""
        said, claim, about, speaker = judged.said, judged.claim, judged.about, judged.said.player
        row = self.rows[speaker]
        is_other, is_public, leans = about != speaker, said.channel == "public", leaning(claim)
        row[_VERDICTS[judged.verdict]] += 1
        row[Count.HONEST_WRONG] += judged.verdict is Verdict.HONEST and judged.is_so is False
        if is_other and claim.is_against:
            opposes = opposes_town(judged.role)
            row[Count.ACCUSED_RIGHT] += opposes is True
            row[Count.ACCUSED_WRONG] += opposes is False
        if is_public:
            self._contradict(about, lambda lie: _is_contrary(lie.claim, claim))
            self._counter_claim(claim, speaker)
        if judged.verdict is Verdict.LIE:
            self._count_lie(row, speaker)
            faction = self._roles[speaker].faction
            lie = _Lie(claim=claim, speaker=speaker, about=about, faction=faction)
            self._lies[about].append(lie)
            if is_public and leans:
                self._heard.append(lie)
        if is_public and is_other and leans < 0:
            self._accused.add(about)
        elif is_public and is_other and leans > 0:
            self._spoken_for[about].add(speaker)

    def _count_lie(self, row: Counter[str], speaker: str) -> None:
        row[Count.LIE_UNACCUSED] += speaker not in self._accused
        if not row[Count.LIAR]:
            row[Count.LIAR] = 1
            row[Count.FIRST_LIE_DAY] = self._day

    def _contradict(self, about: str, is_contrary: Callable[[_Lie], bool]) -> None:
        """Count the lies about a player that are contradicted now, each once."""
        standing = []
        for lie in self._lies[about]:
            if is_contrary(lie):
                self.rows[lie.speaker][Count.LIE_CONTRADICTED] += 1
            else:
                standing.append(lie)
        self._lies[about] = standing

    def _counter_claim(self, claim: Claim, speaker: str) -> None:
        """A unique role has one holder: who claims it contradicts all others who do."""
        if claim.kind is ClaimKind.ROLE and len(claim.roles) == 1 and ROLES[claim.roles[0].lower()].is_unique:
            for other in self._names:
                if other != speaker:
                    self._contradict(
                        other, lambda lie: lie.claim.kind is ClaimKind.ROLE and lie.claim.roles == claim.roles
                    )

    def _follow(self, name: str, target: str, *, is_against: bool) -> None:
        """Count a vote or ballot for the lies of another side that it is in line with."""
        self._judged_until = len(self._heard)
        faction = self._roles[name].faction
        for lie in self._heard:
            is_own = lie.speaker == name or (faction in TEAMS and faction is lie.faction)
            if lie.about == target and not is_own and (leaning(lie.claim) < 0) == is_against:
                lie.followers += 1

    def end_day(self) -> None:
        """Count what came of the lies of the day."""
        for lie in self._heard[: self._judged_until]:
            row = self.rows[lie.speaker]
            row[Count.LIE_HEARD] += 1
            row[Count.LIE_BELIEVED] += lie.followers > 0
            row[Count.LIE_FOLLOWED] += lie.followers
        self._heard, self._judged_until = [], 0
        self._spoken_for.clear()

    def note_estimates(self, said: Utterance) -> None:
        """Count the probabilities that a player states of others."""
        row = self.rows[said.player]
        for claim, percent in estimates(said.text, self._names):
            is_so = None if claim.about == said.player else fits(claim, self._roles[claim.about])
            if is_so is not None:
                row[Count.STATED] += 1
                row[Count.STATED_TRUE] += is_so
                row[Count.STATED_PERCENT] += percent
                row[Count.STATED_ERROR] += (percent - 100 * is_so) ** 2


def _is_contrary(claim: Claim, other: Claim) -> bool:
    """Whether two claims about one player cannot both be so, or speak one for and one against them."""
    if Says.WAS_ROLE in (claim.says, other.says):
        return False
    is_other_role = bool(claim.roles and other.roles) and set(claim.roles).isdisjoint(other.roles)
    return is_other_role or leaning(claim) * leaning(other) < 0
