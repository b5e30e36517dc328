"""In a discussion too, what an agent says is its words, in its own place, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache

import pytest

from mac_runner.environments.discussion.testing import DiscussionConversation
from mac_runner.environments.testing import defuse, holds_thought
from mac_runner.store.testing import entry, objects
from mac_runner.types import JsonObject, Reply
from tests.attacks.strings import against_all
from tests.environments.discussion.table import agent, opener, talk, turn_of

pytestmark = pytest.mark.ci

HARMLESS = "hello"
_STRUCTURE = re.compile(r"[<>|\[\]“”\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FRAME = re.compile(r'^<statement round="\d+" speaker="(\w+)">(.*)</statement>$')


TALKS = {
    # A moderator hears a speaker.
    "moderated": lambda: talk(agent("ann"), agent("mod", "moderator", after=("ann",)), topics=("rain",), max_rounds=2),
    "in turn": lambda: talk(agent("ann"), agent("bob", after=("ann",)), topics=("rain",), max_retries=0),
    "at once": lambda: talk(agent("ann"), agent("bob")),
    "all roles": lambda: talk(
        agent("ann"),
        agent("bob"),
        agent("dev", "devils_advocate", after=("ann", "bob")),
        agent("mod", "moderator", after=("ann", "bob", "dev")),
        agent("jud", "judge", after=("ann", "bob", "mod")),
        max_rounds=3,
        max_retries=0,
        routing_strategy={"channels": {"duo": ["ann", "bob"]}},
    ),
}


@cache
def opener_of(name: str) -> Callable[[], DiscussionConversation]:
    return opener(TALKS[name]())


def told(conversation: DiscussionConversation, reader: str) -> list[str]:
    """The lines of what a reader is asked."""
    return conversation.prompt(turn_of(conversation, reader)).messages[1].content.split("\n")


def answered(name: str, **said: str) -> DiscussionConversation:
    """A discussion in which ann has said something."""
    conversation = opener_of(name)()
    conversation.receive(turn_of(conversation, "ann"), Reply(text=json.dumps({"rationale": "fine", **said})))
    return conversation


def heard(conversation: DiscussionConversation, text: str) -> list[str]:
    """The lines the moderator is sent after ann has said `text`."""
    ann, mod = conversation.turns()
    conversation.receive(ann, Reply(text=text))
    if conversation.turns()[0].agent == "ann":
        conversation.receive(conversation.turns()[0], Reply(text=HARMLESS))
    return [line for message in conversation.prompt(mod).messages for line in message.content.split("\n")]


@against_all
def test_statement_stays_in_its_frame_under_its_speaker(text: str) -> None:
    lines = heard(opener_of("moderated")(), text)

    framed = [found for line in lines if (found := _FRAME.match(line))]
    assert [found.group(1) for found in framed] == ["ann"]
    assert not _STRUCTURE.search(framed[0].group(2))
    assert sum("<" in line for line in lines) == 2, "the frame, and the rule that speaks of it"
    assert len("\n".join(lines).splitlines()) == len(lines)


@against_all
def test_statement_is_raw_in_the_record_and_defused_for_readers(text: str) -> None:
    conversation = opener_of("moderated")()
    heard(conversation, text)
    (_, event) = objects(conversation.record(), "events")
    said = str(entry(entry(event, "data", dict), "said", dict)["text"])

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


@against_all
def test_words_stay_in_their_frame_wherever_they_are_shown(text: str) -> None:
    for place, (agent_id, frame) in PLACES.items():
        conversation = opener_of("all roles")()
        for speaker, said in replies(place, text).items():
            conversation.receive(turn_of(conversation, speaker), Reply(text=json.dumps(said)))
        lines = told(conversation, "bob")

        frames = {"<statement": 5, "<aside": int(place == "to_duo" and bool(defuse(text)))}
        assert {tag: sum(tag in line for line in lines) for tag in frames} == frames, place
        assert sum(line.count("<") for line in lines) == sum(2 if "</" in line else 1 for line in lines if "<" in line)
        assert len("\n".join(lines).splitlines()) == len(lines), place
        if defuse(text) and frames["<aside"] == (place == "to_duo"):
            passes = any(f'speaker="{agent_id}"' in line and "passes/>" in line for line in lines)
            assert sum(line.startswith(frame) for line in lines) == (not passes), place


@against_all
def test_an_answer_in_words_of_its_own_stays_inside_its_quotes(text: str) -> None:
    (line,) = (line for line in told(answered("in turn", answer=text), "bob") if "<statement" in line)

    assert re.fullmatch(r'<statement round="1" speaker="ann"( answer="[^"<>\n]*">fine</statement>| passes/>)', line)


@against_all
def test_a_correction_quotes_an_answer_harmlessly(text: str) -> None:
    lines = "\n".join(told(answered("at once", answer=f"somebody {text}"), "ann")).splitlines()
    (line,) = (line for line in lines if "could not be used" in line)

    assert not _STRUCTURE.search(line)
