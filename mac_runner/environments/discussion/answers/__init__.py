"""From what a model wrote to what it said: the object in a reply, and the choice an answer names."""

from __future__ import annotations

from mac_runner.environments.discussion.answers.matching import Match, Matcher
from mac_runner.environments.discussion.answers.problems import Cause, Problem
from mac_runner.environments.discussion.answers.reading import Found, read_fields

__all__ = ["Cause", "Found", "Match", "Matcher", "Problem", "read_fields"]
