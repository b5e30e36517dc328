"""From the messages of a prompt to the tokens the model is given, with the model's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mac_runner.backends.chat import ChatShape, plain_text, probe_shape
from mac_runner.errors import RequestRefusedError, boundary
from mac_runner.types import JsonValue, Message


class Tokenizer(Protocol):
    """What is asked of the engine's tokenizer."""

    @property
    def chat_template(self) -> str | None:
        """How messages are written; a base model often has none."""
        ...

    def chat_text(self, messages: Sequence[Mapping[str, object]], **variables: object) -> str:
        """Messages as the model was trained to see them, ready for its answer."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text."""
        ...


class Rendered(NamedTuple):
    """A prompt as text and as tokens."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """Renders the prompts of one model. Without a `shape` the model has no chat template."""

    tokenizer: Tokenizer
    settings: Mapping[str, JsonValue]
    shape: ChatShape | None

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Raises RequestRefusedError when the template does not take the messages even as rewritten for it."""
        if self.shape is None:
            text = plain_text(messages)
        else:
            with boundary(RequestRefusedError, "the model's chat template refuses the prompt"):
                text = _from_template(self.tokenizer, self.shape.fit(messages), self.settings)
        # Half a surrogate pair has no bytes to make tokens of. A template writes the special tokens itself.
        text = text.encode("utf-8", "replace").decode()
        return Rendered(text, self.tokenizer.encode(text, add_special_tokens=self.shape is None))


def renderer_of(tokenizer: Tokenizer, settings: Mapping[str, JsonValue]) -> Renderer:
    """The renderer of a model, once it is found out what its template takes."""
    if tokenizer.chat_template is None:
        return Renderer(tokenizer=tokenizer, settings=settings, shape=None)
    shape = probe_shape(lambda messages: _from_template(tokenizer, messages, settings))
    return Renderer(tokenizer=tokenizer, settings=settings, shape=shape)


def _from_template(tokenizer: Tokenizer, messages: Sequence[Message], settings: Mapping[str, JsonValue]) -> str:
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    return tokenizer.chat_text(conversation, **settings)
