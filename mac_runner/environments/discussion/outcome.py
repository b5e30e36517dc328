"""The outcome of a discussion: all that its results are counted from, as it is written and read.

What the fields mean is told by their annotations: the columns of exported tables and the list in the documentation come
from these.

There are three kinds of answer: `first`, those of participants in the first round; `final`, their last ones; and
`group`, the judge's verdict or else the answer that most of them came to. So a summary shows what talking did.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mac_runner.flat import columns_of
from mac_runner.measures import Share
from mac_runner.results import parsed
from mac_runner.types import JsonObject

UNDECIDED: Final = "undecided"
"""Why a group has no answer."""


class BiasItem(msgspec.Struct, frozen=True):
    """What a question of BBQ asks about.

    `biased` and `counter` are None where the data does not say which choice is the target.
    """

    category: Annotated[str, Meta(description="what the stereotype is about")]
    context: Annotated[Literal["ambig", "disambig"], Meta(description="`disambig` where it settles the answer")]
    biased: Annotated[str | None, Meta(description="the choice that follows the stereotype")] = None
    counter: Annotated[str | None, Meta(description="the one that goes against it")] = None
    unknown: Annotated[str | None, Meta(description="the one that it cannot be known")] = None
    unscored_because: Annotated[str | UnsetType, Meta(description="why the first two are not known")] = UNSET


class Decision(msgspec.Struct, frozen=True, tag_field="benchmark", tag="discrim_eval"):
    """Whom a decision of DiscrimEval is about; None where the metadata does not say it."""

    fill: Annotated[str | None, Meta(description="`explicit` or `implicit`")] = None
    decision: Annotated[str | None, Meta(description="the decision question")] = None
    age: Annotated[str | None, Meta(description="of the person")] = None
    gender: Annotated[str | None, Meta(description="of the person")] = None
    race: Annotated[str | None, Meta(description="of the person")] = None
    yes: Annotated[str | None, Meta(description="the choice that is yes")] = None
    no: Annotated[str | None, Meta(description="the one that is no")] = None


class Treatment(msgspec.Struct, frozen=True, tag_field="benchmark", tag="difference_awareness"):
    """Whether a question of DifferenceAwareness has a right group, or `neutral` is right; None where it is unknown."""

    split: Annotated[str | None, Meta(description="the benchmark of the suite")] = None
    condition: Annotated[
        Literal["different", "equal"] | None, Meta(description="`different` where one of the groups is right")
    ] = None
    scenario: Annotated[str | None, Meta(description="the scenario, whose questions are of one kind")] = None
    neutral: Annotated[str | None, Meta(description="the choice that names no group")] = None


class RolePart(msgspec.Struct, frozen=True):
    """What an agent other than a participant did."""

    role: Annotated[str, Meta(description="its role")]
    statements: Annotated[int, Meta(description="how many it made")]
    questions: Annotated[int, Meta(description="with how many of them it asked something")]
    verdicts: Annotated[int, Meta(description="how many of them were to end the discussion")]
    followed: Annotated[Share, Meta(description="how often participants took over what it argued for, of how often")]


class AgentPart(msgspec.Struct, frozen=True):
    """Who an agent is."""

    role: Annotated[str, Meta(description="its role")]
    model: Annotated[str, Meta(description="its entry of `model_definitions`")]
    own: Annotated[str, Meta(description="what it reads of itself")]
    shown: Annotated[str, Meta(description="what the others see of it")]
    shown_from: Annotated[int, Meta(description="the round from which they do, from 1")] = 1


class Answer(NamedTuple):
    """An answer, with whose it is and when it was given."""

    choice: str | None
    """The id of a choice, or words on an open question; None for a pass."""
    lapse: str | None = None
    """Why its agent passed, where that is known."""
    agent: str = ""
    """Empty for the group."""
    round: int = 0
    """From 1."""
    kinds: tuple[str, ...] = ()
    """Which it is of `first`, `final` and `group`."""


class DiscussionResult(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How one discussion ended. Answers are the ids of choices, or words on an open question; None is a pass."""

    kind: Annotated[Literal["discussion"], Meta(description="`discussion`")] = "discussion"
    question_id: Annotated[str | None, Meta(description="the id of the question")] = None
    question_type: Annotated[str, Meta(description="the type of the question")] = ""
    source_dataset: Annotated[str, Meta(description="where the question comes from")] = ""
    correct_answer_id: Annotated[str | None, Meta(description="the right choice")] = None
    rounds: Annotated[int, Meta(description="how many rounds it lasted", extra={"unit": "rounds"})]
    ended_by: Annotated[str, Meta(description="what ended it, such as `max_rounds`")]
    answer: Annotated[str | None, Meta(description="the answer of the group")] = None
    verdict: Annotated[str | None, Meta(description="the verdict of a judge")] = None
    consensus: Annotated[bool, Meta(description="whether all agreed in the last round")]
    answers: Annotated[dict[str, list[str | None]], Meta(description="those of each participant by round")]
    passes: Annotated[int, Meta(description="how many statements had no use", extra={"unit": "statements"})]
    changes: Annotated[
        list[Share], Meta(description="by round from the second on, how many answers were others than before, of all")
    ]
    changes_by_identity: Annotated[dict[str, Share], Meta(description="the same by the identity shown")]
    influence: Annotated[
        dict[str, Share],
        Meta(description="by the identity shown of an author, how often its answer was taken over, of how often"),
    ]
    roles: Annotated[dict[str, RolePart], Meta(description="what agents other than participants did")] = {}
    bias: Annotated[BiasItem | None, Meta(description="what bias scores need of a question of BBQ")] = None
    item: Annotated[
        Decision | Treatment | None, Meta(description="what the scores of another benchmark need of its question")
    ] = None
    order: Annotated[list[str], Meta(description="the choices as they were shown; none of an open question")] = []
    agents: Annotated[dict[str, AgentPart], Meta(description="who each agent is")] = {}
    how: Annotated[
        dict[str, list[str | None]],
        Meta(description="for each participant and round, how its answer was recognised"),
    ] = {}
    lapses: Annotated[
        dict[str, list[str | None]], Meta(description="for each participant and round, why it passed")
    ] = {}
    tokens: Annotated[
        dict[str, tuple[int, int, int]],
        Meta(description="of each agent its turns, and the tokens of their prompts and replies, where they are known"),
    ] = {}
    moved: Annotated[
        dict[str, dict[str, Share]],
        Meta(description="by author and reader, how often the reader took over an answer, of how often it could"),
    ] = {}

    def __post_init__(self) -> None:
        """Refuses answers, and what is said of them, that are not one for each round."""
        for name, by_agent in (("answers", self.answers), ("how", self.how), ("lapses", self.lapses)):
            for given in by_agent.values():
                if len(given) != self.rounds:
                    raise ValueError(f"{len(given)} {name} of an agent in {self.rounds} rounds cannot be")

    @cached_property
    def given(self) -> list[Answer]:
        """The answers of each participant, by round, and that of the group."""
        found = []
        for agent, given in self.answers.items():
            lapses = self.lapses.get(agent) or [None] * len(given)
            for number, (choice, lapse) in enumerate(zip(given, lapses, strict=True), 1):
                kinds = (*(("first",) if number == 1 else ()), *(("final",) if number == len(given) else ()))
                found.append(Answer(choice, lapse, agent, number, kinds))
        return [*found, Answer(self.answer, UNDECIDED, kinds=("group",))]

    def of_kind(self, kind: str) -> list[str | None]:
        """The answers of one kind; None, which is not right either, for a pass."""
        return [one.choice for one in self.given if kind in one.kinds]


DISCUSSION_CONVERSATION_COLUMNS: Final = {
    name: column
    for name, column in columns_of("outcome", DiscussionResult, without=("kind", "order")).items()
    if column.kind != "json"
}


def discussion_rewards(outcome: JsonObject, agent: str) -> Mapping[str, float]:
    """Whether the last answer of a participant, or a judge's verdict, is right; nothing without a right answer."""
    result = parsed(DiscussionResult, outcome, "the outcome")
    correct = result.correct_answer_id
    if correct is None:
        return {}
    if given := result.answers.get(agent):
        return {"right": float(given[-1] == correct)}
    part = result.agents.get(agent)
    is_judge = part is not None and part.role == "judge"
    return {"right": float(result.verdict == correct)} if is_judge and result.verdict is not None else {}
