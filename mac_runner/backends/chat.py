"""From the messages of a prompt to what a given model can be sent, without a tokenizer and without I/O.

Chat templates differ in what they take: some have no system role, some insist that user and assistant alternate, and a
base model has no template at all. `ChatShape` says which of these holds, `probe_shape` finds it out by trying, and
what a model cannot take is rewritten without losing a word: nothing an environment wrote is ever left out.

Some templates end a prompt inside a thought. A reply then has only the end of its thought, and `OPEN_THOUGHT` is given
back to it, because without the tag reasoning that was cut off would look like an answer. A reply that the engine holds
to a schema or to choices from its first token has no thought, and is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, TypeAlias

from mac_runner.errors import RequestRefusedError, boundary
from mac_runner.types import Message

Render: TypeAlias = Callable[[Sequence[Message]], str]
"""A chat template: the text the model continues. Raises whatever it likes for messages it does not take."""

OPEN_THOUGHT: Final = "<think>"
CLOSED_THOUGHT: Final = "</think>"
_BETWEEN: Final = "\n\n"
# One word each: some tokenizers write a blank as another character.
_SYSTEM: Final = Message(role="system", content="system-probe")
USER_PROBE: Final = Message(role="user", content="user-probe")
"""What a template is tried with: any that can hold a conversation takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """What a model's chat template takes, and whether it ends a prompt inside a thought."""

    has_system: bool = True
    must_alternate: bool = False
    opens_thought: bool = False

    def fit(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """`messages` as this template takes them."""
        fitted = tuple(messages) if self.has_system else merge_system(messages)
        return merge_neighbours(fitted) if self.must_alternate else fitted


def probe_shape(render: Render) -> ChatShape:
    """What `render` takes. A system message that it leaves out without a word counts as one it does not take.

    Raises RequestRefusedError when not even a user's message comes through: no conversation could be held.
    """
    with boundary(RequestRefusedError, "it cannot write a user's message"):
        text = render((USER_PROBE,))
    if USER_PROBE.content not in text:
        raise RequestRefusedError("it leaves out what a user says")
    return ChatShape(
        has_system=_takes(render, _SYSTEM, USER_PROBE),
        must_alternate=not _takes(render, USER_PROBE, USER_PROBE),
        opens_thought=ends_in_thought(text),
    )


def merge_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with the system's words in front of the user's first, and no system message."""
    system = _BETWEEN.join(message.content for message in messages if message.role == "system")
    others = [message for message in messages if message.role != "system"]
    if not system:
        return tuple(others)
    first = next((place for place, message in enumerate(others) if message.role == "user"), None)
    if first is None:
        return (Message(role="user", content=system), *others)
    others[first] = replace(others[first], content=f"{system}{_BETWEEN}{others[first].content}")
    return tuple(others)


def merge_neighbours(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with each stretch of one role as a single message."""
    return tuple(
        Message(role=role, content=_BETWEEN.join(message.content for message in stretch))
        for role, stretch in groupby(messages, key=lambda message: message.role)
    )


def plain_text(messages: Sequence[Message]) -> str:
    """The prompt of a model without a chat template: paragraphs under headings, ending where the reply begins."""
    paragraphs = (f"### {message.role.capitalize()}\n{message.content}" for message in messages)
    return f"{_BETWEEN.join(paragraphs)}{_BETWEEN}### Assistant\n"


def ends_in_thought(prompt: str) -> bool:
    """Whether `prompt` leaves a thought open for the reply to go on with."""
    return prompt.rstrip().endswith(OPEN_THOUGHT)


def with_thought(reply: str, *, is_thinking: bool) -> str:
    """`reply`, with the tag that the template wrote for it if it goes on with that thought."""
    return f"{OPEN_THOUGHT}{reply}" if is_thinking else reply


def notice_of_forms(model: str) -> str:
    """What to tell the user of `model`, whose template opens a thought, before replies are held to a form."""
    return (
        f"model {model}: its chat template opens a thought, but a reply that is held to a schema or to choices is "
        "given without one"
    )


def _takes(render: Render, *messages: Message) -> bool:
    """Whether `render` takes `messages` and keeps all of their words."""
    try:
        with boundary(RequestRefusedError, "the chat template"):
            text = render(messages)
    except RequestRefusedError:
        return False
    return all(message.content in text for message in messages)
