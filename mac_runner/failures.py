"""Failures of conversations that have one reason, although their words differ."""

from __future__ import annotations

import re
from typing import Final

ALIKE_MAX: Final = 20
"""A run whose first conversations fail alike, so many of them, ends before any has finished."""

# Another turn does not make it another reason: `turn 12/Ann/0/1: …` and `turn 3/Bob/0/0: …` are one. Nor do addresses
# of objects, seeds and other long numbers. The status of a server has three digits.
_VARYING: Final = re.compile(r"\bturn \d+/[^/\n]*/\d+/\d+|\b0x[0-9a-f]+\b|(?<!\.py:)(?<!\d)\d{4,}")
_RAISED: Final = re.compile(r"(?s)([^:]*): .*( \([^()\n]+\.py:\d+\))")
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
    """The ALIKE_MAX conversations that began first, as long as all that ended failed for one reason."""

    def __init__(self) -> None:
        self._kinds: list[str | None] = []
        self.reason: str | None = None
        """Their reason, once all of them have failed for it."""

    def add(self, number: int, failure: str | None, task_id: str) -> None:
        """Count the end of the conversation that began as the `number`-th, from 0; None where it finished."""
        if number >= ALIKE_MAX:
            return
        general = None if failure is None else in_general(failure, task_id)
        self._kinds.append(None if general is None else kind_of(general))
        if len(self._kinds) == ALIKE_MAX and len({*self._kinds}) == 1:
            self.reason = general
