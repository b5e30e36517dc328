"""Models served by Ollama, through its official client."""

from __future__ import annotations

from mac_runner.backends.ollama.backend import OllamaBackend
from mac_runner.backends.ollama.survey import Survey, survey

__all__ = ["OllamaBackend", "Survey", "survey"]
