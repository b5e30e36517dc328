"""What is understood of free speech, sentence by sentence, and what is not taken for a claim."""

from __future__ import annotations

from random import Random

import pytest

from mac_runner.environments.town_of_salem.bots.statements import accuse, claim, clear
from mac_runner.environments.town_of_salem.claims import Claim, ClaimKind, Says, extract
from mac_runner.environments.town_of_salem.game.lobbies import NAMES


def told(claim: Claim) -> str:
    """`result Elias: one of the roles Doctor, Spy`."""
    details = ", ".join((*claim.roles, *claim.names))
    about = f" {claim.about}" if claim.about else ""
    return f"{claim.kind.value}{about}: {claim.says.value} {details}".strip()


ROLES_CLAIMED = [
    ("I am the Sheriff.", "role: role Sheriff"),
    ("i'm Doctor, trust me", "role: role Doctor"),
    ("I’m the Mayor and I'd like to reveal.", "role: role Mayor"),
    ("I was the Medium.", "role: role held before Medium"),
    ("My role is Jailor.", "role: role Jailor"),
    ("I'm claiming Sheriff.", "role: role Sheriff"),
    ("I claim to be the Lookout.", "role: role Lookout"),
    ("Lookout here, quiet night.", "role: role Lookout"),
    ("As the Doctor, I stayed at home.", "role: role Doctor"),
    ("I, the Escort, ask for silence.", "role: role Escort"),
    ("I shot Elias last night as the Vigilante.", "role: role Vigilante"),
    ("I am just a simple Transporter", "role: role Transporter"),
    ("I am the real Sheriff.", "role: role Sheriff"),
    ("I'm GF, tell nobody.", "role: role Godfather"),
    ("I am the Serial Killer and proud of it.", "role: role Serial Killer"),
    ('"I am the Mayor."', "role: role Mayor"),
    ("Not much to say, I am the Doctor.", "role: role Doctor"),
    ("I am the Sheriff, why would I lie?", "role: role Sheriff"),
    ("Elias claims Sheriff, but I am the real Sheriff.", "role: role Sheriff"),
]
RESULTS = [
    ("I found that Elias is suspicious.", "result Elias: suspicious"),
    ("I found that Abel is not suspicious.", "result Abel: not suspicious"),
    ("I investigated Caleb last night and he came up suspicious.", "result Caleb: suspicious"),
    ("Last night I checked Caleb – not suspicious.", "result Caleb: not suspicious"),
    ("I checked Elias. He is suspicious.", "result Elias: suspicious"),
    ("I interrogated Gideon. Result: suspicious.", "result Gideon: suspicious"),
    ("I checked Caleb and he did not come up suspicious.", "result Caleb: not suspicious"),
    ("N1: Abel - not suspicious", "result Abel: not suspicious"),
    ("Night 2, Elias: suspicious", "result Elias: suspicious"),
    ("My investigation of Elias came back suspicious.", "result Elias: suspicious"),
    ("I got a suspicious result on Elias.", "result Elias: suspicious"),
    ("my target Caleb was attacked", "result Caleb: attacked"),
    ("I healed Caleb and he was attacked last night.", "result Caleb: attacked"),
    ("I watched Abel and saw Elias and Gideon visit.", "result Abel: visited by Elias, Gideon"),
    ("I watched Abel's house; Elias visited.", "result Abel: visited by Elias"),
    ("I watched Abel last night. Nobody visited.", "result Abel: visited by"),
    ("I saw Elias visiting Caleb last night.", "result Caleb: visited by Elias"),
    ("Abel's house was visited by Elias.", "result Abel: visited by Elias"),
    ("The Mafia visited Abel.", "result Abel: visited by the mafia"),
    ("I was roleblocked last night.", "result: blocked"),
    ("I got attacked!", "result: attacked"),
    (
        "I investigated Elias: Bodyguard, Godfather or Arsonist.",
        "result Elias: one of the roles Bodyguard, Godfather, Arsonist",
    ),
    ("Hester is either Medium, Janitor or Spy.", "result Hester: one of the roles Medium, Janitor, Spy"),
    ("Elias could be a Doctor, Spy or Witch.", "result Elias: one of the roles Doctor, Spy, Witch"),
    ("I looked into Abel: he is the Doctor.", "result Abel: one of the roles Doctor"),
    ("I checked Abel: not a Vampire.", "result Abel: not a vampire"),
]
ACCUSATIONS = [
    ("Elias is mafia", "accusation Elias: mafia"),
    ("GIDEON IS MAFIA", "accusation Gideon: mafia"),
    ("Elias is one of the Mafia.", "accusation Elias: mafia"),
    ("I think Elias is the Mafioso.", "accusation Elias: role Mafioso"),
    ("I believe Elias is lying.", "accusation Elias: evil"),
    ("Elias did it.", "accusation Elias: evil"),
    ("I think it's Elias.", "accusation Elias: evil"),
    ("vote Elias", "accusation Elias: evil"),
    ("Let's vote for Elias today.", "accusation Elias: evil"),
    ("We should lynch Elias.", "accusation Elias: evil"),
    ("Elias must be lynched.", "accusation Elias: evil"),
    ("My vote is on Elias.", "accusation Elias: evil"),
    ("I don't trust Elias.", "accusation Elias: evil"),
    ("I'm suspicious of Elias.", "accusation Elias: evil"),
    ("Gideon is acting very suspicious.", "accusation Gideon: evil"),
    ("Elias is not town.", "accusation Elias: not town"),
    ("I have no doubt that Elias is evil.", "accusation Elias: evil"),
    ("We should put Elias on trial.", "accusation Elias: evil"),
    ("Elias wants to frame me. She's the Godfather!", "accusation Elias: role Godfather"),
    ("Elias claimed Doctor but he is lying.", "accusation Elias: evil"),
]
DEFENCES = [
    ("Abel is innocent.", "defence Abel: not evil"),
    ("Abel is confirmed town.", "defence Abel: town"),
    ("Abel isn't evil", "defence Abel: not evil"),
    ("Abel is not mafia.", "defence Abel: not mafia"),
    ("I trust Abel.", "defence Abel: not evil"),
    ("I can vouch for Abel.", "defence Abel: not evil"),
    ("Abel is the Doctor.", "defence Abel: role Doctor"),
    ("I am a loyal member of the Town.", "defence: town"),
    ("I am innocent!", "defence: not evil"),
    ("I'm not mafia.", "defence: not mafia"),
]


@pytest.mark.parametrize(("text", "expected"), [*ROLES_CLAIMED, *RESULTS, *ACCUSATIONS, *DEFENCES])
def test_sentence_holds_this_claim_and_no_other(text: str, expected: str) -> None:
    assert [told(claim) for claim in extract(text, NAMES)] == [expected]


@pytest.mark.parametrize(
    "text",
    [
        # Denials.
        "I am not the Doctor.",
        "I never said I am the Sheriff.",
        "Nobody said Elias is mafia.",
        "I do not think Abel is suspicious.",
        "I have no reason to suspect Abel.",
        "Don't vote for Abel.",
        "Never would I say I found that Abel is suspicious.",
        # Questions.
        "Am I the Sheriff?",
        "I am the Sheriff?",
        "Elias, are you the Sheriff?",
        "Is Elias mafia?",
        "Why is Elias suspicious?",
        # Conditions and guesses.
        "If I am the Sheriff you hang.",
        "If Elias is mafia, then Gideon is too.",
        "Elias could be mafia.",
        "Maybe Elias is mafia.",
        "Abel or Elias is mafia.",
        # The words of others.
        "Caleb said he is the Doctor.",
        "Caleb told me: I am the Sheriff.",
        "According to Abel, Elias is mafia.",
        "They think I am the Godfather.",
        "Gideon voted for Elias.",
        "You accused Elias without proof.",
        "As the Doctor said, I should be careful.",
        'The will said "I am the Sheriff, and Elias is mafia".',
        # Plans.
        "I will say I am the Doctor tomorrow.",
        "I'll claim Doctor tomorrow.",
        # Words that only look like it.
        "Good day. I am Abel.",
        "I am the Sheriff's friend.",
        "I like the Sheriff.",
        "I see Elias as the Sheriff.",
        "I think the Sheriff is dead.",
        "The Sheriff should check Elias.",
        "Abelard is evil",
        "Prudence is a virtue.",
        "",
    ],
)
def test_sentence_holds_no_claim(text: str) -> None:
    assert extract(text, NAMES) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sheriff here, Bob is not suspicious", ["role: role Sheriff", "result Bob: not suspicious"]),
        ("I am the Sheriff. Bob is suspicious!", ["role: role Sheriff", "result Bob: suspicious"]),
        ("Bob is suspicious!", ["accusation Bob: evil"]),
        ("I'm voting for Bob, and Ann is innocent.", ["accusation Bob: evil", "defence Ann: not evil"]),
        ("Ann and Bob are mafia", ["accusation Ann: mafia", "accusation Bob: mafia"]),
        ("We lynch Bob because he is the Godfather.", ["accusation Bob: evil", "accusation Bob: role Godfather"]),
        ('Ann said "I am the Sheriff", and I believe Ann.', ["defence Ann: not evil"]),
        ("Bob accused me of being mafia, but I am innocent.", ["defence: not evil"]),
    ],
)
def test_text_with_several_clauses_is_taken_apart(text: str, expected: list[str]) -> None:
    assert [told(claim) for claim in extract(text, ("Ann", "Bob"))] == expected


def test_span_holds_the_words_of_the_claim() -> None:
    text = "Well… “hm”. I’m the Serial Killer; Felicity & Abel: hello! I think FELICITY is the Vampire Hunter, really."
    spans = [text[claim.start : claim.end] for claim in extract(text, NAMES)]

    assert spans == ["I’m the Serial Killer", "FELICITY is the Vampire Hunter"]


def test_fixed_sentences_of_scripted_players_mean_what_they_say() -> None:
    text = f"{claim('Spy')} {accuse(['Abel'])} {clear(['Caleb'])} Elias is the Witch."

    assert [told(found) for found in extract(text, NAMES)] == [
        "role: role Spy",
        "result Abel: suspicious",
        "result Caleb: not suspicious",
        "accusation Elias: role Witch",
    ]


def test_marks_cannot_be_written_by_a_player() -> None:
    """The characters that stand for names and roles are read as nothing when a text brings them along."""
    assert extract("I am the \ue000. \ue100 is mafia.", NAMES) == ()


def test_any_text_is_read_and_its_spans_lie_within_it() -> None:
    chance = Random(7)
    words = [*NAMES[:4], "I", "am", "the", "Sheriff", "is", "not", "mafia", "saw", "and", "if", *',.?"’\n']
    for _ in range(400):
        text = " ".join(chance.choices(words, k=25))
        for found in extract(text, NAMES):
            assert 0 <= found.start < found.end <= len(text)
            assert found.about in ("", *NAMES)


@pytest.mark.parametrize(
    "piece", ["I ", "Abel, ", "Abel and ", "I checked Abel ", "very ", "Abel is really ", "I am the real ", '"', "N1 "]
)
def test_hostile_text_is_read_to_its_end(piece: str) -> None:
    """A pattern that backtracks exponentially would never come to one; tests/attacks/test_reading_costs.py measures."""
    extract((piece * 2000)[:2000], NAMES)


def test_results_count_for_and_against_like_opinions() -> None:
    guilty, innocent = extract(f"{accuse(['Abel'])} {clear(['Caleb'])}", NAMES)

    assert (guilty.kind, guilty.says) == (ClaimKind.RESULT, Says.SUSPICIOUS)
    assert (guilty.is_against, guilty.is_in_favour) == (True, False)
    assert (innocent.is_against, innocent.is_in_favour) == (False, True)
