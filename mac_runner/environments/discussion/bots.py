"""Scripted discussants, each a policy from what a seat knows to a reply.

`discussant` has a stance of its own that others can sway. In the first round a participant draws an answer. Later, the
more of those it has read hold another answer, the likelier it takes that over, and it weighs identities unequally. It
is not a model of anything; it makes numbers that differ. `clumsy` says the same with the manners of a small model:
fences, prose, labels for texts, and now and then no answer. It shows what becomes of such replies.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Final

from mac_runner.environments.base import Policy
from mac_runner.environments.discussion.prompts import DiscussionView, aside_field
from mac_runner.environments.discussion.questions import Question
from mac_runner.environments.discussion.roles import CONTINUE
from mac_runner.environments.discussion.state import Statement, majority
from mac_runner.types import stable_hash

FIRM: Final = 0.4
"""How likely a discussant keeps an answer that it alone holds."""
CONVINCED: Final = 0.75
"""The share of the answers that a judge needs for a verdict before the last round."""

_STANDS: Final = ("in favour", "against", "undecided", "for a trial first")
_REASONS: Final = (
    "the context says so",
    "nothing else follows from what we are told",
    "the other readings assume too much",
    "it is the careful thing to say",
    "I have seen cases like this",
)
_QUESTIONS: Final = (
    "What in the context settles it?",
    "What would have to be different for you to change your mind?",
    "Does anybody rely on more than what is written?",
)


def discussant(view: object, random: Random) -> str:
    """A reply as its role asks for it."""
    assert isinstance(view, DiscussionView)
    match view.role:
        case "moderator":
            said = _moderate(view, random)
        case "devils_advocate":
            said = _challenge(view, random)
        case "judge":
            said = _judge(view, random)
        case _:
            said = _take_part(view, random)
    asides = {aside_field(channel): f"Between us: {random.choice(_REASONS)}." for channel in view.channels}
    return json.dumps({**{name: said[name] for name in view.fields}, **asides}, ensure_ascii=False)


def _take_part(view: DiscussionView, random: Random) -> dict[str, str]:
    answer = _answer(view, random)
    others = [said for said in _latest(view) if said.agent != view.agent]
    agreeing = sorted(said.agent for said in others if said.answer == answer)
    reason = f"{random.choice(_REASONS)}".capitalize()
    rationale = f"{reason}. I agree with {agreeing[0]}." if agreeing else f"{reason}."
    return {"answer": _text(view.question, answer), "rationale": rationale}


def _answer(view: DiscussionView, random: Random) -> str:
    latest = {said.agent: answer for said in _latest(view) if (answer := said.answer) is not None}
    own = latest.pop(view.agent, None)
    if own is None:
        return random.choice(_options(view.question))
    # Others are as hard to resist as they are many, and as who they are shown to be makes them.
    weights = {other.agent: _weight(other.shown) for other in view.others}
    against = {agent: weights[agent] for agent, answer in latest.items() if answer != own}
    everybody = sum(weights[agent] for agent in latest)
    if not against or random.random() >= (1 - FIRM) * sum(against.values()) / everybody:
        return own
    return latest[random.choices(sorted(against), [against[agent] for agent in sorted(against)])[0]]


def _weight(shown: str) -> float:
    """The weight of an agent's answer: 1 if shown by its id alone, else from 0.5 to 1.5 by its identity."""
    return 0.5 + stable_hash("heed", shown) % 1000 / 1000 if shown else 1.0


def _moderate(view: DiscussionView, random: Random) -> dict[str, str]:
    counts = Counter(said.answer for said in _latest(view) if said.answer is not None)
    held = "; ".join(f"{count} for {_text(view.question, answer)}" for answer, count in sorted(counts.items()))
    summary = f"So far: {held}." if held else "Nobody has answered yet."
    return {"summary": summary, "question": "" if view.is_last else random.choice(_QUESTIONS)}


def _challenge(view: DiscussionView, random: Random) -> dict[str, str]:
    other = random.choice([option for option in _options(view.question) if option != view.majority])
    argument = f"Most overlook something: {random.choice(_REASONS)}."
    return {"argument": argument, "alternative": _text(view.question, other)}


def _judge(view: DiscussionView, random: Random) -> dict[str, str]:
    answers = {said.agent: said.answer for said in _latest(view)}
    given = [answer for answer in answers.values() if answer is not None]
    leading = majority(answers)
    is_clear = leading is not None and given.count(leading) >= CONVINCED * len(given)
    if not view.is_last and not is_clear:
        return {"verdict": CONTINUE, "rationale": "The answers are too far apart."}
    decided = leading or random.choice(sorted(given) or _options(view.question))
    return {"verdict": _text(view.question, decided), "rationale": "It is what most came to hold."}


def _latest(view: DiscussionView) -> list[Statement]:
    """The latest statement of each participant that the seat has read, its own included."""
    latest = {said.agent: said for said in view.statements if said.role == "participant"}
    return [latest[agent] for agent in sorted(latest)]


def _options(question: Question) -> list[str]:
    return [choice.id for choice in question.shown] or [*_STANDS]


def _text(question: Question, answer: str) -> str:
    return question.choice(answer).text if question.choices else answer


def clumsy(view: object, random: Random) -> str:
    """What `discussant` would say, said badly."""
    assert isinstance(view, DiscussionView)
    reply = discussant(view, random)
    said = json.loads(reply)
    match random.randrange(10):
        case 0:
            return f"Sure! Here is my reply:\n```json\n{reply}\n```\nI hope this helps."
        case 1:
            return f"<think>Let me see.</think>{reply[:-1]},}}"
        case 2:
            return "\n".join(f"{name.capitalize()}: {text}" for name, text in said.items())
        case 3:
            return json.dumps({**said, view.fields[0]: "", view.fields[-1]: "I am not sure about any of it."})
        case 4:
            return ""
        case _:
            return reply


POLICIES: Final[Mapping[str, Policy]] = {"discussant": discussant, "clumsy": clumsy}
"""Every scripted discussant by the name that an experiment calls it."""
