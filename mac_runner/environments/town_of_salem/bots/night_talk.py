"""What scripted players say at night: in jail, in the chat of a team, among the dead.

Each entry is one kind (`kinds`); `talk` and `occasions` choose among them.
"""

from __future__ import annotations

from mac_runner.environments.town_of_salem.bots.kinds import Means, declare

JAIL_QUESTION = declare(
    "jail question",
    when="a keeper asks the prisoner",
    wordings=(
        "Who are you?",
        "What is your role? Speak quickly.",
        "Good evening. Why should I let you go?",
        "Tell me who you are and what you did last night.",
        "You have one chance to explain yourself.",
        "What do you know that the others do not?",
        "Convince me.",
    ),
)
JAIL_FOLLOW_UP = declare(
    "jail follow up",
    when="a keeper has heard the prisoner",
    wordings=(
        "And whom do you suspect?",
        "I will remember that.",
        "Why should I believe you?",
        "We will see in the morning.",
        "Is that all?",
    ),
)
JAIL_ANSWER = declare(
    "jail answer",
    when="a prisoner answers",
    wordings=(
        "Please let me live.",
        "You have no reason to hurt me.",
        "I will tell you the truth.",
        "A fair question.",
        "I thought you would come for me.",
        "No need for that.",
    ),
)
CLAIM_DEAD = declare(
    "claim dead",
    when="the dead say what they were",
    means=Means.WAS_ROLE,
    wordings=(
        "I was the {role}.",
        "Up there I was the {role}.",
        "No more secrets: I was the {role}.",
        "In life I was the {role}.",
        "My role was {role}.",
    ),
)
TARGET = declare(
    "target",
    when="a team chooses its victim",
    wordings=(
        "I say we take {name}.",
        "Let us take {name}.",
        "My choice is {name}.",
        "Tonight it should be {name}.",
        "Let it be {name}.",
    ),
)
TARGET_AGREED = declare(
    "target agreed",
    when="a member of a team agrees with the choice of another",
    wordings=(
        "Agreed, let us take {name}.",
        "Fine, I say we take {name}.",
        "Yes, let it be {name}.",
        "Good choice. Let it be {name}.",
    ),
)
REASON_ROLE = declare(
    "reason role",
    when="the victim's role is known or claimed",
    wordings=(
        "The last thing we need is {a_role}.",
        "We are better off without {a_role}.",
        "One night too many with {a_role} around, and we hang.",
    ),
)
REASON_ENEMY = declare(
    "reason enemy",
    when="the victim spoke against the team",
    wordings=(
        "Such loud voices hurt us.",
        "We have heard enough accusations from that side.",
        "Today came too close.",
    ),
)
REASON_HIDDEN = declare(
    "reason hidden",
    when="the victim has told no role",
    wordings=(
        "The silent ones may have the most to hide.",
        "A player without a claim can be anything.",
        "We have heard no role from there, and I do not like that.",
    ),
)
REASON_NONE = declare(
    "reason none",
    when="there is no other reason",
    wordings=(
        "One is as good as another tonight.",
        "Just a feeling.",
        "The house lies well for us.",
        "This will keep them guessing.",
    ),
)
TEAM_ROLE = declare(
    "team role",
    when="a member of a team passes on a role it found out",
    means=Means.OTHER_ROLE,
    wordings=("{name} is the {role}.", "I looked it up: {name} is the {role}.", "Careful, {name} is the {role}."),
)
AMONG_DEAD = declare(
    "among dead",
    when="the dead talk",
    wordings=(
        "So this is what comes after.",
        "How cold this place is.",
        "I would have liked one more day.",
        "Who else is here?",
        "At least nobody can vote for me now.",
        "From here they all look guilty.",
    ),
)
TO_DEAD = declare(
    "to dead",
    when="one who can hear the dead asks them",
    wordings=(
        "What did you find out while you lived?",
        "Who was it, do you think?",
        "I am listening.",
        "Tell me what to pass on.",
        "Did any of you see who came?",
    ),
)
