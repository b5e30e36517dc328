"""What is understood of free speech, sentence by sentence, and what is not taken for a claim."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
import yaml

from mac_runner.environments.town_of_salem.testing import NAMES, Claim, ClaimKind, Says, accuse, claim, clear, extract


def told(claim: Claim) -> str:
    """`result Elias: one of the roles Doctor, Spy`."""
    details = ", ".join((*claim.roles, *claim.names))
    about = f" {claim.about}" if claim.about else ""
    return f"{claim.kind.value}{about}: {claim.says.value} {details}".strip()


CASES: Mapping[str, Mapping[str, list[str]]] = yaml.safe_load(
    Path(__file__).with_name("sentences.yaml").read_text(encoding="utf-8")
)


def test_sentences_hold_the_claims_they_are_to_hold_and_no_others() -> None:
    cases = {text: claims for group in CASES.values() for text, claims in group.items()}

    assert {text: [*map(told, extract(text, (*NAMES, "Ann", "Bob")))] for text in cases} == cases
    assert len(cases) >= 119


def test_span_holds_the_words_of_the_claim() -> None:
    text = "Well… “hm”. I’m the Serial Killer; Felicity & Abel: hello! I think FELICITY is the Vampire Hunter, really."
    words = ["I’m the Serial Killer", "FELICITY is the Vampire Hunter"]

    assert [text[claim.start : claim.end] for claim in extract(text, NAMES)] == words


def test_fixed_sentences_of_scripted_players_mean_what_they_say() -> None:
    text = f"{claim('Spy')} {accuse(['Abel'])} {clear(['Caleb'])} Elias is the Witch."
    meant = [
        "role: role Spy",
        "result Abel: suspicious",
        "result Caleb: not suspicious",
        "accusation Elias: role Witch",
    ]

    assert [told(found) for found in extract(text, NAMES)] == meant


def test_marks_cannot_be_written_by_a_player() -> None:
    """The characters that stand for names and roles are read as nothing when a text brings them along."""
    brought = "I am the \ue000. \ue100 is mafia."

    assert extract(brought, NAMES) == ()


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
