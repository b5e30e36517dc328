"""The official client of Ollama. Its package makes a client when it is imported, as the environment would have it."""

from __future__ import annotations

from mac_runner.client_settings import no_client_settings

with no_client_settings():
    import ollama

__all__ = ["ollama"]
