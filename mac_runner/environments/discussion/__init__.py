"""Agents with roles and identities discuss questions for some rounds; who reads whom is a setting."""

from __future__ import annotations

from mac_runner.environments.discussion.environment import DiscussionEnvironment

__all__ = ["DiscussionEnvironment"]
