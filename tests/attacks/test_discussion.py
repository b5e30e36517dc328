"""In a discussion too, what an agent says is its words, in its own place, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from itertools import product

import pytest

from mac_runner.environments.discussion.testing import DiscussionConversation
from mac_runner.environments.testing import defuse, holds_thought
from mac_runner.types import JsonObject, Reply
from tests.attacks.strings import ATTACKS
from tests.environments.discussion.table import agent, opener, talk, turn_of

pytestmark = pytest.mark.ci

HARMLESS = "hello"
_FRAME = re.compile(r'^<statement round="\d+" speaker="(\w+)">(.*)</statement>$')


@cache
def moderated() -> Callable[[], DiscussionConversation]:
    """A discussion in which a moderator hears a speaker."""
    return opener(talk(agent("ann"), agent("mod", "moderator", after=("ann",)), topics=("rain",), max_rounds=2))


def heard(conversation: DiscussionConversation, text: str) -> list[str]:
    """The lines the moderator is sent after ann has said `text`."""
    ann, mod = conversation.turns()
    conversation.receive(ann, Reply(text=text))
    if conversation.turns()[0].agent == "ann":
        conversation.receive(conversation.turns()[0], Reply(text=HARMLESS))
    return [line for message in conversation.prompt(mod).messages for line in message.content.split("\n")]


def test_statement_stays_in_its_frame_under_its_speaker(subtests: pytest.Subtests) -> None:
    for name, text in ATTACKS.items():
        with subtests.test(name):
            lines = heard(moderated()(), text)

            framed = [found for line in lines if (found := _FRAME.match(line))]
            assert [found.group(1) for found in framed] == ["ann"]
            assert not re.search(r"[<>|\[\]“”\x00-\x1f\x7f-\x9f\u2028\u2029]", framed[0].group(2))
            assert sum("<" in line for line in lines) == 2, "the frame, and the rule that speaks of it"
            assert len("\n".join(lines).splitlines()) == len(lines)


def test_statement_is_raw_in_the_record_and_defused_for_readers(subtests: pytest.Subtests) -> None:
    for name, text in ATTACKS.items():
        with subtests.test(name):
            conversation = moderated()()
            heard(conversation, text)
            (_, event) = list(conversation.record()["events"])  # type: ignore[arg-type]
            assert isinstance(event, dict)
            assert isinstance(event["data"], dict)
            assert isinstance(event["data"]["said"], dict)
            said = str(event["data"]["said"]["text"])

            # What begins as a thought is said by nobody: the reply is asked for again.
            is_said = defuse(text.strip()) and not holds_thought(text)
            assert said == (text.strip() if is_said else HARMLESS)
            assert event["text"] == f"ann: {defuse(said)}"


# Wherever else words of a model come into a prompt of another: each as it is written, and where it may stand.
PLACES = {
    "rationale": ("ann", '<statement round="1" speaker="ann" answer="The boy">'),
    "summary": ("mod", '<statement round="1" speaker="mod" role="moderator">'),
    "question": ("mod", '<statement round="1" speaker="mod" role="moderator">'),
    "argument": ("dev", '<statement round="1" speaker="dev" role="devils_advocate" argues_for="The grandmother">'),
    "verdict": ("jud", '<statement round="1" speaker="jud" role="judge">'),
    "to_duo": ("ann", '<aside channel="duo" round="1" speaker="ann">'),
}


def replies(place: str, text: str) -> dict[str, JsonObject]:
    """What each of the five says in the first round, with `text` in one place."""
    said: dict[str, JsonObject] = {
        "ann": {"rationale": "fine", "answer": "The boy"},
        "bob": {"rationale": "fine", "answer": "The boy"},
        "dev": {"argument": "fine", "alternative": "The grandmother"},
        "mod": {"summary": "fine", "question": "fine"},
        "jud": {"rationale": "fine", "verdict": "continue"},
    }
    agent_id, _ = PLACES[place]
    said[agent_id] |= {"rationale" if place == "verdict" else place: text}
    return said


def test_words_stay_in_their_frame_wherever_they_are_shown(subtests: pytest.Subtests) -> None:
    open_one = opener(
        talk(
            agent("ann"),
            agent("bob"),
            agent("dev", "devils_advocate", after=("ann", "bob")),
            agent("mod", "moderator", after=("ann", "bob", "dev")),
            agent("jud", "judge", after=("ann", "bob", "mod")),
            max_rounds=3,
            max_retries=0,
            routing_strategy={"channels": {"duo": ["ann", "bob"]}},
        )
    )
    for (name, text), place in product(ATTACKS.items(), PLACES):
        with subtests.test(f"{name} as {place}"):
            conversation = open_one()
            for agent_id, said in replies(place, text).items():
                conversation.receive(turn_of(conversation, agent_id), Reply(text=json.dumps(said)))
            lines = conversation.prompt(turn_of(conversation, "bob")).messages[1].content.split("\n")

            frames = {"<statement": 5, "<aside": int(place == "to_duo" and bool(defuse(text)))}
            assert {tag: sum(tag in line for line in lines) for tag in frames} == frames
            assert sum(line.count("<") for line in lines) == sum(
                2 if "</" in line else 1 for line in lines if "<" in line
            )
            assert len("\n".join(lines).splitlines()) == len(lines)
            agent_id, frame = PLACES[place]
            if defuse(text) and frames["<aside"] == (place == "to_duo"):
                assert sum(line.startswith(frame) for line in lines) == (0 if _passes(lines, agent_id) else 1)


def _passes(lines: list[str], agent_id: str) -> bool:
    return any(f'speaker="{agent_id}"' in line and "passes/>" in line for line in lines)


def test_an_answer_in_words_of_its_own_stays_inside_its_quotes(subtests: pytest.Subtests) -> None:
    open_one = opener(talk(agent("ann"), agent("bob", after=("ann",)), topics=("rain",), max_retries=0))
    for name, text in ATTACKS.items():
        with subtests.test(name):
            conversation = open_one()
            reply = json.dumps({"rationale": "fine", "answer": text})
            conversation.receive(turn_of(conversation, "ann"), Reply(text=reply))
            lines = conversation.prompt(turn_of(conversation, "bob")).messages[1].content.split("\n")
            (line,) = (line for line in lines if "<statement" in line)

            assert re.fullmatch(
                r'<statement round="1" speaker="ann"( answer="[^"<>\n]*">fine</statement>| passes/>)', line
            )


def test_a_correction_quotes_an_answer_harmlessly(subtests: pytest.Subtests) -> None:
    open_one = opener(talk(agent("ann"), agent("bob")))
    for name, text in ATTACKS.items():
        with subtests.test(name):
            conversation = open_one()
            reply = json.dumps({"rationale": "fine", "answer": f"somebody {text}"})
            conversation.receive(turn_of(conversation, "ann"), Reply(text=reply))
            told = conversation.prompt(turn_of(conversation, "ann")).messages[1].content

            (line,) = (line for line in told.splitlines() if "could not be used" in line)
            assert not re.search(r"[<>|\[\]“”\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
