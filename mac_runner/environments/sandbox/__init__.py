"""A Jinja sandbox: plain data in, text out, the same each time, within bounds."""

from __future__ import annotations

from mac_runner.environments.sandbox.environment import GLOBALS, Sandbox
from mac_runner.environments.sandbox.language import compiled, parsed
from mac_runner.environments.sandbox.values import METER, PROMPT_CHARS_MAX, Meter

__all__ = ["GLOBALS", "METER", "PROMPT_CHARS_MAX", "Meter", "Sandbox", "compiled", "parsed"]
