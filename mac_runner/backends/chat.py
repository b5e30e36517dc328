"""Chat messages in the forms that different models take. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.types import Message


def plain_text(messages: Sequence[Message]) -> str:
    """The messages as one text for a model without a chat template: their contents, a blank line behind each."""
    return "".join(f"{message.content}\n\n" for message in messages)
