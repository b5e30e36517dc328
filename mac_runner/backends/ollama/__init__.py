"""Models served by Ollama, through its official client."""

from __future__ import annotations

from mac_runner.backends.ollama.backend import OllamaBackend
from mac_runner.backends.ollama.survey import Survey, survey
from mac_runner.backends.ollama.wording import SETTINGS

__all__ = ["SETTINGS", "OllamaBackend", "Survey", "survey"]
