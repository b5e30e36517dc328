"""What `mac-run check` is to try."""

from __future__ import annotations

from typing import Final, NamedTuple

_LOADING_S_MIN: Final = 60.0


class CheckRequest(NamedTuple):
    """What is to be tried, and how much of it."""

    target: str
    """The name of an environment as experiment files have it, or an experiment file."""
    settings: tuple[str, ...] = ()
    """Settings as KEY=VALUE."""
    agents: int | None = None
    conversations: int = 8
    turns: int = 5_000
    """A conversation with more turns does not end."""
    seconds: float = 10.0
    """A step that takes longer does not end."""
    policy: str | None = None
    """The scripted player whose replies are used; None: `random` where there is one."""

    @property
    def loading_s(self) -> float:
        """How long loading may take: it is no step, and imports libraries."""
        return max(self.seconds, _LOADING_S_MIN)
