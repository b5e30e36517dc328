"""From the messages of a prompt to the tokens a model is given, for engines that take tokens.

An engine brings two functions of its model's tokenizer, `write` and `encode`; everything else is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from mac_runner.backends.chat import ChatShape, plain_text, probe_shape
from mac_runner.errors import RequestRefusedError, boundary
from mac_runner.types import Message

Write: TypeAlias = Callable[[list[dict[str, str]]], str]
"""The model's chat template: messages, each with `role` and `content`, as the text that the model continues."""


class Encode(Protocol):
    """The model's tokenizer."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text."""
        ...


class Rendered(NamedTuple):
    """A prompt as text and as tokens."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """Renders the prompts of one model. A model without a chat template has no `write`."""

    write: Write | None
    encode: Encode
    shape: ChatShape

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Raises RequestRefusedError when the template does not take the messages even as rewritten for it."""
        if self.write is None:
            text = plain_text(messages)
        else:
            with boundary(RequestRefusedError, "the model's chat template refuses the prompt"):
                text = self.write(_conversation(self.shape.fit(messages)))
        # Half a surrogate pair has no bytes to make tokens of. A template writes the special tokens itself.
        text = text.encode("utf-8", "replace").decode()
        return Rendered(text, self.encode(text, add_special_tokens=self.write is None))


def renderer_of(write: Write | None, encode: Encode) -> Renderer:
    """The renderer of a model, once it is found out what its template takes."""
    shape = ChatShape() if write is None else probe_shape(lambda messages: write(_conversation(messages)))
    return Renderer(write=write, encode=encode, shape=shape)


def _conversation(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]
