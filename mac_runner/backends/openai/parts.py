"""The content of a message as a list of parts → its text and its thought. A part that is neither is a malformed reply.

Mistral answers so for models that think, the thought before the text (https://docs.mistral.ai/capabilities/reasoning):

    [{"type": "thinking", "thinking": [{"type": "text", "text": …}]}, {"type": "text", "text": …}]

A thought that is one text is Anthropic's, which gateways pass on.
"""

from __future__ import annotations

from typing import NamedTuple

from mac_runner.backends.openai.faults import SendingError, malformed
from mac_runner.backends.redaction import Redactor
from mac_runner.types import JsonValue


class Content(NamedTuple):
    """What a model said, and what it thought before it."""

    text: str = ""
    thought: str = ""


def read_parts(parts: list[JsonValue], redactor: Redactor) -> Content:
    """The parts of each kind, joined. Raises SendingError."""
    contents = [_read_part(part, redactor) for part in parts]
    return Content("".join(content.text for content in contents), "".join(content.thought for content in contents))


def _read_part(part: JsonValue, redactor: Redactor) -> Content:
    match part:
        case {"type": "text", "text": str(text)}:
            return Content(text=text)
        case {"type": "thinking", "thinking": str(thought)}:
            return Content(thought=thought)
        case {"type": "thinking", "thinking": [*thoughts]}:
            return Content(thought="".join(_thought(thought, redactor) for thought in thoughts))
    raise _unknown("content", part, redactor)


def _thought(part: JsonValue, redactor: Redactor) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise _unknown("thinking", part, redactor)


def _unknown(name: str, part: JsonValue, redactor: Redactor) -> SendingError:
    """Names the part by its type, which is all that most of them can be told by."""
    kind = part.get("type") if isinstance(part, dict) else None
    what = f"of type {redactor.quoted(kind, 40)!r}" if isinstance(kind, str) else "without a type"
    return malformed(f"{name} holds a part {what} that is no text")
