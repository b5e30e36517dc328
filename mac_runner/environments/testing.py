"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.environments.base import SPEECH_CHARS_MAX, gated
from mac_runner.environments.dialogue import Dialogue, Flaw
from mac_runner.environments.echo import EchoConfig, EchoConversation
from mac_runner.environments.json_objects import lowered, may_have_key, mended_object
from mac_runner.environments.markup import (
    Markup,
    Tag,
    Thoughts,
    after_thoughts,
    defuse,
    disarm,
    holds_thought,
    scan,
    thoughts,
)
from mac_runner.environments.personas import article, phrase
from mac_runner.environments.replay import play_until, receive, replay
from mac_runner.environments.templates import PromptTemplate
