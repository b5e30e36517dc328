"""The words of scripted players: each kind is said somewhere with all that its wordings name; mistakes are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mac_runner.environments.town_of_salem import bots
from mac_runner.environments.town_of_salem.testing import read_wordings, wordings
from mac_runner.errors import ConfigError

KIND = "kinds:\n  greeting:\n    when: in the greeting\n    fields: [name]\n    wordings:\n      - Hello {name}.\n"
LINES = "lines:\n  dead: I am dead.\n"


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        (KIND, "", "`lines`"),
        (KIND.replace("{name}", "{naem}") + LINES, ": kind 'greeting'", "names {naem}, and what is filled in is {me}"),
        (KIND.replace("{name}", "{}") + LINES, ": kind 'greeting'", "names {}"),
        (KIND.replace("\n      - Hello {name}.", " []") + LINES, ": kind 'greeting'", "length >= 1"),
        (KIND.replace("wordings", "words") + LINES, ": kind 'greeting'", "`words`"),
        (KIND + "    means: the speaker is {role}\n" + LINES, ": kind 'greeting'", "names {role}"),
        (KIND + KIND.partition("\n")[2] + LINES, ":7", "greeting"),
    ],
)
def test_mistake_in_the_wordings_is_named_with_its_file_and_kind(text: str, place: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_wordings(text.encode(), "words.yaml")

    assert str(refused.value).startswith(f"words.yaml{place}: ")
    assert problem in str(refused.value)


def test_every_kind_and_line_is_said_somewhere_and_given_all_that_its_wordings_name() -> None:
    """They are chosen by name, and a type checker does not know the names."""
    known = wordings()
    named = {("say", name): set(kind.fields) for name, kind in known.kinds.items()}
    named |= {("line", name): set(re.findall(r"{(\w+)}", text)) for name, text in known.lines.items()}
    said = [*_said()]

    assert {(how, name) for how, name, _ in said} == named.keys()
    assert [(how, name) for how, name, given in said if not named[how, name] <= given] == []


def _said() -> Iterator[tuple[str, str, set[str]]]:
    """Each call that says a kind or a line: which one, its name, and what it is given."""
    for path in Path(bots.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                given = {key.arg or "" for key in node.keywords}
                if node.func.id in ("say", "plain", "line"):
                    how = node.func.id.replace("plain", "say")
                    yield from ((how, name, given) for name in _names(node.args[0]))
                elif node.func.id == "Finding":
                    # It is told of a player, and where it is a result, perhaps with its night.
                    yield from (("say", name, {"name", "night"}) for name in _names(node.args[1]))
    yield from (("say", name, {"name", "night"}) for name in ("guilty night", "innocent night"))


def _names(node: ast.expr) -> Iterator[str]:
    """The text that an expression is, or the two that it chooses between."""
    match node:
        case ast.Constant(value=str(name)):
            yield name
        case ast.IfExp(body=one, orelse=other):
            yield from (*_names(one), *_names(other))
        case _:
            pass
