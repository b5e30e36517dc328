"""The roles of a discussion, a file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mac_runner.environments.discussion.roles.base import Field, Moment, Role
from mac_runner.environments.discussion.roles.devils_advocate import DEVILS_ADVOCATE
from mac_runner.environments.discussion.roles.judge import CONTINUE, JUDGE
from mac_runner.environments.discussion.roles.moderator import MODERATOR
from mac_runner.environments.discussion.roles.participant import PARTICIPANT
from mac_runner.environments.discussion.settings import DiscussionRole

ROLES: Final[Mapping[DiscussionRole, Role]] = {
    role.name: role for role in (PARTICIPANT, MODERATOR, DEVILS_ADVOCATE, JUDGE)
}
"""Every role by its name."""

__all__ = ["CONTINUE", "ROLES", "Field", "Moment", "Role"]
