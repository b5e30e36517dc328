"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.backends.ollama.backend import (
    OLLAMA_LOOK_INTERVAL_S,
    OLLAMA_PULL_SAY_INTERVAL_S,
    OLLAMA_PULL_STALL_S_MAX,
    OllamaBackend,
    follow_pull,
    watched,
)
from mac_runner.backends.ollama.connection import OLLAMA_ANSWER_S_MAX, OLLAMA_BODY_BYTES_MAX, survey
from mac_runner.backends.ollama.errors import refusal, verdicts
from mac_runner.backends.ollama.settings import missing_in
from mac_runner.backends.ollama.translation import reply_of
