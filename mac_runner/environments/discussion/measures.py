"""The measures of discussions, in the order of their tables; those of a benchmark stand beside its format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

from mac_runner.environments.discussion.bias import STANCE_MEASURES, score_measure, scored_by
from mac_runner.environments.discussion.influence import NOT_SHOWN
from mac_runner.environments.discussion.outcome import AgentPart, Answer, DiscussionResult
from mac_runner.environments.discussion.state import majority, same
from mac_runner.environments.discussion.statistics import (
    KIND,
    PASSES,
    REFUSAL,
    by_round,
    compared_shares,
    discussion_measure,
    right_by,
    right_measure,
    seen_again,
    total_measure,
)
from mac_runner.measures import RATES, By, Cells, Drawn, InGrid, Keys, Listing, Measure, Row, Share, counts_of
from mac_runner.results import (
    RATE_HEADS,
    Table,
    count_text,
    integer,
    interval_text,
    percent_text,
    rate_texts,
    section,
    signed_text,
)
from mac_runner.types import JsonObject, JsonValue

_READERS_SHOWN_MAX: Final = 12
_PLACES: Final = "answers by the place of the choice (a preference for a place shows only with choice_order: permuted)"
_Cases: TypeAlias = Iterator[tuple[Keys, Share]]

_ANSWERS: Final = Cells(
    (*RATES.heads, "passes", "rate without passes"),
    lambda record: (
        *RATES.of(record),
        count_text(record.get("passes")),
        percent_text(section(record, "answered").get("rate")),
    ),
)


@dataclass(slots=True)
class _Words:
    """What was said of the cases of a key, each word once."""

    words: set[str] = field(default_factory=set)

    def add(self, words: tuple[str, ...], _question: str | None) -> None:
        self.words.update(words)

    def report(self) -> list[JsonValue]:
        return [*sorted(self.words)]


@dataclass(slots=True)
class _Average:
    """The mean of a number that each discussion has."""

    total: int = 0
    n: int = 0

    def add(self, number: int, _question: str | None) -> None:
        self.total += number
        self.n += 1

    def report(self) -> float:
        return round(self.total / self.n, 4)


@dataclass(slots=True)
class _First:
    """What is the same in all discussions."""

    word: str = ""

    def add(self, word: str, _question: str | None) -> None:
        self.word = self.word or word

    def report(self) -> str:
        return self.word


@dataclass(slots=True)
class _Repeated:
    """Which questions came again."""

    questions: Counter[str] = field(default_factory=Counter)

    def add(self, count: int, question: str | None) -> None:
        self.questions[question or ""] += count

    def report(self) -> JsonObject:
        return {
            "n": len(self.questions),
            "discussions": self.questions.total(),
            "repeated": sum(count > 1 for count in self.questions.values()),
            "most": max(self.questions.values()),
        }


def own_identity(agent: str, own: str) -> str:
    """Who an agent is in words that others may share: what it reads of itself without its id, or else the id.

    "You are ann, an elderly economist." gives "an elderly economist".
    """
    who = own.removeprefix(f"You are {agent}").lstrip(" ,.").strip()
    return (who if ". " in who else who.removesuffix(".")) or agent


def _changes(result: DiscussionResult, agent: str) -> Share:
    """Changed answers of an agent among those that could have changed; a pass on either side is not a case."""
    given = pairwise(result.answers.get(agent, ()))
    pairs = [(same(one), same(other)) for one, other in given if one is not None and other is not None]
    return Share(sum(one != other for one, other in pairs), len(pairs))


def _identities(
    what: str,
    share_of: Callable[[DiscussionResult, str], Share],
    by_shown: Callable[[DiscussionResult], Mapping[str, Share]],
    *,
    titles: tuple[str, str],
    title: str,
    value: str,
    unit: str,
) -> Iterator[Measure]:
    """A rate by own identity, and by the identity shown.

    What is shown decides what the others could react to. Who an agent is stays the same where it is hidden, so cells of
    a design with hidden identities can be compared with the others.
    """

    def own_cases(result: DiscussionResult) -> Iterator[tuple[Keys, Share, AgentPart]]:
        """By who a participant is, as it reads of itself."""
        for agent, part in result.agents.items():
            if part.role == "participant" and (share := share_of(result, agent)).cases:
                yield (own_identity(agent, part.own),), share, part

    def shown_as(row: Row) -> tuple[str, ...]:
        words = row.record.get("shown")
        return (*row.keys, "; ".join(str(each) or NOT_SHOWN for each in words) if isinstance(words, list) else "")

    by_own = discussion_measure(
        place=f"discussions.{what}_by_own_identity.{{identity}}",
        cases=lambda result: ((keys, share) for keys, share, _ in own_cases(result)),
        tables=(Listing(titles[0], ("identity", "shown as"), shown_as),),
    )
    shown: Measure = discussion_measure(
        place=f"discussions.{what}_by_identity.{{identity}}",
        title=title,
        caption=f"Share of the {unit}, with 95 % interval.",
        chapter="influence",
        cases=lambda result: (((identity,), share) for identity, share in by_shown(result).items()),
        value=value,
        unit=unit,
        tables=(
            Listing(
                titles[1],
                # Of as many rows, the table above says it all.
                when=lambda summary: len(by_own.rows(summary)) != len(shown.rows(summary)),
            ),
        ),
        # One identity is compared with nothing; the rate over all is in the table of the course.
        figures=(Drawn(least=2),),
    )
    yield by_own
    yield discussion_measure(
        place=f"{by_own.place}.shown",
        cases=lambda result: ((keys, (part.shown,)) for keys, _, part in own_cases(result)),
        statistic=lambda _keys: _Words(),
    )
    yield shown


def _one(_result: DiscussionResult) -> Iterator[tuple[Keys, int]]:
    yield (), 1


def _refusals(result: DiscussionResult) -> Iterator[tuple[Keys, int | None]]:
    """None of a discussion that does not say why agents passed."""
    yield (), sum(lapses.count(REFUSAL) for lapses in result.lapses.values()) if result.lapses else None


_DONE: Final = {"statements": "", "questions": "moderator", "verdicts": "judge"}
"""What agents do besides giving answers, and the one role that does it; empty where every role does."""


def _done(result: DiscussionResult) -> Iterator[tuple[Keys, int]]:
    for agent, part in result.roles.items():
        for what, role in _DONE.items():
            if role in ("", part.role):
                yield (agent, what), getattr(part, what)


def _judged(result: DiscussionResult) -> _Cases:
    """The verdict beside the majority of the last answers; where these are divided there is nothing to compare with."""
    if (verdict := result.verdict) is None:
        return
    held, correct = _majority(result), result.correct_answer_id
    if held is not None:
        yield ("agrees",), Share(int(same(verdict) == same(held)), 1)
    if correct is not None:
        yield ("right",), Share(int(verdict == correct), 1)
        if held is not None:
            yield ("majority_right",), Share(int(held == correct), 1)


def _verdicts(result: DiscussionResult) -> Iterator[tuple[Keys, int]]:
    if (verdict := result.verdict) is None:
        return
    held, correct = _majority(result), result.correct_answer_id
    is_compared = held is not None and correct is not None
    yield ("verdicts",), 1
    yield ("without_majority",), int(held is None)
    yield ("right_against_majority",), int(is_compared and verdict == correct != held)
    yield ("wrong_against_majority",), int(is_compared and verdict != correct == held)


def _majority(result: DiscussionResult) -> str | None:
    return majority({agent: given[-1] for agent, given in result.answers.items() if given})


_JUDGE: Final = {
    "agrees": "verdict is the majority's answer",
    "right": "verdict is right",
    "majority_right": "majority is right, where there is a verdict",
}
_TOKENS: Final = ("turns", "prompt", "completion")
_COSTS: Final = Cells(
    ("turns", "prompt tokens", "completion tokens"), lambda own: counts_of(section(own, "tokens"), *_TOKENS)
)
_GIVEN: Final = Cells(
    ("n", "right, first", "final", "95% interval", "bias ambig", "bias disambig", "changed"),
    lambda own: (
        count_text(section(own, "accuracy", "final").get("n")),
        percent_text(section(own, "accuracy", "first").get("rate")),
        percent_text(section(own, "accuracy", "final").get("rate")),
        interval_text(section(own, "accuracy", "final").get("interval")),
        signed_text(section(own, "bias", "ambiguous").get("score")),
        signed_text(section(own, "bias", "disambiguated").get("score")),
        percent_text(section(own, "changes").get("rate")),
    ),
)


def _of_speakers(name: str, head: str, key_of: Callable[[str, AgentPart], str]) -> Iterator[Measure]:
    """What each agent did, or the agents of each model."""

    def tokens(result: DiscussionResult) -> Iterator[tuple[Keys, int]]:
        for agent, part in result.agents.items():
            for what, count in zip(_TOKENS, result.tokens.get(agent, (0, 0, 0)), strict=True):
                yield (key_of(agent, part), what), count

    def kinds(result: DiscussionResult, answer: Answer) -> Iterator[Keys]:
        if (part := result.agents.get(answer.agent)) is not None:
            yield from ((key_of(answer.agent, part), kind) for kind in answer.kinds)

    def changes(result: DiscussionResult) -> _Cases:
        for agent, part in result.agents.items():
            if (share := _changes(result, agent)).cases:
                yield (key_of(agent, part),), share

    def are_several(summary: JsonObject) -> bool:
        return len(section(summary, "discussions", name)) > 1

    place = f"discussions.{name}.{{of}}"
    yield seen_again(
        place=place,
        tables=(
            Listing(
                f"answers by {head}",
                (head,),
                lambda row: row.keys if row.record.keys() & {"accuracy", "changes"} else None,
                _GIVEN,
                when=are_several,
            ),
            Listing(f"tokens by {head}", (head,), cells=_COSTS, when=are_several),
        ),
    )
    yield total_measure(place=f"{place}.tokens.{{what}}", cases=tokens, by={"what": By("", dict.fromkeys(_TOKENS, ""))})
    yield right_measure(
        place=f"{place}.accuracy.{{answers}}",
        cases=right_by(kinds),
        title=f"Which {head} answers right most often?",
        by={"of": By(head), "answers": KIND},
        figures=(Drawn(id=f"accuracy-by-{head}", least=2),),
    )
    yield score_measure(
        place=f"{place}.bias.{{context}}",
        cases=scored_by(lambda result, answer: (keys[:1] for keys in kinds(result, answer) if keys[1] == "final")),
    )
    yield discussion_measure(place=f"{place}.changes", cases=changes)


def _positions(result: DiscussionResult) -> _Cases:
    """By the place at which a choice was listed: answers that chose it, and where it is right, right ones.

    A pass chooses none, and is not right.
    """
    for kind in ("first", "final") if result.order else ():
        answers = result.of_kind(kind)
        for place, choice in enumerate(result.order, 1):
            chosen = answers.count(choice)
            yield (kind, "chosen", place), Share(chosen, len(answers) - answers.count(None))
            if choice == result.correct_answer_id:
                yield (kind, "right", place), Share(chosen, len(answers))


def _judge_notes(summary: JsonObject) -> Iterator[str]:
    """The verdicts against a majority."""
    judge = section(summary, "discussions", "judge")
    right, wrong = (integer(judge.get(f"{how}_against_majority")) or 0 for how in ("right", "wrong"))
    if right or wrong:
        yield f"Verdicts against the majority: {right} right where it was wrong, {wrong} wrong where it was right."


def _mover_tables(summary: JsonObject) -> Iterator[Table]:
    """A matrix with a row for each author and a column for each reader; large ones are in the summary alone."""
    moved = section(summary, "discussions", "moved")
    readers = sorted({reader for author in moved for reader in section(moved, author)})
    if moved and len(readers) <= _READERS_SHOWN_MAX:
        rows = [(author, *(_cell(section(moved, author, reader)) for reader in readers)) for author in moved]
        yield Table("who moved whom: followed of those who read another answer", ("author",), tuple(readers), rows)


def _cell(rate: JsonObject) -> str:
    if not rate:
        return ""
    return f"{count_text(rate.get('count'))}/{count_text(rate.get('n'))} {percent_text(rate.get('rate'))}"


def _position_tables(summary: JsonObject) -> Iterator[Table]:
    """A row for each kind of answer and place of a choice.

    With `choice_order: permuted` the places of an answer are drawn by lot, so a place that is chosen more often than
    others shows a preference for the place. With `as_given` the places are those of the file, and the two cannot be
    distinguished.
    """
    found = section(summary, "discussion_positions")
    rows = [
        (
            kind,
            place,
            *counts_of(chosen := section(found, kind, "chosen", place), "n", "count"),
            *rate_texts(chosen),
            *counts_of(right := section(found, kind, "right", place), "n", "count"),
            percent_text(right.get("rate")),
        )
        for kind in found
        for place in section(found, kind, "chosen")
    ]
    if rows:
        numbers = ("n", "chosen", *RATE_HEADS, "right answer here", "right", "rate right")
        yield Table(_PLACES, ("answers", "place"), numbers, rows)


REFUSALS: Final[Measure] = total_measure(place="discussions.refusals", cases=_refusals)
ACCURACY: Final[Measure] = right_measure(
    place="discussions.accuracy.{answers}",
    cases=right_by(lambda _result, answer: ((kind,) for kind in answer.kinds)),
    title="In which run are answers right most often?",
    tables=(Listing("answers", ("",), lambda row: (f"right, {row.keys[0]}",), _ANSWERS, PASSES),),
    figures=(Drawn(id="accuracy-compared", by=("run", "answers")),),
    **compared_shares(
        {
            (kind,): InGrid(
                f"accuracy.{kind}",
                is_headline=kind != "final",
                words="right answers of the group" if kind == "group" else f"right {words}",
            )
            for kind, words in KIND.words.items()
        }
    ),
    pair=lambda _keys, answers: (answers.right, answers.asked),
)

MEASURES: Final[tuple[Measure, ...]] = (
    total_measure(place="discussions.n", cases=_one),
    discussion_measure(
        place="discussions.rounds_mean",
        cases=lambda result: [((), result.rounds)],
        statistic=lambda _keys: _Average(),
    ),
    total_measure(place="discussions.ended_by.{ending}", cases=lambda result: [((result.ended_by,), 1)]),
    total_measure(place="discussions.passes", cases=lambda result: [((), result.passes)]),
    REFUSALS,
    ACCURACY,
    discussion_measure(
        place="discussions.consensus",
        cases=lambda result: [((), Share(int(result.consensus), 1))],
        tables=(Listing("answers", ("",), lambda _row: ("consensus at the end",)),),
        chapter="course",
        value="discussions that ended in consensus",
        **compared_shares({(): InGrid("consensus", is_headline=True, words="discussions in consensus")}),
    ),
    discussion_measure(
        place="discussions.changes",
        cases=lambda result: [((), sum(result.changes, Share(0, 0)))],
        chapter="course",
        value="answers that changed from one round to the next",
        **compared_shares({(): InGrid("changes", is_printed=True, words="changed answers")}),
    ),
    discussion_measure(
        place="discussions.followed",
        cases=lambda result: [((), sum(result.influence.values(), Share(0, 0)))],
        chapter="course",
        value="answers taken over from another, of those read that differed",
        **compared_shares({(): InGrid("followed", is_printed=True, words="answers taken over")}),
    ),
    right_measure(
        place="discussions.accuracy_by_round.{round}",
        cases=right_by(by_round),
        title="Do answers get better as the discussion goes on?",
        caption="Right answers of the participants in each round, and of the group at the end (the last point), with "
        "95 % intervals. A pass counts as wrong.",
        tables=(Listing("by round", ("",), lambda row: (f"right in round {row.keys[0]}",)),),
        figures=(
            Drawn(
                chart="rounds",
                by=("of", "round"),
                ends_with=("participants", "discussions.accuracy.group", "group"),
            ),
        ),
    ),
    discussion_measure(
        place="discussions.changes_by_round.{round}",
        cases=lambda result: (((number,), share) for number, share in enumerate(result.changes, 2)),
        title="When do participants change their answers?",
        caption="Share of answers that are another than in the round before, with 95 % interval.",
        chapter="course",
        value="changed answers",
        unit="answers",
        tables=(Listing("by round", ("",), lambda row: (f"changed in round {row.keys[0]}",)),),
        figures=(Drawn(chart="rounds", least=2),),
    ),
    *_identities(
        "changes",
        _changes,
        lambda result: result.changes_by_identity,
        titles=("changed answers, by who gave them", "changed answers, by the identity shown of who gave them"),
        title="Who changes an answer, by the identity that others see?",
        value="changed",
        unit="chances to change",
    ),
    *_identities(
        "followed",
        lambda result, agent: sum(result.moved.get(agent, {}).values(), Share(0, 0)),
        lambda result: result.influence,
        titles=("another's answer taken over, by whose it was", "another's answer taken over, by the identity shown"),
        title="Whom do participants follow, by the identity that they see?",
        value="followed",
        unit="chances to follow",
    ),
    discussion_measure(
        place="discussions.roles.{agent}.role",
        cases=lambda result: (((agent,), part.role) for agent, part in result.roles.items()),
        statistic=lambda _keys: _First(),
    ),
    total_measure(place="discussions.roles.{agent}.{what}", cases=_done, by={"what": By("", dict.fromkeys(_DONE, ""))}),
    discussion_measure(
        place="discussions.roles.{agent}.followed",
        cases=lambda result: (
            ((agent,), part.followed) for agent, part in result.roles.items() if part.role == "devils_advocate"
        ),
    ),
    seen_again(
        place="discussions.roles.{agent}",
        tables=(
            Listing(
                "the other roles",
                ("agent", "role"),
                lambda row: (*row.keys, str(row.record.get("role")).replace("_", " ")),
                Cells(
                    (*_DONE, "could follow", "followed", "rate"),
                    lambda record: (
                        *counts_of(record, *_DONE),
                        *counts_of(section(record, "followed"), "n", "count"),
                        percent_text(section(record, "followed").get("rate")),
                    ),
                ),
            ),
        ),
    ),
    discussion_measure(
        place="discussions.judge.{what}",
        cases=_judged,
        by={"what": By("", _JUDGE)},
        tables=(
            Listing("judge and majority", ("",), lambda row: (_JUDGE[row.keys[0]],), order=("what",)),
            _judge_notes,
        ),
    ),
    total_measure(place="discussions.judge.{count}", cases=_verdicts),
    *STANCE_MEASURES,
    *_of_speakers("by_agent", "agent", lambda agent, _part: agent),
    *_of_speakers("by_model", "model", lambda _agent, part: part.model),
    discussion_measure(
        place="discussions.moved.{author}.{reader}",
        cases=lambda result: (
            ((author, reader), share) for author, readers in result.moved.items() for reader, share in readers.items()
        ),
        title="Who moves whom?",
        caption="How often a reader took over the answer of an author, of the times that it had read another answer "
        "than its own; {n} chances. The data has the interval of each.",
        chapter="influence",
        value="followed",
        unit="chances to follow",
        tables=(_mover_tables,),
        figures=(Drawn(id="influence-matrix", chart="heat", is_whole=True),),
    ),
    discussion_measure(
        place="discussion_positions.{kind}.{what}.{place}",
        cases=_positions,
        by={"kind": KIND, "what": By("", dict.fromkeys(("chosen", "right"), ""))},
        tables=(_position_tables,),
    ),
    discussion_measure(place="discussion_questions", cases=_one, statistic=lambda _keys: _Repeated()),
)


_OTHERS_MIN: Final = 2
_STOOD: Final = {
    "alone": "alone against the majority",
    "some": "against the majority, with others",
    "with": "with the majority",
}


def _conforming(result: DiscussionResult) -> _Cases:
    """For each participant and round but the last: where it stood, and whether it changed."""
    compared = {agent: [same(answer) for answer in given] for agent, given in result.answers.items()}
    for agent, given in compared.items():
        others = [answers for name, answers in compared.items() if name != agent]
        for number, (own, after) in enumerate(pairwise(given)):
            held = Counter(answers[number] for answers in others if answers[number] is not None)
            if own is None or after is None or held.total() < _OTHERS_MIN:
                continue
            first, *rest = held.most_common(2)
            if rest and rest[0][1] == first[1]:
                continue
            if own == first[0]:
                yield ("with",), Share(int(after != own), 1)
            else:
                yield ("some" if own in held else "alone",), Share(int(after == first[0]), 1)


CONFORMITY: Final = discussion_measure(
    place="conformity.{place}",
    cases=_conforming,
    title="Do participants go over to the answer of the majority?",
    caption="How often an answer was changed in the next round: to the answer of the majority by those against it, to "
    "any other by those with it. The majority is the answer that more of the others gave than any other; it is counted "
    "whether or not a participant could read all of them.",
    chapter="influence",
    by={"place": By("own answer", _STOOD)},
    value="changed in the next round",
    unit="answers",
    figures=(Drawn(id="conformity"),),
)
"""Counted for reports alone."""
