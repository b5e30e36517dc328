"""The rules of each phase in words, for the player who asks. How many rounds each has stands in the system message."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mac_runner.environments.town_of_salem.state import Phase

_TABLE = {
    Phase.GREETING: "The first day. Everybody may speak or whisper; there is no vote and no trial.",
    Phase.BIDDING: (
        "Only where the floor is bid for: all living players bid from 0 to 4 at once, and the highest bidder alone "
        "speaks next. Among equals those go first whom the last words named. Nobody is shown the bids. When nobody "
        "bids more than 0, the discussion is over."
    ),
    Phase.DISCUSSION: "Everybody may speak to all or whisper to one player. That you whispered is seen, what is not.",
    Phase.VOTING: (
        "Each living player may have one standing vote and may change it or take it back. As soon as more than half of "
        "the living vote for one player, that player is put on trial and all votes are wiped. A round in which "
        "everybody waits ends the day."
    ),
    Phase.DEFENCE: "Only the accused speaks, once.",
    Phase.JUDGEMENT: (
        "All living players but the accused judge at once: guilty, innocent or abstain. Strictly more guilty than "
        "innocent ballots lynch. Afterwards the ballots are shown with names."
    ),
    Phase.LAST_WORDS: "The condemned speaks once more and can change the will no longer. Then role and will are shown.",
    Phase.NIGHT_CHAT: (
        "Those who share a private channel talk, all at once, round by round: the Mafia, the Vampires, the Jailor with "
        "the prisoner, the dead with a living Medium, and a dead Medium with the one they chose."
    ),
    Phase.NIGHT: (
        "All who have something to choose do so at once, without seeing the others' choices. What became of it is told "
        "at dawn: to all who died, to each what concerns them."
    ),
}

RULES: Mapping[str, str] = MappingProxyType({phase.value: text for phase, text in _TABLE.items()})
"""Phase by name to its rules."""
