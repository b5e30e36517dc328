"""Failures of conversations that have one reason, although their words differ."""

from __future__ import annotations

import re
from typing import Final

ALIKE_MAX: Final = 20
"""So many conversations that fail alike, with none that has finished, end a run."""

# Another turn does not make it another reason: `turn 12/Ann/0/1: …` and `turn 3/Bob/0/0: …` are one. Nor do addresses
# of objects, seeds and other long numbers. The status of a server has three digits.
_VARYING: Final = re.compile(r"\bturn \d+/[^/\n]*/\d+/\d+|\b0x[0-9a-f]+\b|\d{4,}")
_RAISED: Final = re.compile(r"(?s)([^:]*): .*( \([^()\s]+:\d+\))")
"""What raised, and the line of the user's code: see `boundary`. What was said may differ."""


def in_general(reason: str, task_id: str) -> str:
    """A reason without what names its conversation."""
    return _VARYING.sub(_left_out, reason.replace(task_id, "…") if task_id else reason)


def kind_of(general: str) -> str:
    """Equal for two reasons that are one: the same line raised in the same step, or the same words."""
    found = _RAISED.fullmatch(general)
    return general if found is None else "".join(found.groups())


def _left_out(found: re.Match[str]) -> str:
    return "turn …" if found[0].startswith("turn") else "…"


class FirstFailures:
    """The conversations of a run that ended first, as long as all of them failed for one reason."""

    def __init__(self) -> None:
        self._kind: str | None = None
        self._count = 0
        self.reason: str | None = None
        """Their reason, once there are ALIKE_MAX of them."""

    def add(self, failure: str | None, task_id: str) -> None:
        """Count a conversation that ended; `failure` is None for one that finished."""
        general = None if failure is None else in_general(failure, task_id)
        kind = None if general is None else kind_of(general)
        if not self._count:
            self._kind = kind
        self._count += 1
        if kind != self._kind:
            self._kind = None
        self.reason = general if self._kind is not None and self._count >= ALIKE_MAX else None
