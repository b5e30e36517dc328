"""What players say in free text, read by rules: claims about themselves and each other.

Shortened days, the record and the scripted players all read speech with this one extractor. It knows names and role
words, but nothing of the game, so it cannot say whether a claim is true.
"""

from __future__ import annotations

from mac_runner.environments.town_of_salem.claims.extraction import Claim, ClaimKind, estimates, extract, leaning
from mac_runner.environments.town_of_salem.model.events import Says

__all__ = ["Claim", "ClaimKind", "Says", "estimates", "extract", "leaning"]
