"""The backend `openai`: models behind servers that speak the OpenAI protocol, vLLM's among them."""

from __future__ import annotations

from mac_runner.backends.openai.backend import OpenaiBackend
from mac_runner.backends.openai.setup import build, check, lacks

__all__ = ["OpenaiBackend", "build", "check", "lacks"]
