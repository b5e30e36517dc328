"""mac_runner: plays many multi-agent LLM conversations at once, and loses none of them."""

from __future__ import annotations

__version__ = "0.1.0"
