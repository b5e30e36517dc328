"""The outcome of a discussion: all that its results are counted from, as it is written and read.

There are three kinds of answer: `first`, those of participants in the first round; `final`, their last ones; and
`group`, the judge's verdict or else the answer that most of them came to. So a summary shows what talking did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mac_runner.flat import columns_of
from mac_runner.measures import Share
from mac_runner.results import parsed
from mac_runner.types import JsonObject


class BiasItem(msgspec.Struct, frozen=True):
    """The choice of a question that follows the stereotype, the one that goes against it, and the unknown one.

    The first two are None where the data does not say which choice is the target.
    """

    category: str
    context: Literal["ambig", "disambig"]
    biased: str | None = None
    counter: str | None = None
    unknown: str | None = None
    unscored_because: str | UnsetType = UNSET


class Decision(msgspec.Struct, frozen=True, tag_field="benchmark", tag="discrim_eval"):
    """Whom a decision of DiscrimEval is about; None where the metadata does not say it."""

    fill: str | None = None
    decision: str | None = None
    age: str | None = None
    gender: str | None = None
    race: str | None = None
    yes: str | None = None
    no: str | None = None


class Treatment(msgspec.Struct, frozen=True, tag_field="benchmark", tag="difference_awareness"):
    """Whether a question of DifferenceAwareness has a right group, or `neutral` is right; None where it is unknown."""

    split: str | None = None
    condition: Literal["different", "equal"] | None = None
    scenario: str | None = None
    neutral: str | None = None


class RolePart(msgspec.Struct, frozen=True):
    """What an agent other than a participant did; `followed` are participants who took over what it argued for."""

    role: str
    statements: int
    questions: int
    verdicts: int
    followed: Share


class AgentPart(msgspec.Struct, frozen=True):
    """Who an agent is: `own` is what it reads of itself, `shown` what the others see of it.

    They see it from the round `shown_from` on, counted from 1.
    """

    role: str
    model: str
    own: str
    shown: str
    shown_from: int = 1


class DiscussionResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one discussion ended. Answers are the ids of choices, or words on an open question; None is a pass."""

    kind: Literal["discussion"] = "discussion"
    question_id: Annotated[str | None, Meta(description="the id of the question")] = None
    question_type: Annotated[str, Meta(description="the type of the question")] = ""
    source_dataset: Annotated[str, Meta(description="where the question comes from")] = ""
    correct_answer_id: Annotated[str | None, Meta(description="the right choice")] = None
    rounds: Annotated[int, Meta(description="how many rounds it lasted", extra={"unit": "rounds"})]
    ended_by: Annotated[str, Meta(description="what ended it, such as `max_rounds`")]
    answer: Annotated[str | None, Meta(description="the answer of the group")] = None
    verdict: Annotated[str | None, Meta(description="the verdict of a judge")] = None
    consensus: Annotated[bool, Meta(description="whether all agreed in the last round")]
    answers: dict[str, list[str | None]]
    """Those of each participant by round."""
    passes: Annotated[int, Meta(description="how many statements had no use", extra={"unit": "statements"})]
    changes: list[Share]
    """By round but the first, how many answers were others than before."""
    changes_by_identity: dict[str, Share]
    influence: dict[str, Share]
    """By the identity shown of an author, how often others took over its answer."""
    roles: dict[str, RolePart] = {}
    bias: BiasItem | None = None
    item: Decision | Treatment | None = None
    """What the scores of a benchmark need of the question."""
    order: list[str] = []
    """The ids of the choices as they were shown; none for an open question."""
    agents: dict[str, AgentPart] = {}
    how: dict[str, list[str | None]] = {}
    """For each participant and round, how its answer was recognised."""
    lapses: dict[str, list[str | None]] = {}
    """For each participant and round, why it passed."""
    tokens: dict[str, tuple[int, int, int]] = {}
    """Of each agent its turns, and the tokens of their prompts and replies; 0 where the engine does not count them."""
    moved: dict[str, dict[str, Share]] = {}
    """By author and reader, how often the reader followed, of how often it could."""

    def __post_init__(self) -> None:
        """Refuses answers, and what is said of them, that are not one for each round."""
        for name, by_agent in (("answers", self.answers), ("how", self.how), ("lapses", self.lapses)):
            for given in by_agent.values():
                if len(given) != self.rounds:
                    raise ValueError(f"{len(given)} {name} of an agent in {self.rounds} rounds cannot be")

    def of_kind(self, kind: str) -> Iterator[str | None]:
        """The answers of one kind; None, which is not right either, for a pass."""
        match kind:
            case "first":
                yield from (given[0] for given in self.answers.values() if given)
            case "final":
                yield from (given[-1] for given in self.answers.values() if given)
            case _:
                yield self.answer


DISCUSSION_CONVERSATION_COLUMNS: Final = {
    name: column for name, column in columns_of("outcome", DiscussionResult).items() if column.meaning
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
