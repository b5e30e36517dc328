"""What a version of Ollama cannot do that a run relies on."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_VERSION: Final = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)

WHOLE_PROMPTS_SINCE: Final = (0, 12, 6)
"""Before it a prompt that does not fit the context is shortened, whatever the request says."""
PENALTIES_SINCE: Final = (0, 30, 0)
"""Before it the engine for newer models takes no notice of penalties."""
PENALTIES: Final = frozenset({"presence_penalty", "frequency_penalty", "repetition_penalty"})


def missing_in(version: str, *, settings: Collection[str]) -> str | None:
    """Why a server of `version` will not do for a run that sets `settings`; None when it will.

    A version that is no number, and 0.0.0 of one built from its sources, are taken for the newest.
    """
    match = _VERSION.match(version)
    found = tuple(map(int, match.groups())) if match else ()
    if not any(found):
        return None
    if found < WHOLE_PROMPTS_SINCE:
        since = _told(WHOLE_PROMPTS_SINCE)
        return f"it shortens prompts that do not fit, and says nothing; update it to {since} or later"
    penalties = ", ".join(sorted(PENALTIES & set(settings)))
    if penalties and found < PENALTIES_SINCE:
        since = _told(PENALTIES_SINCE)
        return f"it ignores {penalties} with some models; leave that out, or update it to {since} or later"
    return None


def _told(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
