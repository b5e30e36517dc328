"""From the messages of a prompt to the tokens a model is given, for engines that take tokens.

An engine brings two functions of its model's tokenizer, `write` and `encode`; everything else is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from mac_runner.backends.chat import ChatShape, plain_text, probe_shape
from mac_runner.errors import ConfigError, RequestRefusedError, boundary
from mac_runner.types import Message


class Encode(Protocol):
    """The model's tokenizer."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text."""
        ...


class Rendered(NamedTuple):
    """A prompt as text and as tokens."""

    text: str
    ids: list[int]


Conversation: TypeAlias = list[dict[str, str]]
"""Messages as chat templates take them, each with `role` and `content`."""

Write: TypeAlias = Callable[[Conversation], Rendered]
"""The model's chat template, which writes the special tokens itself: a conversation as what the model continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """Renders the prompts of one model. A model without a chat template has no `write`."""

    write: Write | None
    encode: Encode
    shape: ChatShape

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Raises RequestRefusedError when the template does not take the messages even as rewritten for it."""
        if self.write is None:
            text = _encodable(plain_text(messages))
            return Rendered(text, self.encode(text, add_special_tokens=True))
        with boundary(RequestRefusedError, "the model's chat template refuses the prompt"):
            return self.write(conversation_of(self.shape.fit(messages)))


def renderer_of(write: Write | None, encode: Encode, *, key: tuple[str, ...]) -> Renderer:
    """The renderer of a model, once it is found out what its template takes.

    Raises ConfigError for the setting `key`, which the template comes from, when no prompt can be written with it.
    """
    if write is None:
        return Renderer(write=None, encode=encode, shape=ChatShape())
    try:
        shape = probe_shape(lambda messages: write(conversation_of(messages)).text)
    except RequestRefusedError as fault:
        raise ConfigError(f"{'.'.join(key)}: the chat template does not work: {fault}", key=key) from fault
    return Renderer(write=write, encode=encode, shape=shape)


def conversation_of(messages: Sequence[Message]) -> Conversation:
    """`messages` as a template takes them."""
    return [{"role": message.role, "content": _encodable(message.content)} for message in messages]


def _encodable(text: str) -> str:
    """Half a surrogate pair has no bytes to make tokens of, and goes as a question mark."""
    return text.encode("utf-8", "replace").decode()
