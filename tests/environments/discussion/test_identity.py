"""Agents in grammatical words: for themselves, and as far as they are shown, for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from mac_runner.environments.discussion.testing import IdentityRevealConfig, identity_of
from mac_runner.environments.testing import article, phrase
from mac_runner.types import JsonValue
from tests.environments.discussion.table import agent, all_say, opened, read_by, talk

PHRASES: list[list[Any]] = yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text(encoding="utf-8"))
ARTICLES = {
    "an": "hour honest heir honorary MBA HR FBI LGBT SUV umbrella uninvited unimpressed American 8 80-year-old X-ray",
    "a": "university unique European one-armed user usual UN CEO PhD Ukrainian Ugandan house 7 100-year-old B-list",
}


def test_an_identity_is_a_grammatical_phrase() -> None:
    found = [[persona, demographics, phrase(persona, demographics)] for persona, demographics, _ in PHRASES]

    assert found == PHRASES
    for an, words in ARTICLES.items():
        assert {word: article(word) for word in words.split()} == dict.fromkeys(words.split(), an)


def test_an_agent_is_told_its_id_and_who_it_is() -> None:
    conversation = opened(talk(agent("ann", persona="economist", demographics={"age": "elderly"}), agent("bob")))
    system = conversation.prompt(conversation.turns()[0]).messages[0]

    assert (system.role, ", an elderly economist." in system.content) == ("system", True)
    assert "You are bob." in read_by(conversation, "bob")


def test_an_agent_is_told_what_it_takes_part_as() -> None:
    for as_human, told in {True: "as a human and speak as one.", False: "as an AI", None: ""}.items():
        own = identity_of(agent("ann", if_as_human=as_human), IdentityRevealConfig()).own

        assert told in own
        assert ("You take part" in own) == bool(told)


def test_a_persona_in_sentences_stands_by_itself() -> None:
    persona = "You value fairness. You speak little."
    who = agent("ann", persona=persona, demographics={"age": "elderly"})

    assert identity_of(who, IdentityRevealConfig()).own.endswith(f"an elderly person. {persona}")


def test_others_see_of_an_agent_what_is_revealed() -> None:
    who = agent("ann", persona="economist", demographics={"age": "elderly"}, if_as_human=True)
    cases: list[tuple[dict[str, JsonValue], str]] = [
        ({}, ""),
        ({"persona": True}, "an economist"),
        ({"demographics": True}, "an elderly person"),
        ({"persona": True, "demographics": True}, "an elderly economist"),
        ({"presence_mode": "as_declared"}, "a human"),
        ({"presence_mode": "all_ai", "persona": True}, "an economist, an AI"),
        ({"presence_mode": "all_human"}, "a human"),
    ]
    for reveal, shown in cases:
        assert identity_of(who, IdentityRevealConfig.model_validate(reveal)).shown == shown, reveal


def test_with_everything_hidden_others_see_ids_only() -> None:
    hidden = agent("ann", persona="economist", demographics={"age": "elderly"}, if_as_human=True)
    conversation = opened(talk(hidden, agent("bob")))
    for name in ("ann", "bob"):
        assert ("elderly" in read_by(conversation, name)) == (name == "ann")
        all_say(conversation, "The boy", name)

    prompt = read_by(conversation, "bob")
    assert "\n- ann\n" in prompt
    assert ' speaker="ann" answer="' in prompt
    assert not any(word in prompt for word in ("elderly", "economist", "human", "identity="))


def test_what_is_revealed_stands_with_every_statement_and_in_the_list_of_others() -> None:
    people = (agent("ann", persona='the "best" <b>economist'), agent("bob"))
    conversation = opened(talk(*people, identity_reveal_config={"persona": True}))
    all_say(conversation, "The boy")

    prompt = read_by(conversation, "bob")
    assert ' a "best" <b>economist\n' in prompt
    assert "identity=\"a 'best' ‹b›economist\"" in prompt
