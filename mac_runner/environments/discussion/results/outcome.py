"""The outcome of a discussion as its results read it.

There are three kinds of answer: `first`, those of participants in the first round; `final`, their last ones; and
`group`, the judge's verdict or else the answer that most of them came to. So a summary shows what talking did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

KINDS: Final = ("first", "final", "group")
ALL: Final = "all"


class Share(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """How many of how many cases; `[1, 3]` in an outcome."""

    count: int
    cases: int

    def __post_init__(self) -> None:
        """Refuses what cannot be counted."""
        if not 0 <= self.count <= self.cases:
            raise ValueError(f"{self.count} of {self.cases} cases cannot be")


class BiasItem(msgspec.Struct, frozen=True):
    """The choice of a question that follows the stereotype, and the one that goes against it.

    Both are None where the data does not say which choice is the target.
    """

    category: str
    context: Literal["ambig", "disambig"]
    biased: str | None = None
    counter: str | None = None


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
    correct_answer_id: str | None = None
    # Missing in runs of versions that did not count them.
    roles: dict[str, RolePart] = {}
    bias: BiasItem | None = None
    # Missing in outcomes before edition 3.
    item: Decision | Treatment | None = None

    def of_kind(self, kind: str) -> Iterator[str | None]:
        """The answers of one kind; None, which is not right either, for a pass."""
        match kind:
            case "first":
                yield from (given[0] for given in self.answers.values() if given)
            case "final":
                yield from (given[-1] for given in self.answers.values() if given)
            case _:
                yield self.answer
