"""What scripted players claim by day: roles, findings, and accusations with their reason.

Each entry is one kind (`kinds`); `talk` and `occasions` choose among them.
"""

from __future__ import annotations

from mac_runner.environments.town_of_salem.bots.kinds import Means, declare

CLAIM = declare(
    "claim",
    when="a role must be told: one's own, or a liar's cover",
    means=Means.ROLE,
    wordings=(
        "I am the {role}.",
        "I'm the {role}.",
        "My role is {role}.",
        "{role} here.",
        "I claim {role}.",
        "You may as well know: I am the {role}.",
        "For the record, I am the {role}.",
        "No more secrets: I am the {role}.",
        "I was dealt the {role}, and I have played it as well as I could.",
        "Write it down: I am the {role}.",
    ),
)
CLAIM_AGAIN = declare(
    "claim again",
    when="a role was told before, and is doubted or counted on",
    means=Means.ROLE,
    wordings=(
        "As I told you, I am the {role}.",
        "I am still the {role}.",
        "I said it before: I am the {role}.",
        "Once more: I am the {role}.",
        "My role is {role}, today as yesterday.",
        "Ask me as often as you like, I am the {role}.",
        "I stand by it: I am the {role}.",
    ),
)
ACCOUNT = declare(
    "account",
    when="a role is told together with what its holder did last night",
    means=Means.ROLE,
    wordings=(
        "I am the {role}; last night {account}.",
        "I am the {role}, and {account} last night.",
        "My role is {role}. Last night {account}.",
        "I'm the {role}. To be exact, last night {account}.",
        "I claim {role}: {account} last night.",
    ),
)
GUILTY = declare(
    "guilty",
    when="a finding against a player",
    means=Means.SUSPICIOUS,
    wordings=(
        "I found that {name} is suspicious.",
        "I found out that {name} is suspicious.",
        "Here is my result on {name}: suspicious.",
        "{name} came up suspicious.",
        "{name} turned out to be suspicious.",
    ),
)
GUILTY_NIGHT = declare(
    "guilty night",
    when="a finding against a player, with the night it comes from",
    means=Means.SUSPICIOUS,
    wordings=(
        "On night {night} I found that {name} is suspicious.",
        "On night {night} {name} came up suspicious.",
        "I found that {name} is suspicious, on night {night} in fact.",
        "Night {night} gave me my result on {name}: suspicious.",
        "Since night {night} I know more: I found that {name} is suspicious.",
    ),
)
CAUGHT = declare(
    "caught",
    when="a player was the one visitor of a house whose owner was murdered",
    means=Means.SUSPICIOUS,
    wordings=(
        "I found that {name} is suspicious, a lone guest on night {night} in the house of the murdered.",
        "On night {night} there was one guest where the murder was done, and so I found that {name} is suspicious.",
    ),
)
INNOCENT = declare(
    "innocent",
    when="a finding for a player",
    means=Means.NOT_SUSPICIOUS,
    wordings=(
        "I found that {name} is not suspicious.",
        "I found out that {name} is not suspicious.",
        "Here is my result on {name}: not suspicious.",
        "{name} came up clean.",
        "{name} turned out not suspicious.",
    ),
)
INNOCENT_NIGHT = declare(
    "innocent night",
    when="a finding for a player, with the night it comes from",
    means=Means.NOT_SUSPICIOUS,
    wordings=(
        "On night {night} I found that {name} is not suspicious.",
        "On night {night} {name} came up clean.",
        "I found that {name} is not suspicious, on night {night} in fact.",
        "Night {night} gave me my result on {name}: not suspicious.",
        "Since night {night} I sleep better: I found that {name} is not suspicious.",
    ),
)
CLEARED = declare(
    "cleared",
    when="one's findings for several players at once",
    means=Means.ALL_NOT_EVIL,
    wordings=(
        "So far I can clear {names}.",
        "I can confirm {names}.",
        "I trust {names}, and I have my reasons.",
        "From what I found, I vouch for {names}.",
        "My nights were well spent: I can clear {names}.",
    ),
)
CALLED_ON = declare(
    "called on",
    when="the Mafia called on a player, and so that player does not belong to it",
    means=Means.NOT_EVIL,
    wordings=(
        "On night {night} somebody called on {name}, not as a friend, so I can clear {name}.",
        "I can clear {name}, since those who called there on night {night} do not call on their own.",
        "I vouch for {name}: on night {night} they had the wrong kind of guests.",
    ),
)
SHOWN = declare(
    "shown",
    when="a player showed their role to all",
    means=Means.NOT_EVIL,
    wordings=(
        "We all saw what {name} is, so I trust {name}.",
        "I trust {name}, who has shown us everything.",
        "I vouch for {name} after that.",
    ),
)
HEARD_DEAD = declare(
    "heard from the dead",
    when="the dead accuse a player, to one who can hear them",
    means=Means.EVIL,
    wordings=(
        "I suspect {name}: I have it from those who lie in the graveyard.",
        "I am suspicious of {name}, and so are our dead.",
        "Last night brought me a voice from the graveyard, and now I suspect {name}.",
    ),
)
AGAINST_ROOM = declare(
    "against room",
    when="against one whose role was claimed by more than the list has room for",
    means=Means.EVIL,
    wordings=(
        "I suspect {name}: the list has no room for one more {role}.",
        "Too many of you want to be the {role}, and I suspect {name}.",
        "Count the list again. I am suspicious of {name}, for I cannot fit another {role} in.",
        "I do not believe {name}: the {role} is taken.",
    ),
)
AGAINST_BALLOT = declare(
    "against ballot",
    when="against one whose ballot was wrong, as the grave showed",
    means=Means.EVIL,
    wordings=(
        "I suspect {name} because of that ballot on {victim}.",
        "Look at how the ballots on {victim} fell. I suspect {name}.",
        "I am suspicious of {name}, and it is the ballot on {victim} that made me so.",
        "I have not forgotten {victim}. I do not trust {name} since that ballot.",
    ),
)
AGAINST_ACCUSER = declare(
    "against accuser",
    when="against one who accused a player whose grave showed one of the Town",
    means=Means.EVIL,
    wordings=(
        "I suspect {name}, for the word against {victim} came from there.",
        "The grave of {victim} speaks for itself, and so I suspect {name}.",
        "I am suspicious of {name} since we buried {victim}.",
        "I no longer ask who wanted {victim} dead. I do not trust {name}.",
    ),
)
AGAINST_SILENT = declare(
    "against silent",
    when="against one who has told no role so late in the game",
    means=Means.EVIL,
    wordings=(
        "I suspect {name}: it is day {day}, and we have yet to hear a role.",
        "All this silence makes me suspicious of {name}.",
        "I am wary of {name}, so quiet on day {day}, and so alive.",
        "Silence is an answer too. I suspect {name}.",
    ),
)
AGAINST_SOURCE = declare(
    "against source",
    when="against one whom a believed player accused",
    means=Means.EVIL,
    wordings=(
        "What {other} told us is enough. I suspect {name}.",
        "I suspect {name}, for I take the word of {other}.",
        "{other} has a point. I am suspicious of {name}.",
        "I go with {other}: my suspect is {name}.",
    ),
)
AGAINST_RIVAL = declare(
    "against rival",
    when="against one's own accuser",
    means=Means.EVIL,
    wordings=(
        "I suspect {name}, who points at me without a reason.",
        "I suspect {name}: whoever is in such a hurry hides something.",
        "I am suspicious of {name}, for an honest player would have asked me first.",
        "Ask yourselves who gains by this. I suspect {name}.",
        "I do not trust {name} after what we just heard.",
    ),
)
