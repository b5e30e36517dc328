"""The sentences that players read about phases, attributes and events: the rulebook of this game, as data.

They may name roles, as a rulebook does; the code around them names none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.state import Phase
from mac_runner.environments.town_of_salem.roles import Level, Role

PHASE_RULES = {
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
        "innocent ballots lynch. Words said with a ballot are heard when all have judged; then the ballots are shown "
        "with names."
    ),
    Phase.LAST_WORDS: "The condemned speaks once more and can change the will no longer. Then role and will are shown.",
    Phase.NIGHT_CHAT: (
        "Those who share a private channel talk, all at once, round by round: the Mafia, the Vampires, the Jailor with "
        "the prisoner, the dead with a living Medium, and a dead Medium with the one they chose. In the jail the "
        "Jailor speaks first in each round, and the prisoner answers."
    ),
    Phase.NIGHT: (
        "All who have something to choose do so at once, without seeing the others' choices. What became of it is told "
        "at dawn: to all who died, to each what concerns them."
    ),
}
"""The rules of each phase, for the player who asks; the number of its rounds is in the system message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """What an attribute means, and whether a role has it from the start."""

    meaning: str
    holds: Callable[[Role], bool]


def _attack(level: Level) -> Callable[[Role], bool]:
    return lambda role: role.attack is level


def _defence(level: Level) -> Callable[[Role], bool]:
    return lambda role: role.defence is level


ATTRIBUTES = {
    "basic attack": Attribute(meaning="kills who has no defence", holds=_attack(Level.BASIC)),
    "powerful attack": Attribute(meaning="kills who has no or basic defence", holds=_attack(Level.POWERFUL)),
    "unstoppable attack": Attribute(meaning="kills whatever the defence", holds=_attack(Level.UNSTOPPABLE)),
    "basic defence": Attribute(meaning="survives basic attacks at night", holds=_defence(Level.BASIC)),
    "powerful defence": Attribute(meaning="survives basic and powerful attacks", holds=_defence(Level.POWERFUL)),
    "block immunity": Attribute(
        meaning="an Escort or Consort cannot keep the role from acting", holds=lambda role: role.is_block_immune
    ),
    "detection immunity": Attribute(
        meaning="a Sheriff does not find the role suspicious", holds=lambda role: role.is_detection_immune
    ),
    "unique": Attribute(meaning="at most one player of a game holds the role", holds=lambda role: role.is_unique),
}

CAUTIOUS = "From now on you leave alone those who block or jail you."
INCAUTIOUS = "From now on you kill those who block or jail you."

BEFALLEN = {
    EventKind.ATTACKED: "they were attacked and survived",
    EventKind.BLOCKED: "they were kept busy",
    EventKind.BLOCK_RESISTED: "somebody tried to block them, in vain",
    EventKind.CONTROLLED: "they were controlled",
    EventKind.CONTROL_RESISTED: "somebody tried to control them, in vain",
    EventKind.TRANSPORTED: "they were moved",
    EventKind.DOUSED: "they were doused",
    EventKind.BLACKMAILED: "they were blackmailed",
    EventKind.PATIENT_ATTACKED: "their patient was attacked",
}

EVENT_WORDS = {
    EventKind.GAME_START: "Players, in seat order: {players}. Roles in this game: {lobby}.",
    EventKind.DAY_START: "The sun rises.",
    EventKind.NIGHT_START: "Night falls.",
    EventKind.VOTING_START: "Voting opens: {needed} votes on a player start a trial; trials left today: {trials_left}.",
    EventKind.SPEECH: "{player} says: “{text}”",
    EventKind.WHISPER_SEEN: "{player} whispers to {to}.",
    EventKind.VOTE: "{player} votes for {target} ({count_of}).",
    EventKind.UNVOTE: "{player} takes back the vote for {target}.",
    EventKind.TRIAL: "{accused} is put on trial (trial {trial} of the day).",
    EventKind.BALLOTS: "Ballots: guilty: {guilty}; innocent: {innocent}; abstained: {abstain}.",
    EventKind.VERDICT: "{accused} is {verdict}.",
    EventKind.DEATH: "{death}",
    EventKind.NO_DEATH: "Nobody died last night.",
    EventKind.FULL_MOON: "The moon is full.",
    EventKind.BLACKMAILED_ON_STAND: "{accused} is blackmailed and cannot speak.",
    EventKind.REVEALED: "{player} shows that they are the {role}.",
    EventKind.REMEMBERED: "An Amnesiac has remembered who they were: {a_role}.",
    EventKind.REVIVED: "{player} is back from the dead.",
    EventKind.GAME_END: "{end}",
    EventKind.ROLE_CARD: "You are the {role}.",
    EventKind.TEAM: "{team}: {members}.",
    EventKind.QUARRY: "Your target is {target}.",
    EventKind.WHISPER: "{player} whispers to {to}: “{text}”",
    EventKind.CHAT: "({channel} chat) {player}: “{text}”",
    EventKind.JAIL_CHOSEN: "You will jail {target} tonight.",
    EventKind.JAILED: "You are in jail. You cannot act tonight; you can talk with the Jailor.",
    EventKind.JAILING: "You have {prisoner} in jail.",
    EventKind.TEAMMATE_JAILED: "{player} of your team is in jail tonight.",
    EventKind.SEANCE_CHOSEN: "You will talk with {target} tonight.",
    EventKind.SEANCE: "The Medium, who is dead, talks with you tonight.",
    EventKind.ACTION_CHOSEN: "You chose to {action}.",
    EventKind.HAUNT_OFFERED: "You may haunt one of: {candidates}.",
    EventKind.BLOCKED: "Somebody kept you busy: if you chose to do something tonight, it did not happen.",
    EventKind.BLOCK_FAILED: "{target} could not be blocked.",
    EventKind.BLOCK_RESISTED: "Somebody tried to block you, in vain.",
    EventKind.TARGET_JAILED: "{target} was in jail: what you chose did not happen.",
    EventKind.RESULT: "You found that {about} {found}.",
    EventKind.ATTACKED: "You were attacked, and {saved_by} saved you.",
    EventKind.PATIENT_ATTACKED: "Your patient {target} was attacked.",
    EventKind.DEFENCE_TOO_STRONG: "{attacked} was too well defended against your attack.",
    EventKind.EXECUTIONS_LOST: "{target} was of the Town: you may execute no more.",
    EventKind.GOAL_MET: "You have reached your goal: you have won.",
    EventKind.CONVERTED: "You are now a {role}.",
    EventKind.TEAM_CHANGED: "{player} is now the {role} of the Mafia.",
    EventKind.TEAM_JOINED: "{player} is now one of you, {a_role}.",
    EventKind.FAILED: "What you did had no effect on {target}.",
    EventKind.CONTROLLED: "Somebody made you do what they wanted.",
    EventKind.CONTROL_FAILED: "{target} could not be controlled.",
    EventKind.CONTROL_RESISTED: "Somebody tried to control you, in vain.",
    EventKind.TRANSPORTED: "You were moved to another place tonight.",
    EventKind.DOUSED: "You were doused.",
    EventKind.VISITED: "You doused those who came to you: {visitors}.",
    EventKind.BLACKMAILED: "You are blackmailed: tomorrow you cannot speak by day.",
    EventKind.GUILT: "You killed one of your own, {target}. The next night will be your last.",
    EventKind.CLEANED: "You cleaned {target}, who was {a_role}. {legacy}",
    EventKind.MAFIA_VISITS: "The Mafia visited: {visited}.",
    EventKind.BUGGED: "Your bug on {target}: {heard}.",
    EventKind.CAUTION: "{caution}",
}
"""Every kind of event as a sentence, with fields that `narration` fills in."""
