"""The outcome of a discussion as its results read it.

There are three kinds of answer: `first`, those of participants in the first round; `final`, their last ones; and
`group`, the judge's verdict or else the answer that most of them came to. So a summary shows what talking did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from mac_runner.measures import Share
from mac_runner.results import parsed
from mac_runner.types import JsonObject


class BiasItem(msgspec.Struct, frozen=True):
    """The choice of a question that follows the stereotype, and the one that goes against it.

    Both are None where the data does not say which choice is the target.
    """

    category: str
    context: Literal["ambig", "disambig"]
    biased: str | None = None
    counter: str | None = None
    unscored_because: str | None = None


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
    """Whether a question of DifferenceAwareness has a right group, or `neutral` is right; None where it is un known."""

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
    """Who an agent is: `own` is what it reads of itself, `shown` what the others see of it."""

    role: str
    model: str
    own: str
    shown: str


class DiscussionResult(msgspec.Struct, frozen=True):
    """How one discussion ended. `answers` has the answers of each participant by round; None: it passed."""

    consensus: bool
    rounds: int
    ended_by: str
    passes: int
    answers: dict[str, tuple[str | None, ...]]
    changes: tuple[Share, ...]
    changes_by_identity: dict[str, Share]
    influence: dict[str, Share]
    question_id: str | None = None
    answer: str | None = None
    verdict: str | None = None
    correct_answer_id: str | None = None
    roles: dict[str, RolePart] = {}
    bias: BiasItem | None = None
    agents: dict[str, AgentPart] = {}
    how: dict[str, tuple[str | None, ...]] = {}
    lapses: dict[str, tuple[str | None, ...]] = {}
    moved: dict[str, dict[str, Share]] = {}
    tokens: dict[str, tuple[int, int, int]] = {}
    """Of each agent its turns, and the tokens of their prompts and replies; 0 where the engine does not count them."""
    order: tuple[str, ...] = ()
    """The ids of the choices as they were shown; none for an open question."""
    item: Decision | Treatment | None = None
    """What the scores of a benchmark need of the question."""

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
