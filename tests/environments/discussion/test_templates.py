"""Prompts as the built-in template writes them, and templates of one's own."""

from __future__ import annotations

import pytest

from mac_runner.config import Experiment
from mac_runner.environments.discussion.environment import DiscussionEnvironment
from mac_runner.environments.discussion.questions import Choice
from mac_runner.environments.discussion.reading.matching import listed
from mac_runner.environments.discussion.settings import ChoiceFormat
from mac_runner.errors import ConfigError
from mac_runner.types import Prompt
from tests.environments.discussion.table import agent, opened, read_by, reply, say, talk, turn_of

AGENTS = (agent("ann"), agent("bob"), agent("mod", "moderator", after=("ann", "bob")))


def with_template(text: str) -> Experiment:
    return talk(*AGENTS, max_rounds=3, prompt={"template_file": "own.jinja", "template": text})


@pytest.mark.parametrize(
    ("choice_format", "lines"),
    [
        ("bullet", "- Yes|- No|- Perhaps|- Never"),
        ("letters_colon", "A: Yes|B: No|C: Perhaps|D: Never"),
        ("letters_dot", "A. Yes|B. No|C. Perhaps|D. Never"),
        ("letters_parenthesis", "A) Yes|B) No|C) Perhaps|D) Never"),
        ("numerals_colon", "1: Yes|2: No|3: Perhaps|4: Never"),
        ("numerals_dot", "1. Yes|2. No|3. Perhaps|4. Never"),
        ("numerals_parenthesis", "1) Yes|2) No|3) Perhaps|4) Never"),
        ("roman_colon", "I: Yes|II: No|III: Perhaps|IV: Never"),
        ("roman_dot", "I. Yes|II. No|III. Perhaps|IV. Never"),
        ("roman_parenthesis", "I) Yes|II) No|III) Perhaps|IV) Never"),
        ("none", "Yes|No|Perhaps|Never"),
    ],
)
def test_choices_are_listed_in_the_format_asked_for(choice_format: ChoiceFormat, lines: str) -> None:
    choices = [Choice(id=text[0], text=text) for text in ("Yes", "No", "Perhaps", "Never")]

    assert "|".join(listed(choice_format, choices)) == lines


def test_every_choice_has_a_label_of_its_own() -> None:
    choices = [Choice(id=str(i), text=f"choice {i}") for i in range(26)]

    assert listed("roman_dot", choices)[23:] == ("XXIV. choice 23", "XXV. choice 24", "XXVI. choice 25")
    assert listed("letters_dot", choices)[-1] == "Z. choice 25"


def test_the_system_message_asks_the_question_and_never_changes() -> None:
    conversation = opened(talk(*AGENTS))
    systems = set()
    for _ in range(2):
        for name in ("ann", "bob"):
            if name == "ann":
                systems.add(conversation.prompt(turn_of(conversation, "ann")).messages[0].content)
            reply(conversation, name, rationale="r", answer="The boy")
        say(conversation, "mod", "They agree.")

    (system,) = systems
    assert (
        "Context: A boy and his grandmother wait for a bus.\nQuestion: Who is late?\nChoices:\nA. The boy\n" in system
    )


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
        for name in ("ann", "bob"):
            reply(conversation, name, rationale=f"{name} speaks", answer="The boy")
        say(conversation, "mod", "They agree.")
        text = conversation.prompt(turn_of(conversation, "ann")).messages[1].content
        told.append(text[: text.index("It is round")])

    assert told[1].startswith(told[0])
    assert told[2].startswith(told[1])


def test_an_agent_told_last_who_it_is_shares_all_that_was_said_before() -> None:
    ann = agent("ann", persona="economist")
    conversation = opened(talk(ann, agent("bob"), prompt={"identity_place": "last"}))
    for name in ("ann", "bob"):
        reply(conversation, name, rationale=f"words of {name}", answer="The boy")
    prompts = {name: conversation.prompt(turn_of(conversation, name)).messages for name in ("ann", "bob")}
    said = prompts["ann"][1].content
    common = said[: said.index("You are ann")]

    assert prompts["ann"][0] == prompts["bob"][0]
    assert "words of ann" in common
    assert "words of bob" in common
    assert prompts["bob"][1].content.startswith(common)
    assert "You are ann, an economist. You are a participant" in said
    assert "What ann said above, you said." in said


def test_own_template_replaces_the_blocks_it_has() -> None:
    text = (
        "{% block system %}{{ agent }}: {{ question }} {{ choices | join('/') }}{% endblock %}\n"
        "{% block later_round %}{% for statement in statements %}{{ statement.agent }}={{ statement.answer }};"
        "{% endfor %} {{ reply_format }}{% endblock %}"
    )
    conversation = opened(with_template(text))
    system, first = conversation.prompt(turn_of(conversation, "ann")).messages
    assert system.content == "ann: Who is late? A. The boy/B. The grandmother/C. Cannot be determined"
    assert first.content.startswith("It is round 1 of at most 3.")

    for name in ("ann", "bob"):
        reply(conversation, name, rationale="r", answer="The boy")
    say(conversation, "mod", "They agree.")
    assert "ann=The boy;bob=The boy;mod=; Reply with one JSON object" in read_by(conversation, "ann")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{% block system %}\n{{ questoin }}{% endblock %}", "own.jinja:2: unknown field 'questoin'"),
        ("{% block system %}\n{{ question }", "own.jinja:2: "),
        ("{% block system %}{% endblock %}\n{% block sytem %}{% endblock %}", "own.jinja:2: unknown block 'sytem'"),
        ("Hello {{ agent }}", "own.jinja:1: the template has no block"),
        ("{% block later_round %}\n\n{{ statements[0].words }}{% endblock %}", "own.jinja:3: block later_round:"),
        ("{% block system %}\n{{ question.nothing }}{% endblock %}", "own.jinja:2: block system:"),
        ("{% block system %}{{ statements }}{% endblock %}", "own.jinja:1: block system: 'statements' is undefined"),
        ("{% block system %}\n{{ 1 / 0 }}{% endblock %}", "own.jinja:2: block system: division by zero"),
        ("{% block first_round %}{{ ask.__class__ }}{% endblock %}", "own.jinja:1: block first_round: access to"),
        ("{% block system %}\n{% include 'x' %}{% endblock %}", "own.jinja:2: a template is one file"),
        ("{% extends 'x' %}{% block system %}{% endblock %}", "own.jinja:1: a template is one file"),
        ("{% block system %}\n\n{% for x in %}{% endblock %}", "own.jinja:3: "),
    ],
)
def test_bad_template_is_refused_with_its_line_before_anything_runs(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        DiscussionEnvironment(with_template(text))

    assert str(refused.value).startswith(f"discussion.prompt.template_file: {told}")
    assert refused.value.key == ("discussion", "prompt", "template_file")


def test_a_template_cannot_reach_what_it_is_not_given() -> None:
    for hostile in ("{{ self._TemplateReference__context }}", "{{ ''.__class__.__mro__ }}", "{{ range.__globals__ }}"):
        with pytest.raises(ConfigError):
            DiscussionEnvironment(with_template(f"{{% block system %}}{hostile}{{% endblock %}}"))


@pytest.mark.parametrize(
    "greedy",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'x' }}",
        "{{ 7 ** (10 ** 9) }}",
        "{% for i in range(9999) %}{% for j in range(9999) %}xx{% endfor %}{% endfor %}",
    ],
)
def test_a_template_out_of_all_proportion_is_refused_before_it_fills_the_memory(greedy: str) -> None:
    with pytest.raises(ConfigError, match=r"own\.jinja:[12]: block system: .*(more than|past)"):
        DiscussionEnvironment(with_template(f"{{% block system %}}\n{greedy}{{% endblock %}}"))


def test_macros_loops_and_variables_of_its_own_are_allowed() -> None:
    text = (
        "{% block system %}{% macro loud(words) %}{{ words | upper }}{% endmacro %}{% set n = 2 %}"
        "{{ loud(question) * n }}{% for choice in choices %}{{ loop.index }}{% endfor %}{% endblock %}"
    )

    assert "WHO IS LATE?WHO IS LATE?123" in first_of(with_template(text)).messages[0].content


def first_of(experiment: Experiment) -> Prompt:
    conversation = opened(experiment)
    return conversation.prompt(conversation.turns()[0])
