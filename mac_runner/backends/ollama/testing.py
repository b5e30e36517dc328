"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.backends.dialects.ollama import OllamaDialect
from mac_runner.backends.ollama.backend import (
    OLLAMA_PULL_SAY_INTERVAL_S,
    OLLAMA_PULL_STALL_S_MAX,
    OllamaBackend,
    certificates,
    client_of,
    follow_pull,
    missing_in,
    survey,
    told,
)
