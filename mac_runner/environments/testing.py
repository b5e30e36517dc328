"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.environments.base import SPEECH_CHARS_MAX, gated
from mac_runner.environments.dialogue import Dialogue
from mac_runner.environments.echo import EchoConfig, EchoConversation
from mac_runner.environments.markup import defuse, disarm
from mac_runner.environments.personas import article, phrase
from mac_runner.environments.reading import (
    Cause,
    Markup,
    Problem,
    Tag,
    Thoughts,
    after_thoughts,
    holds_thought,
    lowered,
    may_have_key,
    mended_object,
    scan,
    thoughts,
)
from mac_runner.environments.replay import play_until, receive, replay
from mac_runner.environments.templates import PromptTemplate
