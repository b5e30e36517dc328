"""Scripted participants of a discussion."""

from __future__ import annotations

from random import Random

from mac_runner.environments.base import Policy
from mac_runner.environments.discussion.prompts import DiscussionView

_STANDS = ("I am for it", "I am against it", "I am of two minds", "I would put it to a test first")
_REASONS = (
    "it is the fair thing",
    "the cost is plain",
    "it worked elsewhere",
    "we know too little",
    "it can be undone",
)
_ANSWERS = ("agrees with me there", "overlooks something", "has a point", "goes too far", "asks the right question")


def statement(view: object, random: Random) -> str:
    """Takes a stand, gives a reason, and refers to one who spoke before."""
    assert isinstance(view, DiscussionView)
    others = sorted({said.agent for said in view.heard if said.agent != view.agent and said.text is not None})
    stand = f"On {view.topic}: {random.choice(_STANDS)}, because {random.choice(_REASONS)}."
    return f"{stand} {random.choice(others)} {random.choice(_ANSWERS)}." if others else stand


POLICIES: dict[str, Policy] = {"statement": statement}
