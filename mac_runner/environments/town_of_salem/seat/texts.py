"""The sentences that players read about phases, attributes and events: the rulebook of this game, as data.

They may name roles, as a rulebook does; the code around them names none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mac_runner.environments.town_of_salem.model.events import EventKind
from mac_runner.environments.town_of_salem.model.state import Phase
from mac_runner.environments.town_of_salem.roles import Level, Role

PHASE_RULES = {
    Phase.GREETING: "The first day. Everyone may speak or whisper. There is no vote and no trial.",
    Phase.BIDDING: (
        "Only where the floor is bid for: all living players bid from 0 to 4 at once, and only the highest bidder "
        "speaks next. Of equal bidders, those whom the last speaker named go first. Bids are not shown. When no one "
        "bids more than 0, the discussion is over."
    ),
    Phase.DISCUSSION: (
        "Everyone may speak to all or whisper to one player. Everyone sees that you whisper, but not what."
    ),
    Phase.VOTING: (
        "Each living player has one vote and may change it or take it back. As soon as more than half of the living "
        "vote for one player, that player is put on trial and all votes are cleared. A round in which everyone waits "
        "ends the day."
    ),
    Phase.DEFENCE: "Only the accused speaks, once.",
    Phase.JUDGEMENT: (
        "All living players except the accused judge at once: guilty, innocent or abstain. The accused is lynched if "
        "there are more guilty than innocent ballots. Words said with a ballot are heard when all have judged; then "
        "the ballots are shown with names."
    ),
    Phase.LAST_WORDS: (
        "The condemned player speaks once more and can no longer change the will. Then role and will are shown."
    ),
    Phase.NIGHT_CHAT: (
        "Those who share a private chat talk in rounds, all at once: the Mafia, the Vampires, the Jailor with the "
        "prisoner, the dead with a living Medium, and a dead Medium with the player they chose. In the jail the Jailor "
        "speaks first in each round, and the prisoner answers."
    ),
    Phase.NIGHT: (
        "All who can act choose at once, without seeing the others' choices. At dawn everyone learns who died, and "
        "each player learns what happened to them."
    ),
}
"""The rules of each phase, for the player who asks; the number of its rounds is in the system message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """What an attribute means, and whether a role has it from the start."""

    meaning: str
    holds: Callable[[Role], bool]


ATTRIBUTES = {
    "basic attack": Attribute(meaning="kills anyone who has no defence", holds=lambda role: role.attack is Level.BASIC),
    "powerful attack": Attribute(
        meaning="kills anyone whose defence is none or basic", holds=lambda role: role.attack is Level.POWERFUL
    ),
    "unstoppable attack": Attribute(
        meaning="kills anyone, whatever their defence", holds=lambda role: role.attack is Level.UNSTOPPABLE
    ),
    "basic defence": Attribute(
        meaning="survives basic attacks at night", holds=lambda role: role.defence is Level.BASIC
    ),
    "powerful defence": Attribute(
        meaning="survives basic and powerful attacks at night", holds=lambda role: role.defence is Level.POWERFUL
    ),
    "block immunity": Attribute(
        meaning="an Escort or a Consort cannot keep the player from acting", holds=lambda role: role.is_block_immune
    ),
    "detection immunity": Attribute(
        meaning="a Sheriff does not find the player suspicious", holds=lambda role: role.is_detection_immune
    ),
    "unique": Attribute(meaning="at most one player in a game holds the role", holds=lambda role: role.is_unique),
}

EVENT_WORDS = {
    EventKind.GAME_START: "The players, in seat order: {players}.",
    EventKind.DAY_START: "The sun rises.",
    EventKind.NIGHT_START: "Night falls.",
    EventKind.VOTING_START: (
        "Voting begins. {needed} votes for a player start a trial. Trials left today: {trials_left}."
    ),
    EventKind.SPEECH: "{player} says: “{text}”",
    EventKind.WHISPER_SEEN: "{player} whispers to {to}.",
    EventKind.VOTE: "{player} votes for {target} ({count_of}).",
    EventKind.UNVOTE: "{player} takes back their vote for {target}.",
    EventKind.TRIAL: "{accused} is put on trial (trial {trial} of the day).",
    EventKind.BALLOTS: "Ballots. Guilty: {guilty}. Innocent: {innocent}. Abstained: {abstain}.",
    EventKind.VERDICT: "{accused} is {verdict}.",
    EventKind.DEATH: "{death}",
    EventKind.NO_DEATH: "No one died last night.",
    EventKind.FULL_MOON: "The moon is full.",
    EventKind.BLACKMAILED_ON_STAND: "{accused} is blackmailed and cannot speak.",
    EventKind.REVEALED: "{player} reveals that they are the {role}.",
    EventKind.REMEMBERED: "An Amnesiac has remembered that they were {a_role}.",
    EventKind.REVIVED: "{player} is back from the dead.",
    EventKind.GAME_END: "{end}",
    EventKind.ROLE_CARD: "You are the {role}.",
    EventKind.TEAM: "{team}: {members}.",
    EventKind.QUARRY: "Your target is {target}.",
    EventKind.WHISPER: "{player} whispers to {to}: “{text}”",
    EventKind.CHAT: "({channel} chat) {player}: “{text}”",
    EventKind.JAIL_CHOSEN: "You will jail {target} tonight.",
    EventKind.TEAMMATE_JAILED: "Your teammate {player} is in jail tonight.",
    EventKind.SEANCE_CHOSEN: "You will talk with {target} tonight.",
    EventKind.SEANCE: "A dead Medium talks with you tonight.",
    EventKind.ACTION_CHOSEN: "You chose to {action}.",
    EventKind.CONVERTED: "You are now {a_role}.",
    EventKind.TEAM_CHANGED: "{player} is now the {role} of the Mafia.",
    EventKind.TEAM_JOINED: "{player} is now one of you, {a_role}.",
}
"""The kinds of events that the rules make as sentences, with fields that `knowledge.sentence` fills in."""
