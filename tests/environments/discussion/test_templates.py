"""Prompts as the built-in template writes them; templates of one's own, what they may print and may cost to render."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import yaml
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.filters import FILTERS
from jinja2.sandbox import SandboxedEnvironment
from syrupy.assertion import SnapshotAssertion

from benchmarks.discussion_prefix import EXPERIMENT, measure
from mac_runner.config import Experiment, load_experiment
from mac_runner.environments.discussion.testing import KIND, Choice, ChoiceFormat, DiscussionEnvironment, listed
from mac_runner.environments.testing import PromptTemplate
from mac_runner.errors import ConfigError, ConversationError
from tests.environments.discussion.table import agent, all_say, opened, read_by, say, talk, turn_of

AGENTS = (agent("ann"), agent("bob"), agent("mod", "moderator", after=("ann", "bob")))


def with_template(text: str) -> Experiment:
    return talk(*AGENTS, max_rounds=3, prompt={"template_file": "own.jinja", "template": text})


def test_choices_are_listed_in_the_format_asked_for_each_with_a_label_of_its_own() -> None:
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
    choices = [Choice(id=str(i), text=f"choice {i}") for i in range(26)]

    assert listed("roman_dot", choices)[23:] == ("XXIV. choice 23", "XXV. choice 24", "XXVI. choice 25")
    assert listed("letters_dot", choices)[-1] == "Z. choice 25"


def test_prompts_ask_the_question_in_a_system_message_that_never_changes_and_only_append(
    snapshot: SnapshotAssertion,
) -> None:
    """What the prefix cache lives on: first the rules and the question, alike for all up to who the agent is."""
    conversation = opened(talk(*AGENTS, max_rounds=4, routing_strategy={"history_rounds": None}))
    ann, bob = (conversation.prompt(turn_of(conversation, name)).messages[0].content for name in ("ann", "bob"))
    common, told = ann[: ann.index("You are ann")], [""]
    assert "Cannot be determined" in common
    assert bob.startswith(common)
    for _ in range(3):
        all_say(conversation, "The boy")
        say(conversation, "mod", "They agree.")
        system, user = (message.content for message in conversation.prompt(turn_of(conversation, "ann")).messages)
        said = user[: user.index("It is round")]
        assert system == ann
        assert said.startswith(told[-1])
        told.append(said)
    assert ann == snapshot


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
def test_own_template_replaces_the_blocks_it_has(snapshot: SnapshotAssertion) -> None:
    text = (
        "{% block system %}{{ agent }}: {{ question }} {{ choices | join('/') }}{% endblock %}\n"
        "{% block later_round %}{% for statement in statements %}{{ statement.agent }}={{ statement.answer }};"
        "{% endfor %} {{ reply_format }}{% endblock %}"
    )
    conversation = opened(with_template(text))
    system, first = conversation.prompt(turn_of(conversation, "ann")).messages
    assert system.content == snapshot
    assert first.content.startswith("It is round 1")

    all_say(conversation, "The boy")
    say(conversation, "mod", "They agree.")
    assert "bob=The boy;mod=; In " in read_by(conversation, "ann")


BAD = {
    "{% block system %}\n{{ questoin }}{% endblock %}": "2: unknown field 'questoin'",
    "{% block system %}\n{{ question }": "2: ",
    "{% block system %}\n{{ demographic }}{% endblock %}": "2: unknown field 'demographic'",
    "{% block system %}\n{{ demographics.hom }}{% endblock %}": "2: ",
    "{% block system %}\n{% for one in others %}{{ one.age }}{% endfor %}{% endblock %}": "2: ",
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

    assert "LATE?WHO IS LATE?123" in read_by(opened(with_template(text)), "ann")


def test_discussions_leave_their_share_to_the_prefix_cache() -> None:
    """As `benchmarks.discussion_prefix` counts it."""
    for place, share in {"system": 0.25, "last": 0.5}.items():
        overrides = ["_grid=null", f"discussion.prompt.identity_place={place}"]
        experiment = load_experiment(EXPERIMENT, overrides=overrides).experiment

        assert measure(experiment, discussions=3, words=" So I say." * 30).share > share


VALUES: dict[str, object] = {"question": "Who is late?", "rounds": 3, "choices": ("A. x", "B. y"), "statements": ()}


def block(body: str) -> str:
    return f"{{% block system %}}\n{body}{{% endblock %}}"


def rendered(body: str, **values: object) -> str:
    return PromptTemplate(KIND, block(body), source="own.jinja").render("system", {**VALUES, **values})


def refusal(body: str) -> str:
    """What is said of a template before anything runs; empty where nothing is."""
    try:
        DiscussionEnvironment(with_template(block(body)))
    except ConfigError as fault:
        return str(fault).removeprefix("discussion.prompt.template_file: ")
    return ""


@contextmanager
def memory_for_no_more_than(num_bytes: int) -> Iterator[None]:
    """Whatever asks for more meets a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


WRITTEN: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("printed.yaml").read_text(encoding="utf-8"))

PRINTED: dict[str, str] = WRITTEN["refused"]

ALLOWED: dict[str, str] = WRITTEN["allowed"]


@pytest.mark.ci
def test_only_text_and_numbers_are_printed_and_the_refusal_has_the_line_and_what_to_write() -> None:
    refused = {body: refusal(body) for body in PRINTED}

    assert {body: said for body, said in refused.items() if PRINTED[body] not in said} == {}
    assert {body: said for body, said in refused.items() if not said.startswith("own.jinja:2: ")} == {}


def compiling(body: str) -> str:
    try:
        PromptTemplate(KIND, block(body))
    except ConfigError as fault:
        return str(fault)
    return ""


@pytest.mark.ci
def test_filters_and_globals_that_are_random_or_print_objects_are_not_known() -> None:
    unknown = {name for name in FILTERS if f"unknown filter '{name}'" in compiling(f"{{{{ question | {name} }}}}")}
    foreign = {name for name in DEFAULT_NAMESPACE if f"unknown field '{name}'" in compiling(f"{{{{ {name} }}}}")}

    assert unknown == {
        *("attr", "e", "escape", "filesizeformat", "forceescape", "pprint", "random", "safe", "striptags", "urlencode"),
        *("urlize", "wordwrap", "xmlattr"),
    }
    assert foreign == {"cycler", "dict", "joiner", "lipsum"}


def test_what_is_pure_renders_as_jinja_renders_it() -> None:
    found = {body: rendered(body) for body in ALLOWED}
    jinja = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert found == ALLOWED == {body: jinja.from_string(body).render(VALUES) for body in ALLOWED}


DOUBLED = "{% set ns = namespace(x=SEED) %}{% for i in range(99) %}{% set ns.x = DOUBLE %}{% endfor %}"


def doubled(seed: str, double: str) -> str:
    return DOUBLED.replace("SEED", seed).replace("DOUBLE", double)


GREEDY = [
    *WRITTEN["greedy"],
    "{{ 0x" + "f" * 60_000 + " }}",
    "{{ " + "9" * 5_000 + " }}",
    doubled("'ab'", "ns.x ~ ns.x"),
    doubled("'ab'", "ns.x + ns.x"),
    doubled("[1]", "ns.x + ns.x"),
    doubled("3", "ns.x * ns.x"),
    doubled("'ab'", "ns.x.replace('a', ns.x)"),
    doubled("'ab'", "'%s%s' | format(ns.x, ns.x)"),
    doubled("'ab'", "[ns.x, ns.x] | join"),
    doubled("[1]", "[ns.x, ns.x]") + "{{ ns.x == 1 }}",
    doubled("[1]", "[ns.x]") + "{{ ns.x | tojson }}",
    doubled("[1]", "[ns.x, ns.x]") + "{{ ns.x == ns.x }}",
    doubled("(1,)", "(ns.x, ns.x)") + "{{ {ns.x: 1} }}",
    doubled("(1,)", "(ns.x, ns.x)") + "{% if {1: 2}[ns.x] %}{% endif %}",
    doubled("[1]", "[ns.x, ns.x]") + "{% set t = [ns.x, ns.x] | sort %}",
    "{% for a in range(99999) %}" + "{% if 1 %}{% endif %}" * 2_500 + "{% endfor %}",
    "{% macro m() %}{% for a in range(99999) %}{% endfor %}{% endmacro %}"
    "{% for a in range(99999) %}{% if m() %}{% endif %}{% endfor %}",
    "{{ " + "(" * 20_000,
    "{{ " + "not " * 9_000 + "1 }}",
    "{{ 1" + " + 1" * 9_000 + " }}",
    "{{ 1" + " | abs" * 9_000 + " }}",
    "{{ agent" + ".a" * 9_000 + " }}",
    "{% if 1 %}" * 5_000,
    "{% if 1 %}a" + "{% elif 1 %}a" * 4_000 + "{% endif %}",
    "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
]


@pytest.mark.ci
@pytest.mark.parametrize("part", range(3))
def test_a_template_without_measure_is_refused_with_its_line_in_little_memory(part: int) -> None:
    refused = {}
    with memory_for_no_more_than(512 << 20):
        for body in GREEDY[part::3]:
            refused[body[:80]] = refusal(body)

    assert {body: told for body, told in refused.items() if not told.startswith("own.jinja:2: ")} == {}


def test_what_was_fine_at_the_rehearsal_fails_its_conversation_when_it_grows() -> None:
    body = "x"
    for name in "abc":
        body = f"{{% for {name} in statements %}}{body}{{% endfor %}}"

    assert rendered(body, statements=("a", "b")) == "x" * 8
    with pytest.raises(ConversationError, match=r"^own\.jinja:2: .* 10000000 steps"):
        rendered(body, statements=("a",) * 1_000)


def test_a_template_cannot_write_half_of_a_surrogate_pair() -> None:
    for body in ('{{ "\\ud800" }}', "{{ '%c' | format(55296) }}"):
        assert "surrogates not allowed" in refusal(body)


def test_each_rendering_has_the_whole_of_the_measure() -> None:
    template = PromptTemplate(KIND, block("{% for i in range(99999) %}{% endfor %}"), source="own.jinja")

    for _ in range(60):
        assert template.render("system", VALUES) == ""
