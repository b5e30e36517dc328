"""What a planted bug is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug: how it is planted, and what finds it out."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    oracle: Callable[[], None]
