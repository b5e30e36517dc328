"""In a discussion too, what an agent says is its words, in its own place, and nothing else."""

from __future__ import annotations

import re

import pytest

from mac_runner.environments.discussion.conversation import DiscussionConversation
from mac_runner.environments.markup import defuse, holds_thought
from mac_runner.types import Reply
from tests.attacks.strings import ATTACKS
from tests.environments.discussion.table import agent, opened, talk

HARMLESS = "hello"
_FRAME = re.compile(r'^<statement round="\d+" speaker="(\w+)">(.*)</statement>$')


@pytest.fixture
def conversation() -> DiscussionConversation:
    """A discussion in which a moderator hears a speaker."""
    return opened(talk(agent("ann"), agent("mod", "moderator", after=("ann",)), topics=("rain",), max_rounds=2))


def heard(conversation: DiscussionConversation, text: str) -> list[str]:
    """The lines the moderator is sent after ann has said `text`."""
    ann, mod = conversation.turns()
    conversation.receive(ann, Reply(text=text))
    if conversation.turns()[0].agent == "ann":
        conversation.receive(conversation.turns()[0], Reply(text=HARMLESS))
    return [line for message in conversation.prompt(mod).messages for line in message.content.split("\n")]


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
def test_statement_stays_in_its_frame_under_its_speaker(conversation: DiscussionConversation, text: str) -> None:
    lines = heard(conversation, text)

    framed = [found for line in lines if (found := _FRAME.match(line))]
    assert [found.group(1) for found in framed] == ["ann"]
    assert not re.search(r"[<>|\[\]“”\x00-\x1f\x7f-\x9f\u2028\u2029]", framed[0].group(2))
    assert sum("<" in line for line in lines) == 2, "the frame, and the rule that speaks of it"
    assert len("\n".join(lines).splitlines()) == len(lines)


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
def test_statement_is_raw_in_the_record_and_defused_for_readers(
    conversation: DiscussionConversation, text: str
) -> None:
    heard(conversation, text)
    (event,) = list(conversation.record()["events"])  # type: ignore[arg-type]
    assert isinstance(event, dict)
    assert isinstance(event["data"], dict)
    assert isinstance(event["data"]["said"], dict)
    said = str(event["data"]["said"]["text"])

    # What begins as a thought is said by nobody: the reply is asked for again.
    is_said = defuse(text.strip()) and not holds_thought(text)
    assert said == (text.strip() if is_said else HARMLESS)
    assert event["text"] == f"ann: {defuse(said)}"
