"""Agents discuss a topic for some rounds: the smallest environment that uses the whole contract."""

from __future__ import annotations

from mac_runner.environments.discussion.environment import DiscussionEnvironment

__all__ = ["DiscussionEnvironment"]
