"""What a looped test tried, for the terminal: it comes after the results, also where tests run beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

Tally: TypeAlias = Callable[[str, int], None]
"""Takes what was tried and how many faults it showed: the fixture `tally`."""

PROPERTY: Final = "tried"
"""The name under which it goes into a test's report."""
