"""Identities that are revealed from a round on, and the parts of an identity in templates."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.config import Experiment
from mac_runner.environments.discussion.testing import (
    DiscussionConversation,
    DiscussionEnvironment,
    IdentityRevealConfig,
    identity_of,
)
from mac_runner.environments.testing import phrase
from mac_runner.errors import ConfigError
from mac_runner.types import JsonValue
from tests.environments.discussion.table import agent, all_say, opened, read_by, result, say, talk, turn_of

TEXT = "a 34-year-old Black woman from Ohio"
PEOPLE = (
    agent("ann", persona="economist", demographics={"age": "elderly"}, if_as_human=True),
    agent("bob", demographics=TEXT),
    agent("mod", "moderator"),
)
SHOWN: JsonValue = {"persona": True, "demographics": True, "presence_mode": "as_declared"}
ANN = "an elderly economist, a human"
WORDS = ("elderly", "economist", "Ohio", "a human")


def revealing(from_round: int | None = None, *, max_rounds: int = 4, **prompt: str) -> Experiment:
    assert isinstance(SHOWN, dict)
    reveal = SHOWN if from_round is None else {**SHOWN, "reveal_from_round": from_round}
    return talk(*PEOPLE, max_rounds=max_rounds, identity_reveal_config=reveal, prompt=dict(prompt))


def play_round(conversation: DiscussionConversation, ann: str = "The boy", bob: str = "The boy") -> None:
    all_say(conversation, ann, "ann")
    all_say(conversation, bob, "bob")
    say(conversation, "mod", "They talk.")


def prompts(experiment: Experiment, reader: str, rounds: int) -> list[tuple[str, str]]:
    """The system and the user message of an agent, round by round."""
    conversation, found = opened(experiment), []
    for _ in range(rounds):
        system, user = conversation.prompt(turn_of(conversation, reader)).messages
        found.append((system.content, user.content))
        play_round(conversation)
    return found


def test_before_the_round_others_see_ids_only_and_from_it_on_all_that_is_shown() -> None:
    for place, first in product(("system", "last"), (2, 3)):
        for number, (system, user) in enumerate(prompts(revealing(first, identity_place=place), "mod", 4), start=1):
            # With `last` the roster names every agent, so only the moderator reads it, who has no identity of its own.
            assert not any(word in system for word in WORDS), (place, number)
            assert [word in user for word in WORDS] == [number >= first] * len(WORDS), (place, number)


def test_the_system_message_stays_the_same_and_the_roster_comes_first() -> None:
    found = prompts(revealing(), "bob", 3)

    assert len({system for system, _ in found}) == 1
    for _, user in found[1:]:
        roster = f"Who the others are:\n- ann, {ANN}\n\nWhat was said:\n"
        assert user.startswith(roster)
        assert f'speaker="ann" identity="{ANN}"' in user
    assert "the others are" not in found[0][1]


def test_revealed_from_the_first_round_all_is_in_the_system_message() -> None:
    for system, user in prompts(revealing(1), "bob", 3):
        assert f"\n- ann, {ANN}\n" in system
        assert "the others are" not in user


def test_where_nothing_is_shown_the_round_changes_nothing() -> None:
    plain, late = (talk(*PEOPLE, max_rounds=1, identity_reveal_config={"reveal_from_round": n}) for n in (1, 9))

    assert IdentityRevealConfig(reveal_from_round=9) == IdentityRevealConfig()
    assert prompts(plain, "bob", 1) == prompts(late, "bob", 1)


def test_changes_and_followings_before_the_round_are_of_agents_not_shown() -> None:
    conversation = opened(revealing(3, max_rounds=3))
    play_round(conversation, "The boy", "The grandmother")
    play_round(conversation, "The grandmother", "The grandmother")  # ann follows bob, whom she knows by his id only.
    play_round(conversation, "The boy", "The boy")

    outcome, ann = result(conversation), ANN
    # The moderator's identity is no participant's; in the last round nobody had read another answer than its own.
    assert outcome["changes_by_identity"] == {"(not shown)": [1, 2], TEXT: [1, 1], ann: [1, 1]}
    assert outcome["influence"] == {"(not shown)": [1, 2]}
    agents: Any = outcome["agents"]
    assert (agents["ann"]["shown"], agents["ann"]["shown_from"]) == (ann, 3)


TEMPLATE = """\
{% block system %}
I am an AI agent assisting {{ demographics_text }}|{{ demographics.age }}|{{ demographics.home }}|{{ persona }}|\
{{ if_as_human }}
{% for other in others %}
{{ other.agent }}:{{ other.persona }}:{{ other.demographics.age }}:{{ other.demographics_text }}:{{ other.shown }}
{% endfor %}
{% endblock %}
{% block later_round %}
{% for other in members %}
{{ other.agent }}:{{ other.persona }}:{{ other.demographics.age }}:{{ other.demographics_text }}:\
{% if other.if_as_human is none %}?{% else %}{{ other.if_as_human }}{% endif %}

{% endfor %}
{{ roster | map(attribute="agent") | join("+") }}
{% endblock %}
"""


@pytest.mark.ci
def test_templates_have_all_of_the_agent_and_of_others_what_is_revealed(snapshot: SnapshotAssertion) -> None:
    people = (
        agent("ann", persona="economist", demographics={"age": "elderly", "home": "Oslo"}, if_as_human=True),
        agent("bob", demographics=TEXT, persona="clerk", if_as_human=False),
    )
    reveal: JsonValue = {"demographics": True, "presence_mode": "all_human"}
    text = {"template_file": "own.jinja", "template": TEMPLATE}
    conversation = opened(talk(*people, max_rounds=2, identity_reveal_config=reveal, prompt=dict(text)))
    systems = [read_by(conversation, name).splitlines()[:2] for name in ("ann", "bob")]
    all_say(conversation, "The boy")

    later = conversation.prompt(turn_of(conversation, "bob")).messages[1].content.splitlines()
    assert [*systems, later] == snapshot


def test_a_field_of_an_identity_that_is_misspelt_is_refused_before_anything_runs() -> None:
    for wrong in ("{{ demographic }}", "{{ demographics.hom }}", "{% for one in others %}{{ one.age }}{% endfor %}"):
        text = f"{{% block system %}}\n{wrong}\n{{% endblock %}}"
        with pytest.raises(ConfigError, match=r"own\.jinja:2"):
            DiscussionEnvironment(talk(*PEOPLE, prompt={"template_file": "own.jinja", "template": text}))


def test_demographics_as_a_text_are_said_and_shown_as_they_are_written() -> None:
    grown = "You grew up in Ohio."
    for persona, text, own, shown in (
        (None, TEXT, f", {TEXT}.", TEXT),
        ("nurse", TEXT, f", {TEXT}, a nurse.", f"{TEXT}, a nurse"),
        (None, f"{grown} ", f". {grown}", f"who is described so: {grown}"),
        (None, "  ", ".", ""),
    ):
        who = agent("ann", persona=persona, demographics=text)
        told = identity_of(who, IdentityRevealConfig(persona=True, demographics=True))

        assert (told.own, told.shown) == (f"You are ann{own}", shown)
        assert identity_of(who, IdentityRevealConfig()).shown == ""
    assert phrase(None, TEXT) == TEXT
