"""mac_runner: play many multi-agent LLM conversations at once, and lose none of them."""

from __future__ import annotations

__version__ = "0.1.0"
