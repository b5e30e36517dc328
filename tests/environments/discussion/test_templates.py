"""Prompts as the built-in template writes them, and templates of one's own."""

from __future__ import annotations

from typing import cast, get_args

import pytest
from syrupy.assertion import SnapshotAssertion

from benchmarks.discussion_prefix import EXPERIMENT, measure
from mac_runner.config import Experiment, load_experiment
from mac_runner.environments.discussion.testing import Choice, ChoiceFormat, DiscussionEnvironment, listed
from mac_runner.errors import ConfigError
from mac_runner.types import Prompt
from tests.environments.discussion.table import agent, all_say, opened, read_by, say, talk, turn_of

AGENTS = (agent("ann"), agent("bob"), agent("mod", "moderator", after=("ann", "bob")))


def with_template(text: str) -> Experiment:
    return talk(*AGENTS, max_rounds=3, prompt={"template_file": "own.jinja", "template": text})


def test_choices_are_listed_in_the_format_asked_for() -> None:
    choices = [Choice(id=text[0], text=text) for text in ("Yes", "No", "Perhaps", "Never")]
    labels = {"letters": "A B C D", "numerals": "1 2 3 4", "roman": "I II III IV"}
    signs = {"colon": ":", "dot": ".", "parenthesis": ")"}
    expected = {
        f"{kind}_{sign}": [
            f"{label}{signs[sign]} {choice.text}" for label, choice in zip(names.split(), choices, strict=True)
        ]
        for kind, names in labels.items()
        for sign in signs
    }

    expected |= {"none": [choice.text for choice in choices], "bullet": [f"- {choice.text}" for choice in choices]}
    assert expected.keys() == {*get_args(ChoiceFormat)}
    for choice_format, lines in expected.items():
        assert [*listed(cast("ChoiceFormat", choice_format), choices)] == lines


def test_every_choice_has_a_label_of_its_own() -> None:
    choices = [Choice(id=str(i), text=f"choice {i}") for i in range(26)]

    assert listed("roman_dot", choices)[23:] == ("XXIV. choice 23", "XXV. choice 24", "XXVI. choice 25")
    assert listed("letters_dot", choices)[-1] == "Z. choice 25"


def test_the_system_message_asks_the_question_and_never_changes(snapshot: SnapshotAssertion) -> None:
    conversation = opened(talk(*AGENTS))
    systems = set()
    for _ in range(2):
        systems.add(conversation.prompt(turn_of(conversation, "ann")).messages[0].content)
        all_say(conversation, "The boy")
        say(conversation, "mod", "They agree.")

    assert systems == snapshot


def test_prompts_begin_alike_up_to_who_the_agent_is() -> None:
    """What the prefix cache lives on: first the rules and the question, alike for all."""
    conversation = opened(talk(*AGENTS))
    ann, bob = (conversation.prompt(turn_of(conversation, name)).messages[0].content for name in ("ann", "bob"))
    common = ann[: ann.index("You are ann")]

    assert "Cannot be determined" in common
    assert bob.startswith(common)


def test_what_was_said_is_only_ever_appended_to() -> None:
    conversation = opened(talk(*AGENTS, max_rounds=4, routing_strategy={"history_rounds": None}))
    told = []
    for _ in range(3):
        all_say(conversation, "The boy")
        say(conversation, "mod", "They agree.")
        text = conversation.prompt(turn_of(conversation, "ann")).messages[1].content
        told.append(text[: text.index("It is round")])

    assert told[1].startswith(told[0])
    assert told[2].startswith(told[1])


def test_an_agent_told_last_who_it_is_shares_all_that_was_said_before(snapshot: SnapshotAssertion) -> None:
    ann = agent("ann", persona="economist")
    conversation = opened(talk(ann, agent("bob"), prompt={"identity_place": "last"}))
    all_say(conversation, "The boy")
    prompts = {name: conversation.prompt(turn_of(conversation, name)).messages for name in ("ann", "bob")}
    said = prompts["ann"][1].content
    common = said[: said.index("You are ann")]

    assert prompts["ann"][0] == prompts["bob"][0]
    assert "words of ann" in common
    assert "words of bob" in common
    assert prompts["bob"][1].content.startswith(common)
    assert said[len(common) :] == snapshot


@pytest.mark.ci
def test_own_template_replaces_the_blocks_it_has(rehearsed: list[str], snapshot: SnapshotAssertion) -> None:
    text = (
        "{% block system %}{{ agent }}: {{ question }} {{ choices | join('/') }}{% endblock %}\n"
        "{% block later_round %}{% for statement in statements %}{{ statement.agent }}={{ statement.answer }};"
        "{% endfor %} {{ reply_format }}{% endblock %}"
    )
    conversation = opened(with_template(text))
    assert rehearsed == ["own.jinja"]
    system, first = conversation.prompt(turn_of(conversation, "ann")).messages
    assert system.content == snapshot
    assert first.content.startswith("It is round 1")

    all_say(conversation, "The boy")
    say(conversation, "mod", "They agree.")
    assert "bob=The boy;mod=; Reply" in read_by(conversation, "ann")


BAD = {
    "{% block system %}\n{{ questoin }}{% endblock %}": "2: unknown field 'questoin'",
    "{% block system %}\n{{ question }": "2: ",
    "{% block system %}{% endblock %}\n{% block sytem %}{% endblock %}": "2: unknown block 'sytem'",
    "Hello {{ agent }}": "1: the template has no block",
    "{% block later_round %}\n\n{{ statements[0].words }}{% endblock %}": "3: block later_round:",
    "{% block system %}\n{{ question.nothing }}{% endblock %}": "2: block system:",
    "{% block system %}{{ statements }}{% endblock %}": "1: block system: 'statements' is undefined",
    "{% block system %}\n{{ 1 / 0 }}{% endblock %}": "2: block system: division by zero",
    "{% block first_round %}{{ ask.__class__ }}{% endblock %}": "1: block first_round: access to",
    "{% block system %}\n{% include 'x' %}{% endblock %}": "2: a template is one file",
    "{% extends 'x' %}{% block system %}{% endblock %}": "1: a template is one file",
    "{% block system %}\n\n{% for x in %}{% endblock %}": "3: ",
    "{% block system %}{{ self._TemplateReference__context }}{% endblock %}": "1: ",
    "{% block system %}{{ ''.__class__.__mro__ }}{% endblock %}": "1: ",
    "{% block system %}{{ range.__globals__ }}{% endblock %}": "1: ",
}


def test_bad_template_is_refused_with_its_line_before_anything_runs(subtests: pytest.Subtests) -> None:
    for text, told in BAD.items():
        with subtests.test(text):
            with pytest.raises(ConfigError) as refused:
                DiscussionEnvironment(with_template(text))

            assert f": own.jinja:{told}" in str(refused.value)
            assert refused.value.key == ("discussion", "prompt", "template_file")


@pytest.mark.ci
def test_macros_loops_and_variables_of_its_own_are_allowed() -> None:
    text = (
        "{% block system %}{% macro loud(words) %}{{ words | upper }}{% endmacro %}{% set n = 2 %}"
        "{{ loud(question) * n }}{% for choice in choices %}{{ loop.index }}{% endfor %}{% endblock %}"
    )

    assert "LATE?WHO IS LATE?123" in first_of(with_template(text)).messages[0].content


def first_of(experiment: Experiment) -> Prompt:
    conversation = opened(experiment)
    return conversation.prompt(conversation.turns()[0])


def test_discussions_leave_their_share_to_the_prefix_cache() -> None:
    """As `benchmarks.discussion_prefix` counts it."""
    for place, share in {"system": 0.25, "last": 0.5}.items():
        overrides = ["_grid=null", f"discussion.prompt.identity_place={place}"]
        experiment = load_experiment(EXPERIMENT, overrides=overrides).experiment

        assert measure(experiment, discussions=3, words=" So I say." * 30).share > share
