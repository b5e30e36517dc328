"""What scripted players say by day without a claim: greetings, reactions, questions, answers to an accuser.

Each entry is one kind (`kinds`); `talk` and `occasions` choose among them.
"""

from __future__ import annotations

from mac_runner.environments.town_of_salem.bots.kinds import declare

GREETING = declare(
    "greeting",
    when="in the greeting",
    wordings=(
        "Good day. I am {me}.",
        "Morning, all. {me} here.",
        "Hello, neighbours. I am {me}, and I would like to live a little longer.",
        "My name is {me}. I hope we all see tomorrow.",
        "Good to meet you. I want to hear a word from every one of you today.",
        "Hello. There is no vote today, so let us talk.",
        "Greetings from {me}. Please write your wills early.",
        "I slept badly, so be kind to me. I am {me}.",
        "Good morning. I will listen first.",
        "So this is our town. I have seen friendlier faces.",
        "Hello everyone. I will keep an eye on the quiet ones.",
        "Nice to see you all alive. Let us keep it so.",
        "{me} here. I talk little, but I remember what people say.",
        "Good day to you. Let us be honest with each other for once.",
        "Hello from {me}. Keep track of who says what, it will matter.",
        "A good day to all. I do not know any of you yet.",
        "Welcome, everyone. Think before you vote, that is all I ask.",
        "Hello. Tonight it gets dark early, so take care.",
    ),
)
GREETING_BACK = declare(
    "greeting back",
    when="in the greeting, to the one who spoke last",
    wordings=(
        "Hello {name}. I am {me}.",
        "Good day, {name}, and good day to the rest of you.",
        "Nice to meet you, {name}. I will be watching how you vote.",
        "You sound cheerful, {name}. I am {me}.",
        "Well met, {name}. Let us see what the night brings.",
        "Same to you, {name}.",
    ),
)
REBUTTAL = declare(
    "rebuttal",
    when="to an accuser",
    wordings=(
        "{name}, you have the wrong one.",
        "{name}, I hear you, but you are mistaken.",
        "You are looking in the wrong place, {name}.",
        "That is not true, {name}.",
        "{name}, what makes you so sure?",
        "No, {name}. Think again.",
        "{name}, you will be sorry for this one.",
    ),
)
ON_TRIAL = declare(
    "on trial",
    when="at the beginning of a defence",
    wordings=(
        "Hear me out before you judge.",
        "You are about to make a mistake.",
        "Give me one minute.",
        "I know how this looks.",
        "Lynch me and you will wake up to one more grave tomorrow.",
        "This is the wrong trial.",
        "Let me be short.",
    ),
)
LAST_WORDS = declare(
    "last words",
    when="before the rope",
    wordings=(
        "So be it.",
        "You will see when I am gone.",
        "Remember how each of you judged today.",
        "My grave will show it.",
        "Do not waste what I told you.",
        "Farewell, and look at those who were in such a hurry.",
        "I hope you do better tomorrow.",
    ),
)
SAME_ROLE = declare(
    "same role",
    when="two players claim one role",
    wordings=(
        "{name} says {role}, and so does {other}. Which of you is it?",
        "Two of you, {name} and {other}, tell the same story. Explain that.",
        "{name}, {other}: who of you would like to think again?",
        "How can {name} and {other} both be right?",
    ),
)
MY_ROLE_TAKEN = declare(
    "my role taken",
    when="another player claims the speaker's role",
    wordings=(
        "There cannot be two of us, {name}.",
        "Interesting choice, {name}. It happens to be mine.",
        "{name}, you picked the one story that I can judge.",
        "Try another story, {name}.",
    ),
)
DOUBT_ROOM = declare(
    "doubt room",
    when="the list has no room for a claim",
    wordings=(
        "{name} says {role}, but where on the list would that be?",
        "Read the list again, {name}. How many can there be?",
        "{name}, how does that fit the list?",
        "The list and {name} do not agree.",
    ),
)
WELCOME = declare(
    "welcome",
    when="a claim that no other player contests",
    wordings=(
        "Good, {name}. That fits the list.",
        "Thank you, {name}. Does anyone object?",
        "Noted, {name}. What else did you see?",
        "That is something, {name}. Stay alive.",
    ),
)
AGREEMENT = declare(
    "agreement",
    when="a player was accused today, by one whom the speaker follows",
    wordings=(
        "That is enough for me, {other}.",
        "I am with you, {other}.",
        "{other} makes sense to me.",
        "{name} owes us an answer to that.",
        "Then let us hear {name} on the stand.",
        "Well, {name}? What do you say to {other}?",
    ),
)
DISAGREEMENT = declare(
    "disagreement",
    when="a player was accused today, by one whom the speaker does not follow",
    wordings=(
        "Slow down, {other}. Where does that come from?",
        "{other}, is that all you have?",
        "I would like to hear more before I follow you, {other}.",
        "Let {name} answer first.",
        "Is there anyone besides {other} who can say something about {name}?",
    ),
)
VOTE_QUESTION = declare(
    "vote question",
    when="about a vote of the day before",
    wordings=(
        "{name}, why {other} yesterday?",
        "Yesterday {name} went for {other}. Why?",
        "You were quick to choose {other} yesterday, {name}. Why?",
        "What was that vote on {other} about, {name}?",
    ),
)
WRONG_LYNCH = declare(
    "wrong lynch",
    when="the Town lynched one of its own",
    wordings=(
        "We lost {victim} to our own rope. We must do better.",
        "With {victim} we hanged a friend. What were we thinking?",
        "Yesterday was a mistake. Who started it?",
        "Look at the ballots on {victim}. Somebody wanted that.",
        "Poor {victim}. The ones we are looking for did not have to lift a finger.",
    ),
)
RIGHT_LYNCH = declare(
    "right lynch",
    when="the Town lynched one who did not belong to it",
    wordings=(
        "The rope found the right neck yesterday.",
        "Good work yesterday. Who is next?",
        "One less. Now look at who defended {victim}.",
        "Yesterday went well. Who did not vote with us?",
        "We were right about {victim}. Let us go on like this.",
    ),
)
NIGHT_DEATH = declare(
    "night death",
    when="a player died in the night",
    wordings=(
        "Poor {victim}. Why this one, of all people?",
        "Who gains when {victim} is gone?",
        "Let us not waste the day. For {victim}, at least.",
        "Another funeral. I liked {victim}.",
        "What did {victim} talk about yesterday? Think back.",
        "Rest in peace, {victim}.",
    ),
)
GOOD_RIDDANCE = declare(
    "good riddance",
    when="a player died in the night who did not belong to the Town",
    wordings=(
        "No tears for {victim}.",
        "Somebody did our work last night. Thank you, whoever you are.",
        "We have one worry less. Who was close to {victim}?",
        "I will sleep better now that {victim} is gone.",
        "Look back at how {victim} voted. Who else did the same?",
    ),
)
QUIET_NIGHT = declare(
    "quiet night",
    when="the night passed without a death",
    wordings=(
        "A quiet night. Did anyone have a hand in that?",
        "All of us are here. I did not expect that.",
        "Everyone woke up. Let us use it.",
        "No funeral today. What went wrong for them, I wonder?",
    ),
)
REQUEST = declare(
    "request",
    when="a player has told no role",
    wordings=(
        "{name}, what is your role?",
        "{name}, tell us something. What do you do at night?",
        "We have heard little from {name}. Speak up, please.",
        "Would {name} like to share what happened last night?",
        "{name}, it is your turn to talk.",
        "Who has kept quiet so far? {name}, for one.",
    ),
)
FOUND_BY_OTHERS = declare(
    "found by others",
    when="a player was cleared by another",
    wordings=(
        "{other} says {name} is clean. Let us look elsewhere.",
        "{other} has spoken for {name}. Who is left?",
        "Do we all take the word of {other} for {name}?",
        "According to {other} we need not look at {name}.",
    ),
)
FEW_LEFT = declare(
    "few left",
    when="few are left alive",
    wordings=(
        "There are {count} of us left. We cannot afford another mistake.",
        "Only {count} left, and at least one plays false.",
        "{count} of us. Choose well today.",
        "We are {count} now, and every vote matters.",
    ),
)
CONFIDENCE = declare(
    "confidence",
    when="in a whisper to one found innocent",
    wordings=(
        "This stays between us.",
        "I think I can tell you this.",
        "Keep this to yourself for now.",
        "You should know this in case I am gone tomorrow.",
    ),
)
