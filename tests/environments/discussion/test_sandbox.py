"""What a template of one's own may print, and what rendering it may cost."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.filters import FILTERS
from jinja2.sandbox import SandboxedEnvironment

from mac_runner.environments.discussion.testing import KIND, DiscussionEnvironment
from mac_runner.environments.testing import PromptTemplate, Recorder, Rendering, check_reproduced
from mac_runner.errors import ConfigError, ConversationError
from tests.environments.discussion.test_templates import with_template

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
    assert foreign == {"lipsum"}


def test_what_is_pure_renders_as_jinja_renders_it() -> None:
    found = {}
    for body in ALLOWED:
        try:
            found[body] = rendered(body)
        except ConversationError as fault:
            found[body] = str(fault)

    jinja = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert found == ALLOWED == {body: jinja.from_string(body).render(VALUES) for body in ALLOWED}


@pytest.mark.ci
def test_what_is_pure_renders_alike_in_a_second_process() -> None:
    own = block("".join(body for body in ALLOWED))
    recorder = Recorder(PromptTemplate(KIND, own, source="own.jinja"))
    recorder.render("system", VALUES)

    check_reproduced(KIND, own, "own.jinja", recorder.renderings)


@pytest.mark.ci
def test_a_text_that_comes_out_otherwise_in_a_second_process_is_refused() -> None:
    own = block("{{ question }}")

    with pytest.raises(ConversationError, match=r"jinja:1: .* differently"):
        check_reproduced(KIND, own, "own.jinja", [Rendering("system", VALUES, "Who is late? <Line at 0x7f>")])


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
    doubled("'ab'", "'{0}{0}'.format(ns.x)"),
    doubled("'ab'", "'%s%s' % (ns.x, ns.x)"),
    doubled("'ab'", "[ns.x, ns.x] | join"),
    doubled("[1]", "[ns.x, ns.x]") + "{{ ns.x == 1 }}",
    doubled("[1]", "[ns.x]") + "{{ ns.x | tojson }}",
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
    for body in ('{{ "\\ud800" }}', "{{ '%c' % 55296 }}"):
        assert "surrogates not allowed" in refusal(body)


def test_each_rendering_has_the_whole_of_the_measure() -> None:
    template = PromptTemplate(KIND, block("{% for i in range(99999) %}{% endfor %}"), source="own.jinja")

    for _ in range(60):
        assert template.render("system", VALUES) == ""
