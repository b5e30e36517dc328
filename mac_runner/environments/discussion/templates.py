"""The words of prompts as Jinja templates: the built-in one, and those of one's own, in a sandbox (`sandbox/`).

A template is three blocks: `system`, and the user message in its `first_round` and `later_round` forms. A template of
one's own may leave out blocks; the built-in ones stand in for them. It is given the fields of `FIELDS` and no others,
text of models only as it may be shown (`markup.defuse`), and it is tried on a sample before anything runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator, Mapping
from typing import Final, Protocol, cast

from jinja2 import Environment, StrictUndefined, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError

from mac_runner.environments.discussion.default_template import DEFAULT_TEMPLATE
from mac_runner.environments.discussion.sandbox import GLOBALS, METER, Meter, Sandbox, compiled, parsed
from mac_runner.errors import ConfigError, ConversationError
from mac_runner.limits import PROMPT_CHARS_MAX
from mac_runner.problems import suggestion

BLOCKS: Final = ("system", "first_round", "later_round")
FIELDS: Final = (
    "agent",
    "ask",
    "asides",
    "choices",
    "context",
    "correction",
    "duty",
    "identity",
    "identity_place",
    "is_last_round",
    "members",
    "others",
    "question",
    "question_type",
    "reply_format",
    "role",
    "round",
    "rounds",
    "statements",
)
"""What a template may name; docs/discussion.md says what each of them is."""


_IMPLIED: Final = ("loop", "caller", "varargs", "kwargs")
"""What Jinja itself defines inside loops and macros."""

_FAULTS: Final = (
    *(TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)
"""What a template raises: Jinja's errors, and what its filters and the operations on values raise in plain Python."""

Values = Mapping[str, object]


class Blocks(Protocol):
    """The three blocks of a prompt, ready to be rendered."""

    def render(self, block: str, values: Values) -> str:
        """One block with its values."""
        ...


class PromptTemplate:
    """The three blocks of a prompt, ready to be rendered."""

    def __init__(self, own: str | None = None, *, source: str = "template") -> None:
        """Raises ConfigError naming `source`, the line and the remedy when `own` cannot be used."""
        self._source = source
        # The built-in template is our own and needs no sandbox, which costs several times what rendering does.
        plain = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - no HTML
        self._default = default = plain.from_string(DEFAULT_TEMPLATE)
        self._blocks = {name: (default, default.blocks[name]) for name in BLOCKS}
        if own is not None:
            template = _compiled(own, source)
            self._blocks |= {name: (template, block) for name, block in template.blocks.items()}

    def render(self, block: str, values: Values) -> str:
        """One block with its values, without blank lines at its ends.

        Raises ConversationError, naming the line, when the template cannot be rendered with these values.
        """
        template, render = self._blocks[block]
        is_own = template is not self._default
        try:
            # With all names in one mapping Jinja makes no copy of it.
            named = {**GLOBALS, **values, METER: Meter()} if is_own else {**values}
            pieces = cast("Generator[str]", render(template.new_context(named, shared=True)))
            return (_bounded(pieces) if is_own else "".join(pieces)).strip("\n")
        except _FAULTS as fault:
            raise ConversationError(
                f"{self._source}:{_line_of(fault, template)}: block {block}: {fault}; mend it"
            ) from fault


def _bounded(pieces: Generator[str]) -> str:
    """A text that is no longer than a prompt may be, and that can be sent."""
    taken, length = [], 0
    for piece in pieces:
        taken.append(piece)
        length += len(piece)
        if length > PROMPT_CHARS_MAX:
            # Raised in the template, it has the line.
            pieces.throw(SecurityError(f"writes more than {PROMPT_CHARS_MAX} characters"))
    text = "".join(taken)
    text.encode()  # Half of a surrogate pair, which an escape can write, is no text.
    return text


def _compiled(text: str, source: str) -> Template:
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True)
    try:
        tree = parsed(sandbox, text)
        _refuse_unknown(tree, source)
        return Template.from_code(sandbox, compiled(sandbox, tree), {})
    except TemplateSyntaxError as fault:
        raise ConfigError(f"{source}:{fault.lineno}: {fault.message}; mend the template") from fault


def _refuse_unknown(tree: nodes.Template, source: str) -> None:
    blocks = list(tree.find_all(nodes.Block))
    if not blocks:
        raise ConfigError(f"{source}:1: the template has no block; write {{% block NAME %}} with {', '.join(BLOCKS)}")
    for block in blocks:
        if block.name not in BLOCKS:
            raise ConfigError(f"{source}:{block.lineno}: unknown block {block.name!r}{suggestion(block.name, BLOCKS)}")
    made = {name.name for name in tree.find_all(nodes.Name) if name.ctx in ("store", "param")}
    made |= {macro.name for macro in tree.find_all(nodes.Macro)}
    for name in tree.find_all(nodes.Name):
        if name.name not in {*FIELDS, *made, *GLOBALS, *_IMPLIED}:
            raise ConfigError(f"{source}:{name.lineno}: unknown field {name.name!r}{suggestion(name.name, FIELDS)}")


def _line_of(fault: BaseException, template: Template) -> int:
    """The line of the template at which `fault` was raised, from the line of the code that Jinja made of it."""
    lines = [frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == "<template>"]
    return template.get_corresponding_lineno(lines[-1] or 1) if lines else 1
