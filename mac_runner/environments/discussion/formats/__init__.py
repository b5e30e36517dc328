"""Public benchmarks as files of questions: one module for each format in which one is released."""

from __future__ import annotations

from mac_runner.environments.discussion.formats.converting import FORMATS, convert

__all__ = ["FORMATS", "convert"]
