"""What players say in free text, read by rules: claims about themselves and each other.

One extractor for everybody who has to understand speech: the short form of past days, the record, the scripted
players. It knows names and role words and nothing of the game, so it cannot say whether a claim is true.
"""

from __future__ import annotations

from mac_runner.environments.town_of_salem.claims.extraction import Claim, ClaimKind, Says, extract

__all__ = ["Claim", "ClaimKind", "Says", "extract"]
