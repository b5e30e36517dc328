"""Scripted discussants, each a policy from what a seat knows to a reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mac_runner.environments.base import Policy
from mac_runner.environments.discussion.players.clumsy import clumsy
from mac_runner.environments.discussion.players.discussant import discussant

POLICIES: Final[Mapping[str, Policy]] = {"discussant": discussant, "clumsy": clumsy}
"""Every scripted discussant by the name an experiment calls it."""

__all__ = ["POLICIES"]
