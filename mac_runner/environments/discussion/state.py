"""The state of a discussion: who said what, what each seat may know of it, and when it ends (pure).

Every seat speaks once a round. The state does not depend on the order in which it was filled, and is always read in the
same order: by round, then by place.

Of earlier rounds a seat reads its own words and those of the agents that the topology and `visible_to` let it read, as
far back as the history goes. Of the present round it reads only those that it waits for. What is written to a private
channel is read by its members alone. Endings are decided between rounds only, so the order of replies plays no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from mac_runner.environments.discussion.identity import Identity
from mac_runner.environments.discussion.questions import Question
from mac_runner.environments.discussion.reading.words import words
from mac_runner.environments.discussion.settings import DiscussionRole, RoutingStrategy, StoppingConfig
from mac_runner.environments.reading import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One agent of a discussion.

    In a round it waits for, and reads, those in `waits_for`; its `place` is behind theirs. Of earlier rounds it reads
    those in `reads`. It may write to its `channels`.
    """

    agent: str
    role: DiscussionRole
    model: str
    place: int
    identity: Identity
    waits_for: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    channels: tuple[str, ...] = ()


class Said(Struct, frozen=True, kw_only=True):
    """What a reply says, in the words of its agent.

    `answer` is the id of a choice, or words where the question is open; `how` says how the answer was recognised.
    `asks` is a moderator's question, `ends` a judge's decision to end the discussion, `asides` go to private channels.
    """

    text: str
    answer: str | None = None
    how: str = ""
    asks: str = ""
    ends: bool = False
    asides: tuple[tuple[str, str], ...] = ()


class Statement(Struct, frozen=True, kw_only=True):
    """What one seat said in one round; `said` is None when it passed, for `cause`."""

    round: int
    agent: str
    place: int
    role: DiscussionRole
    said: Said | None
    cause: Cause | None = None
    turn: str = ""
    """The key of the turn."""

    @property
    def answer(self) -> str | None:
        """The answer given with it, if one was."""
        return None if self.said is None else self.said.answer

    def without_asides(self) -> Statement:
        """The statement for readers outside its channels."""
        if self.said is None or not self.said.asides:
            return self
        return replace(self, said=replace(self.said, asides=()))


@dataclass(slots=True)
class DiscussionState:
    """All that was said. `round` is the present one, and so how many are complete."""

    question: Question
    seats: tuple[Seat, ...]
    participants: tuple[Seat, ...] = field(init=False)
    """The seats whose answers count."""
    statements: dict[tuple[int, int], Statement] = field(default_factory=dict)
    round: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.participants = tuple(seat for seat in self.seats if seat.role == "participant")

    def waiting(self) -> tuple[Seat, ...]:
        """Those who have not spoken in the present round."""
        now = self.round
        return tuple(seat for seat in self.seats if (now, seat.place) not in self.statements)

    def in_order(self) -> list[Statement]:
        """Every statement by round and place."""
        return [self.statements[key] for key in sorted(self.statements)]

    def answers(self, round_number: int) -> dict[str, str | None]:
        """The participants' answers of a complete round; None for a pass."""
        return {seat.agent: self.statements[round_number, seat.place].answer for seat in self.participants}

    def given(self, round_number: int) -> dict[str, str | None]:
        """Every agent's answer of a complete round, such as what a devil's advocate argued for; None for none."""
        return {seat.agent: self.statements[round_number, seat.place].answer for seat in self.seats}

    def put(self, seat: Seat, said: Said | None, cause: Cause | None = None, *, turn: str = "") -> None:
        """Record what `seat` says in the present round, in the turn with this key; None: it passes, for `cause`."""
        now = self.round
        self.statements[now, seat.place] = Statement(
            round=now, agent=seat.agent, place=seat.place, role=seat.role, said=said, cause=cause, turn=turn
        )
        self.round = len(self.statements) // len(self.seats)


class Aside(Struct, frozen=True, kw_only=True):
    """Words in a private channel."""

    round: int
    agent: str
    channel: str
    text: str


class Known(Struct, frozen=True, kw_only=True):
    """What a seat may lawfully know of what was said."""

    statements: tuple[Statement, ...]
    asides: tuple[Aside, ...]


def readable(
    routing: RoutingStrategy, agents: Sequence[str], visible_to: Mapping[str, frozenset[str] | None]
) -> dict[str, frozenset[str]]:
    """For each of `agents` (in the order of definition) whose words of earlier rounds it reads; never its own name."""
    return {
        reader: frozenset(
            other
            for other in agents
            if other != reader
            and _is_near(routing, agents, reader, other)
            and ((listed := visible_to.get(other)) is None or reader in listed)
        )
        for reader in agents
    }


def _is_near(routing: RoutingStrategy, agents: Sequence[str], reader: str, other: str) -> bool:
    match routing.topology:
        case "everyone":
            return True
        case "ring":
            apart = abs(agents.index(reader) - agents.index(other))
            return apart in (1, len(agents) - 1)
        case "star":
            return routing.hub in (reader, other)
        case "groups":
            return any(reader in members and other in members for members in routing.groups.values())


def known_to(state: DiscussionState, seat: Seat, routing: RoutingStrategy) -> Known:
    """What `seat` knows now."""
    now = state.round
    oldest = 0 if routing.history_rounds is None else now - routing.history_rounds
    recent = [statement for statement in state.in_order() if statement.round >= oldest]
    earlier = seat.reads | {seat.agent}
    statements = tuple(
        statement.without_asides()
        for statement in recent
        if statement.agent in (seat.waits_for if statement.round == now else earlier)
    )
    if not seat.channels:
        return Known(statements=statements, asides=())
    asides = tuple(
        Aside(round=statement.round, agent=statement.agent, channel=channel, text=text)
        for statement in recent
        if statement.round < now or statement.agent in seat.waits_for
        for channel, text in (statement.said.asides if statement.said else ())
        if channel in seat.channels
    )
    return Known(statements=statements, asides=asides)


class Ending(StrEnum):
    """What ended a discussion."""

    JUDGE = "judge"
    CONSENSUS = "consensus"
    STABLE = "stable_answers"
    MAX_ROUNDS = "max_rounds"


def ending(state: DiscussionState, max_rounds: int, stopping: StoppingConfig) -> Ending | None:
    """What ended the discussion with its last complete round; None when it goes on."""
    done = state.round
    if done == 0:
        return None
    if done >= stopping.min_rounds:
        if stopping.by_judge and verdict_of(state) is not None:
            return Ending.JUDGE
        if stopping.on_consensus and consensus(state, done - 1) is not None:
            return Ending.CONSENSUS
        if stopping.stable_rounds is not None and _is_stable(state, stopping.stable_rounds):
            return Ending.STABLE
    return Ending.MAX_ROUNDS if done >= max_rounds else None


def same(answer: str | None) -> str | None:
    """An answer as it is compared: ids of choices are what they are, open words go by their words."""
    return None if answer is None else " ".join(words(answer)) or answer


def consensus(state: DiscussionState, round_number: int) -> str | None:
    """The answer that all participants gave in a round; None when they did not, or one of them passed."""
    answers = list(state.answers(round_number).values())
    return answers[0] if len({same(answer) for answer in answers}) == 1 else None


def majority(answers: Mapping[str, str | None]) -> str | None:
    """The answer given more often than any other; None when there is none. A pass does not count."""
    given = [answer for _, answer in sorted(answers.items()) if answer is not None]
    ranked = Counter(same(answer) for answer in given).most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None
    return next(answer for answer in given if same(answer) == ranked[0][0])


def verdict_of(state: DiscussionState) -> str | None:
    """The judge's latest verdict."""
    given = [said.answer for said in state.in_order() if said.role == "judge" and said.said and said.said.ends]
    return given[-1] if given else None


def _is_stable(state: DiscussionState, rounds: int) -> bool:
    """Whether no participant changed its answer in the last `rounds` rounds, each against the one before it."""
    done = state.round
    if done <= rounds:
        return False
    seen = [
        {agent: same(answer) for agent, answer in state.answers(number).items()}
        for number in range(done - 1 - rounds, done)
    ]
    if None in seen[0].values():
        return False
    return all(later == seen[0] for later in seen[1:])
