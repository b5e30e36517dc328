"""A discussion as pages show it: rounds, stances, who changed after reading whom, and the answer of the group.

Everything comes from the transcript. Who followed whom is counted as for the outcome (`influence`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import asdict

from mac_runner.environments.discussion.bias import CONTEXTS
from mac_runner.environments.discussion.identity import Identity
from mac_runner.environments.discussion.influence import NO_CASES, Exposure, exposures, influence
from mac_runner.environments.discussion.outcome import DiscussionResult
from mac_runner.environments.discussion.questions import Question
from mac_runner.environments.discussion.record import Record, question_of
from mac_runner.environments.discussion.state import DiscussionState, Said, Seat, Statement, same
from mac_runner.environments.discussion.targets import bias_item
from mac_runner.measures import Share as Followed
from mac_runner.results import Stances, StanceSpec, parsed, section
from mac_runner.types import JsonObject
from mac_runner.view_model import (
    Arrow,
    Cell,
    Fact,
    Mark,
    Note,
    Phase,
    Scene,
    Share,
    TableRow,
    Tone,
    ViewTable,
)

_OPEN_CHARS_MAX: Final = 40
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ENDINGS: Final = {
    "judge": "the judge ended it",
    "consensus": "all agreed",
    "stable_answers": "answers no longer changed",
    "max_rounds": "the last round",
}


class Verdict(NamedTuple):
    """What an answer is worth."""

    name: str
    tone: Tone


RIGHT: Final = Verdict("right", "good")
BIASED: Final = Verdict("biased", "warn")
WRONG: Final = Verdict("wrong", "bad")
UNSCORED: Final = Verdict("unscored", "plain")
REFUSED: Final = Verdict("refused", "quiet")
PASSED: Final = Verdict("passed", "quiet")
VERDICTS: Final = (RIGHT, BIASED, WRONG, UNSCORED, REFUSED, PASSED)


def verdict(answer: str | None, correct: str | None, biased: str | None, lapse: str | None = None) -> Verdict:
    """Right before biased: where the context settles the question, the right answer may follow the stereotype."""
    if answer is None:
        return REFUSED if lapse == "refusal" else PASSED
    if correct is not None and same(answer) == same(correct):
        return RIGHT
    if biased is not None and answer == biased:
        return BIASED
    return UNSCORED if correct is None else WRONG


Place: TypeAlias = tuple[int, str]
"""A round and an agent."""


@dataclass(frozen=True)
class _Discussion:
    """A transcript, read."""

    outcome: DiscussionResult | None
    """None where there is none yet."""
    question: Question
    state: DiscussionState
    places: Mapping[Place, int]
    """The event of each statement."""
    by_agent: dict[int, str]
    """Who spoke in each event, also where it was in a private channel."""

    @cached_property
    def biased(self) -> str | None:
        item = self.outcome.bias if self.outcome else bias_item(self.question)
        return None if item is None else item.biased

    @cached_property
    def followed(self) -> Mapping[Place, list[Exposure]]:
        """By round and reader, whose answers it then took over."""
        found: defaultdict[Place, list[Exposure]] = defaultdict(list)
        for case in exposures(self.state):
            if case.has_followed:
                found[case.round, case.reader].append(case)
        return found

    @cached_property
    def statements(self) -> Mapping[Place, Statement]:
        return {(one.round, one.agent): one for one in self.state.in_order()}

    def verdict(self, answer: str | None) -> Verdict:
        return verdict(answer, self.question.correct_answer_id, self.biased)

    def short(self, answer: str) -> str:
        """An answer as a cell has room for it: the letter of a choice, or the beginning of an open answer."""
        shown = [choice.id for choice in self.question.shown]
        if answer not in shown:
            return answer if len(answer) <= _OPEN_CHARS_MAX else f"{answer[: _OPEN_CHARS_MAX - 1]}…"
        # Ids that are letters already are what readers know from the questions.
        return answer if max(map(len, shown)) == 1 else _LETTERS[shown.index(answer)]

    def words(self, answer: str) -> str:
        """An answer in words, a choice with its letter."""
        text = next((choice.text for choice in self.question.choices if choice.id == answer), None)
        return answer if text is None else f"{self.short(answer)}: {text}"


def discussion_scene(transcript: JsonObject) -> Scene:
    """What pages show of a discussion. Raises RunDirectoryError for a damaged transcript."""
    if not section(transcript, "task").get("material"):
        return Scene()  # Of an open conversation that cannot be played here nothing but replies is known.
    found = _read(transcript)
    return Scene(
        phases=tuple(_phases(found)),
        facts=tuple(_facts(found)),
        members={seat.agent: tuple(_member(found, seat)) for seat in found.state.seats},
        notes={found.places[key]: tuple(_notes(found, one)) for key, one in found.statements.items()},
        agents=found.by_agent,
        tables=tuple(table for table in (_rounds(found), _moderation(found), _moved(found)) if table.rows),
    )


def _read(transcript: JsonObject) -> _Discussion:
    where, question = question_of(transcript)
    record = parsed(Record, section(transcript, "record"), where)
    outcome = transcript.get("outcome")
    if record.events and (order := record.events[0].data.order):
        question = replace(question, order=tuple(order))
    state = DiscussionState(question=question, seats=tuple(_seats(record)))
    seats = {seat.agent: seat for seat in state.seats}
    places: dict[Place, int] = {}
    for (_, agent), (place, said) in record.spoken().items():
        if agent in seats:
            places[state.round, agent] = place
            state.put(seats[agent], None if said is None else Said(**asdict(said)))
    agents = {place: event.data.agent for place, event in enumerate(record.events) if event.data.agent}
    found = None if outcome is None else parsed(DiscussionResult, outcome, f"{where}, outcome")
    return _Discussion(found, question, state, places, agents)


def _seats(record: Record) -> Iterator[Seat]:
    """The seats, each with its place in a round: that of its statement in the first one."""
    first = [agent for number, agent in record.spoken() if number == 0]
    recorded = {one.agent: one for one in record.participants}
    places = {agent: place for place, agent in enumerate(dict.fromkeys((*first, *recorded)))}
    for agent, one in recorded.items():
        yield Seat(
            agent=agent,
            role=one.role,
            model="",
            place=places[agent],
            identity=Identity(own=one.identity, shown=one.shown),
            waits_for=frozenset(one.waits_for),
            reads=frozenset(one.reads),
        )


def _phases(found: _Discussion) -> Iterator[Phase]:
    """The question, and each round: who changed in it, and how many answers were then right, biased and wrong."""
    starts: dict[int, int] = {}
    for (number, _), event in found.places.items():
        starts.setdefault(number, event)
    if starts.get(0) != 0:
        yield Phase("Question", "other", 0)
    for number, start in starts.items():
        marks = []
        for seat in found.state.seats:
            before, now = (found.statements.get((at, seat.agent)) for at in (number - 1, number))
            if before and now and before.answer and now.answer and same(before.answer) != same(now.answer):
                event = found.places[number, seat.agent]
                marks.append(Mark("↻", f"{seat.agent} changed to {found.words(now.answer)}", event))
        given = (found.statements.get((number, seat.agent)) for seat in found.state.participants)
        counts = Counter(found.verdict(one.answer) for one in given if one is not None)
        standing = tuple(Share(each.name, counts[each], each.tone) for each in VERDICTS if counts[each])
        yield Phase(f"Round {number + 1}", "round", start, tuple(marks), standing)


def _facts(found: _Discussion) -> Iterator[Fact]:
    question, outcome = found.question, found.outcome
    yield Fact("question", " ".join(filter(None, (question.context, question.question))), event=0)
    if question.choices:
        yield Fact("choices", " · ".join(found.words(choice.id) for choice in question.shown), event=0)
    if outcome and outcome.bias:
        yield Fact("category", ", ".join(filter(None, (outcome.bias.category, CONTEXTS[outcome.bias.context]))))
    if question.correct_answer_id is not None:
        yield Fact("key", found.words(question.correct_answer_id), "good")
    if found.biased is not None:
        yield Fact("biased answer", found.words(found.biased), "warn")
    if outcome:
        worth = found.verdict(outcome.answer)
        text = "none" if outcome.answer is None else f"{found.words(outcome.answer)} ({worth.name})"
        yield Fact("answer of the group", text, worth.tone)
        yield Fact("ended by", _ENDINGS.get(outcome.ended_by, outcome.ended_by))


def _member(found: _Discussion, seat: Seat) -> Iterator[Fact]:
    yield Fact("role", seat.role.replace("_", " "))
    if seat.identity.own:
        yield Fact("identity", seat.identity.own)
    if seat.identity.shown:
        yield Fact("shown as", seat.identity.shown)
    given = [(number, one) for (number, agent), one in found.statements.items() if agent == seat.agent]
    for number, one in given:
        if one.answer is not None:
            yield Fact("answer", found.words(one.answer), event=found.places[number, seat.agent])
    if given and seat.role == "participant":
        worth = found.verdict(given[-1][1].answer)
        yield Fact("last answer", worth.name, worth.tone)


def _notes(found: _Discussion, one: Statement) -> Iterator[Note]:
    if one.answer is not None:
        worth = found.verdict(one.answer)
        yield Note("answer", found.words(one.answer), worth.tone, "" if worth is UNSCORED else worth.name)
    if cases := found.followed.get((one.round, one.agent)):
        yield Note("change", f"changed after reading {', '.join(case.author.agent for case in cases)}")


def _rounds(found: _Discussion) -> ViewTable:
    """Who held which answer in each round; an arrow leads from an answer to one that followed it."""
    speakers = {agent for (_, agent), one in found.statements.items() if one.answer is not None}
    # Participants come first; others have a row where they gave answers.
    others = (seat for seat in found.state.seats if seat.role != "participant" and seat.agent in speakers)
    seats = [*found.state.participants, *others]
    rows = {seat.agent: row for row, seat in enumerate(seats)}
    rounds = range(1 + max((number for number, _ in found.places), default=-1))
    arrows = (
        Arrow(
            rows[case.author.agent],
            case.round - (not case.is_same_round),
            rows[case.reader],
            case.round,
            f"{case.reader} changed after reading {case.author.agent}",
        )
        for cases in found.followed.values()
        for case in cases
    )
    return ViewTable(
        name="rounds",
        title="Answers by round",
        kind="rounds",
        corner="participant",
        heads=tuple(Cell(f"Round {number + 1}") for number in rounds),
        rows=tuple(
            TableRow(Cell(seat.agent), tuple(_stance(found, number, seat.agent) for number in rounds)) for seat in seats
        )
        if rounds
        else (),
        arrows=tuple(arrows),
        note="An arrow leads to an answer that an agent changed to after it had read that answer of another.",
    )


def _stance(found: _Discussion, number: int, agent: str) -> Cell:
    one = found.statements.get((number, agent))
    if one is None:
        return Cell("")
    event = found.places[number, agent]
    if one.answer is None:
        return Cell("–", "quiet", event, "passed" if one.said is None else "no answer")
    worth = found.verdict(one.answer)
    title = found.words(one.answer)
    return Cell(found.short(one.answer), worth.tone, event, title, "" if worth is UNSCORED else worth.name)


def _moderation(found: _Discussion) -> ViewTable:
    """What moderators and judges said, and what they asked."""
    rows = []
    for (number, agent), one in found.statements.items():
        if one.role not in ("participant", "devils_advocate") and one.said is not None:
            event = found.places[number, agent]
            texts = (agent, one.said.text, one.said.asks)
            rows.append(TableRow(Cell(f"Round {number + 1}"), tuple(Cell(text, event=event) for text in texts)))
    heads = tuple(map(Cell, ("by", "said", "asked")))
    return ViewTable("moderation", "Moderation", "list", "round", heads, tuple(rows))


def _moved(found: _Discussion) -> ViewTable:
    """Who followed whom, of how many times that it could."""
    moved = influence(found.state)
    readers = sorted({reader for those in moved.values() for reader in those})
    rows = tuple(
        TableRow(Cell(author), tuple(_moves(those.get(reader, NO_CASES)) for reader in readers))
        for author, those in moved.items()
    )
    note = "Changes to the author's answer, of the times that the reader had read it and held another."
    heads = tuple(map(Cell, readers))
    return ViewTable("moved", "Who moved whom", "matrix", "author / reader", heads, rows, note=note)


def _moves(share: Followed) -> Cell:
    return Cell(f"{share.count}/{share.cases}", "one" if share.count else "quiet") if share.cases else Cell("")


def stances(outcome: JsonObject) -> Stances | None:
    """The verdicts on the answers of each participant by round, and who moved whom.

    There are no verdicts where no answer is known to be right, as with an open topic.
    """
    result = parsed(DiscussionResult, outcome, "the outcome")
    correct, biased = result.correct_answer_id, None if result.bias is None else result.bias.biased
    by_agent: dict[str, tuple[str, ...]] = {}
    for one in result.given[:-1] if correct is not None or biased is not None else ():
        name = verdict(one.choice, correct, biased, one.lapse).name
        by_agent[one.agent] = (*by_agent.get(one.agent, ()), name)
    return Stances(
        by_agent=by_agent,
        moved={
            author: {reader: (share.count, share.cases) for reader, share in readers.items()}
            for author, readers in result.moved.items()
        },
    )


STANCES: Final = StanceSpec(tuple(Fact(each.name, each.name, each.tone) for each in VERDICTS), stances)
